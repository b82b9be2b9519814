#include "engine/synthetic_executor.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/error.h"

namespace baleen::engine {
namespace {

constexpr float kSyntheticLogprob = -0.693147181F;  // ln 1/2

/// One round of splitmix64.
uint64_t mixed(uint64_t value) {
  value += 0x9E3779B97F4A7C15ULL;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9ULL;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBULL;
  return value ^ (value >> 31);
}

}  // namespace

SyntheticExecutor::SyntheticExecutor(const Options& options) : options_(options) {
  const ExecutorCapacity& c = options_.capacity;
  if (c.num_slots < 1 || c.max_context < 1 || c.max_step_tokens < 1 || options_.first_id < 0 ||
      options_.first_id >= c.vocab_size || options_.draft_stands_percent < 0 ||
      options_.draft_stands_percent > 100) {
    throw ConfigError(
        "a synthetic executor needs capacity, a first id in the vocabulary and a percentage");
  }
}

ExecutorInfo SyntheticExecutor::info() const {
  ExecutorInfo info;
  info.model_name = "synthetic";
  info.numerics = "none";
  return info;
}

int32_t SyntheticExecutor::drawn(const SamplingRow& sampling,
                                 int64_t position,
                                 int32_t before) const {
  uint64_t hash = mixed(sampling.seed);
  hash = mixed(hash ^ static_cast<uint64_t>(sampling.sample_index));
  hash = mixed(hash ^ static_cast<uint64_t>(position));
  hash = mixed(hash ^ static_cast<uint64_t>(before));
  const auto num_ids = static_cast<uint64_t>(options_.capacity.vocab_size - options_.first_id);
  return options_.first_id + static_cast<int32_t>(hash % num_ids);
}

bool SyntheticExecutor::draft_stands(const SamplingRow& sampling, int64_t position) const {
  const uint64_t hash = mixed(mixed(sampling.seed + 1) ^ static_cast<uint64_t>(position));
  return static_cast<int32_t>(hash % 100) < options_.draft_stands_percent;
}

/// Tokens of a row where it lies, behind the token `before`.
void SyntheticExecutor::draw(const BatchRow& row,
                             const SamplingRow& sampling,
                             int32_t before,
                             RowResult& result) {
  int64_t position = int64_t{row.first_position.value()} + row.num_tokens - row.num_drafts;
  result.num_drafted = std::min(row.num_drafts, accepted_.limit(row, sampling) - 1);
  for (int32_t i = 0; i <= result.num_drafted; ++i, ++position) {
    before = sampling.forced_id >= 0 ? sampling.forced_id : drawn(sampling, position, before);
    result.ids.push_back(before);
    if (sampling.want_logprobs) {
      result.logprobs.push_back(kSyntheticLogprob);
      result.top_logprobs.emplace_back();
    }
    if (!draft_stands(sampling, position)) {
      return;
    }
  }
}

Ticket SyntheticExecutor::submit(const BatchPlan& plan, const MaskProvider&) {
  BALEEN_CHECK(!in_flight_, "step {} is unfinished", result_.step);
  const std::chrono::nanoseconds time =
      options_.step_base + options_.step_per_token * static_cast<int64_t>(plan.ids.size());
  if (time.count() > 0) {
    std::this_thread::sleep_for(time);
  }
  result_.step = plan.step;
  result_.rows.assign(plan.rows.size(), {});
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    const BatchRow row = accepted_.placed(plan.rows[i]);
    RowResult& result = result_.rows[i];
    const auto first = static_cast<size_t>(row.ids_offset);
    if (row.input_logprobs_from >= 0) {
      for (int32_t k = 0; k < row.num_tokens; ++k) {
        if (row.first_position.value() + k >= std::max(1, row.input_logprobs_from)) {
          result.input_logprobs.push_back(
              {plan.ids[first + static_cast<size_t>(k)], kSyntheticLogprob});
        }
      }
    }
    if (row.sampling_index < 0) {
      continue;
    }
    const SamplingRow& sampling = plan.sampling[static_cast<size_t>(row.sampling_index)];
    const auto last = first + static_cast<size_t>(row.num_tokens - row.num_drafts) - 1;
    draw(row, sampling, accepted_.resolve(plan.ids[last]), result);
  }
  accepted_.keep(result_);
  in_flight_ = true;
  ticket_ = Ticket(ticket_.value() + 1);
  return ticket_;
}

StepResult SyntheticExecutor::wait(Ticket ticket) {
  BALEEN_CHECK(in_flight_ && ticket == ticket_, "ticket {} is not in flight", ticket.value());
  in_flight_ = false;
  return result_;
}

}  // namespace baleen::engine
