#include "rl/debug_rollout.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <utility>

#include <boost/json.hpp>
#include <fmt/format.h>

#include "base/error.h"
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
  std::vector<int32_t> choices;  // two per row
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
    choices.push_back(one.choices ? one.choices->first_position : -1);
    choices.push_back(one.choices ? one.choices->count : 0);
    routes.add_row(one.choices ? one.choices->routes : none);
    picks.add_row(one.choices ? one.choices->picks : none);
    texts.push_back({{"prompt", prompt.text}, {"label", prompt.label}, {"response", one.response}});
  }
};

/// A saved rollout, row by row.
class RolloutReader {
 public:
  explicit RolloutReader(const std::filesystem::path& path) : path_(path), file_(path) {}

  RolloutBatch read(int64_t rollout) {
    RolloutBatch batch;
    batch.rollout_id = rollout;
    const boost::json::value texts = boost::json::parse(file_.text("texts"));
    const auto rows = static_cast<std::size_t>(file_.rows());
    if (!texts.is_array() || texts.as_array().size() != rows) {
      fail("texts");
    }
    double reward = 0.0;
    for (std::size_t row = 0; row < rows; ++row) {
      RolloutSample sample = sample_of(row);
      reward += sample.reward;
      const boost::json::object& text = texts.as_array()[row].as_object();
      sample.response = std::string(text.at("response").as_string());
      if (batch.groups.empty() || batch.groups.back().group != sample.group) {
        RolloutGroup& group = batch.groups.emplace_back();
        group.group = sample.group;
        group.prompt.text = std::string(text.at("prompt").as_string());
        group.prompt.label = std::string(text.at("label").as_string());
        group.prompt.ids.assign(sample.ids.begin(), sample.ids.begin() + sample.prompt_tokens);
      }
      batch.groups.back().samples.push_back(std::move(sample));
    }
    batch.counts.first_samples = file_.rows();
    batch.counts.first_reward = reward / static_cast<double>(std::max<std::size_t>(rows, 1));
    return batch;
  }

 private:
  [[noreturn]] void fail(const char* column) const {
    throw Error(fmt::format("{}: column {} does not fit the others", path_.string(), column));
  }

  template <class Value>
  Value at(const char* column, std::size_t row) const {
    const std::span<const Value> values = file_.column<Value>(column);
    if (row >= values.size()) {
      fail(column);
    }
    return values[row];
  }

  /// Values of the row, whose bounds `begins` has.
  template <class Value>
  std::vector<Value> ragged(const char* begins,
                            const char* column,
                            std::size_t row,
                            int64_t per_unit = 1) const {
    const int64_t begin = at<int64_t>(begins, row) * per_unit;
    const int64_t end = at<int64_t>(begins, row + 1) * per_unit;
    const std::span<const Value> values = file_.column<Value>(column);
    if (begin < 0 || end < begin || end > static_cast<int64_t>(values.size())) {
      fail(column);
    }
    return {values.begin() + begin, values.begin() + end};
  }

  RolloutSample sample_of(std::size_t row) const {
    RolloutSample sample;
    sample.index = at<int64_t>("sample", row);
    sample.group = at<int64_t>("group", row);
    sample.prompt_tokens = at<int32_t>("prompt_tokens", row);
    sample.retries = at<int32_t>("retries", row);
    sample.reward = at<double>("reward", row);
    const double accuracy = at<double>("accuracy", row);
    if (!std::isnan(accuracy)) {
      sample.accuracy = accuracy;
    }
    sample.status = static_cast<SampleStatus>(at<uint8_t>("status", row));
    sample.remove_sample = at<uint8_t>("removed", row) != 0;
    sample.ids = ragged<int32_t>("token_begin", "tokens", row);
    sample.logprobs = ragged<float>("response_begin", "logprobs", row);
    sample.mask = ragged<uint8_t>("response_begin", "mask", row);
    const std::vector<int64_t> runs = ragged<int64_t>("version_begin", "versions", row, 2);
    for (std::size_t i = 0; i + 1 < runs.size(); i += 2) {
      sample.versions.push_back({runs[i], runs[i + 1]});
    }
    if (sample.prompt_tokens < 1 ||
        sample.response_tokens() != static_cast<int64_t>(sample.logprobs.size())) {
      fail("tokens");
    }
    if (const int32_t first = at<int32_t>("choices", 2 * row); first >= 0) {
      sample.choices = cache::ChoiceRecords{.first_position = first,
                                            .count = at<int32_t>("choices", 2 * row + 1),
                                            .routes = ragged<uint8_t>("route_begin", "routes", row),
                                            .picks = ragged<uint8_t>("pick_begin", "picks", row)};
    }
    return sample;
  }

  std::filesystem::path path_;
  policy::ColumnFile file_;
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
  writer.add("choices",
             {static_cast<int64_t>(columns.choices.size() / 2), 2},
             std::span<const int32_t>(columns.choices));
  put(writer, "route_begin", columns.routes.begin);
  put(writer, "routes", columns.routes.values);
  put(writer, "pick_begin", columns.picks.begin);
  put(writer, "picks", columns.picks.values);
  writer.add_text("texts", texts);
  std::error_code error;
  std::filesystem::create_directories(folder, error);  // write() says what is wrong with it
  writer.write(folder / fmt::format("{}.bin", batch.rollout_id));
}

RolloutBatch load_debug_rollout(const std::filesystem::path& folder, int64_t rollout) {
  return RolloutReader(folder / fmt::format("{}.bin", rollout)).read(rollout);
}

}  // namespace baleen::rl
