#include "rl/debug_rollout.h"

#include <limits>
#include <span>
#include <utility>

#include <boost/json.hpp>
#include <fmt/format.h>

#include "policy/column_file.h"

namespace baleen::rl {
namespace {

/// Values of the rows one behind another, and where each row begins.
template <class Value>
struct RaggedColumn {
  std::vector<int64_t> begin = {0};
  std::vector<Value> values;

  template <class Values>
  void add_row(const Values& row) {
    values.insert(values.end(), row.begin(), row.end());
    begin.push_back(static_cast<int64_t>(values.size()));
  }
};

struct RolloutColumns {
  std::vector<int64_t> sample, group;
  std::vector<int32_t> prompt_tokens, retries;
  std::vector<double> reward, accuracy;
  std::vector<uint8_t> status, removed;
  RaggedColumn<int32_t> tokens;
  RaggedColumn<float> logprobs;
  std::vector<uint8_t> mask;
  RaggedColumn<int64_t> versions;  // begins count numbers, two per run
  RaggedColumn<uint8_t> routes, picks;
  boost::json::array texts;

  void add(const Prompt& prompt, const RolloutSample& one) {
    sample.push_back(one.index);
    group.push_back(one.group);
    prompt_tokens.push_back(one.prompt_tokens);
    retries.push_back(one.retries);
    reward.push_back(one.reward);
    accuracy.push_back(one.accuracy.value_or(std::numeric_limits<double>::quiet_NaN()));
    status.push_back(static_cast<uint8_t>(one.status));
    removed.push_back(one.remove_sample ? 1 : 0);
    tokens.add_row(one.ids);
    logprobs.add_row(one.logprobs);
    mask.insert(mask.end(), one.mask.begin(), one.mask.end());
    std::vector<int64_t> runs;
    for (const VersionRun& run : one.versions) {
      runs.insert(runs.end(), {run.version, run.count});
    }
    versions.add_row(runs);
    const std::vector<uint8_t> none;
    routes.add_row(one.choices ? one.choices->routes : none);
    picks.add_row(one.choices ? one.choices->picks : none);
    texts.push_back({{"prompt", prompt.text}, {"label", prompt.label}, {"response", one.response}});
  }
};

template <class Value>
void put(policy::ColumnFileWriter& writer, const char* name, const std::vector<Value>& values) {
  writer.add(name, {static_cast<int64_t>(values.size())}, std::span<const Value>(values));
}

}  // namespace

void save_debug_rollout(const std::filesystem::path& folder, const RolloutBatch& batch) {
  RolloutColumns columns;
  for (const RolloutGroup& group : batch.groups) {
    for (const RolloutSample& sample : group.samples) {
      columns.add(group.prompt, sample);
    }
  }
  for (int64_t& begin : columns.versions.begin) {
    begin /= 2;
  }
  const std::string texts = boost::json::serialize(columns.texts);
  policy::ColumnFileWriter writer(static_cast<int64_t>(columns.sample.size()));
  put(writer, "sample", columns.sample);
  put(writer, "group", columns.group);
  put(writer, "prompt_tokens", columns.prompt_tokens);
  put(writer, "retries", columns.retries);
  put(writer, "reward", columns.reward);
  put(writer, "accuracy", columns.accuracy);
  put(writer, "status", columns.status);
  put(writer, "removed", columns.removed);
  put(writer, "token_begin", columns.tokens.begin);
  put(writer, "tokens", columns.tokens.values);
  put(writer, "response_begin", columns.logprobs.begin);
  put(writer, "logprobs", columns.logprobs.values);
  put(writer, "mask", columns.mask);
  put(writer, "version_begin", columns.versions.begin);
  writer.add("versions",
             {static_cast<int64_t>(columns.versions.values.size() / 2), 2},
             std::span<const int64_t>(columns.versions.values));
  put(writer, "route_begin", columns.routes.begin);
  put(writer, "routes", columns.routes.values);
  put(writer, "pick_begin", columns.picks.begin);
  put(writer, "picks", columns.picks.values);
  writer.add_text("texts", texts);
  std::error_code error;
  std::filesystem::create_directories(folder, error);  // write() says what is wrong with it
  writer.write(folder / fmt::format("{}.bin", batch.rollout_id));
}

}  // namespace baleen::rl
