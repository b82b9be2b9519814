#pragma once
// Makes the batch of a rollout: submits prompts to the engine, collects their answers, has them
// judged, keeps the groups that pass the filter, and stops when there are enough or the bound is
// reached. With keep_order "submit" the batch is a function of weights, seeds and prompts alone,
// whatever the order in which answers end. Owned by the loop; one thread, beside the engine's own.
// An engine that fails is out: what it had goes on with the others, behind the tokens that it gave.
//
//   RolloutManager manager(config, {&engine}, *source, *tokenizer, judge);
//   RolloutBatch batch = manager.generate(rollout_id, weight_version, &token_log);

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "policy/reward_shaping.h"
#include "rl/answer_judge.h"
#include "rl/prompt_source.h"
#include "rl/rl_config.h"
#include "rl/rollout_engine.h"
#include "rl/rollout_events.h"
#include "rl/rollout_sample.h"
#include "rl/token_log.h"

namespace baleen::text {
class Tokenizer;
}  // namespace baleen::text

namespace baleen::rl {

/// Where a run stands in its data; saved with every checkpoint and in every journal entry.
struct DataState {
  int64_t next_group = 0;                // prompts submitted so far
  std::vector<RolloutGroup> unfinished;  // of partial rollouts, taken up before new prompts
};

/// Figures of one rollout that depend on the moment at which things happened.
struct RolloutTimings {
  double seconds = 0.0;
  int64_t aborted_tokens = 0;  // drawn for nothing
  int64_t generated_tokens = 0;
  int64_t resumed_tokens = 0;  // taken from the log of a run that was ended
  int64_t moved_samples = 0;   // taken over from an engine that failed
  int64_t engines = 0;         // that draw, at the end
  double dropped_pending_len_mean = 0.0;
  double reward_milliseconds_p99 = 0.0;  // of one verification
};

class RolloutManager {
 public:
  /// All references outlive the manager. `engines`: at least one, alike; a group stays with one of
  /// them while that one is healthy. `tokenizer` decodes answers for the judge.
  RolloutManager(const RlConfig& config,
                 std::vector<RolloutEngine*> engines,
                 const PromptSource& source,
                 const text::Tokenizer& tokenizer,
                 AnswerJudge& judge);

  /// Throws Error when answers cease to end, every engine fails, or too few groups pass and
  /// on_exhausted says so. `log` may be null.
  RolloutBatch generate(int64_t rollout_id, int64_t version, TokenLog* log);

  const DataState& data() const { return data_; }
  void set_data(DataState data) { data_ = std::move(data); }
  const RolloutTimings& timings() const { return timings_; }

  /// Answers to fixed prompts, one each, in their order, judged by `judge`. `temperature` 0:
  /// greedy.
  std::vector<RolloutSample> answer(const std::vector<Prompt>& prompts,
                                    double temperature,
                                    uint64_t seed,
                                    AnswerJudge& judge);

 private:
  /// A group under way.
  struct Open {
    RolloutGroup group;
    int64_t unfinished = 0;       // answers that the engine still makes
    int64_t unjudged = 0;         // answers whose reward is still being computed
    bool failed = false;          // an answer failed for good
    bool reward_failed = false;   // a verdict did
    bool followers_wait = false;  // for the first token of the first answer: then its prompt
                                  // is in the cache
    bool listed = false;          // in finish_order_
    bool done() const { return unfinished == 0 && unjudged == 0; }
  };
  using OpenPtr = std::unique_ptr<Open>;

  void submit_round(int32_t round);
  void open_group(RolloutGroup group, int32_t round);
  void submit_sample(Open& open, RolloutSample& sample);
  void submit_followers(Open& open);
  std::size_t engine_of(int64_t group) const;
  int64_t num_healthy() const;
  void send(const Prompt& prompt, const RolloutSample& sample);
  std::size_t send(const engine::GenerationRequest& request, int64_t group, int64_t index);
  void restart_sample(Open& open, RolloutSample& sample);
  void move_sample(Open& open, RolloutSample& sample);
  void take(SampleEvent&& event);
  void take_tokens(RolloutSample& sample, engine::OutputEvent& event);
  void finish_sample(Open& open, RolloutSample& sample, SampleStatus status);
  void take_verdict(const Verdict& verdict);
  void wait_for_something();
  void judge_ready(RolloutBatch& batch);
  bool passes(const Open& open, RolloutCounts& counts);
  void forget(const Open& open);
  void stop_pending(RolloutBatch& batch);
  [[noreturn]] void fail_exhausted(const RolloutBatch& batch) const;
  engine::GenerationRequest request_of(const RolloutSample& sample) const;
  bool ends_with_end_token(const RolloutSample& sample) const;
  std::string response_text(const RolloutSample& sample) const;

  const RlConfig& config_;
  std::vector<RolloutEngine*> engines_;
  std::optional<cache::ChoiceLayout> choices_;  // of the engines
  const PromptSource& source_;
  const text::Tokenizer& tokenizer_;
  AnswerJudge& judge_;
  std::shared_ptr<EventQueue> events_ = std::make_shared<EventQueue>();  // shared with the sinks
  DataState data_;
  RolloutTimings timings_;

  // Of the rollout under way.
  policy::FilterCounts filter_counts_;
  int64_t rollout_id_ = 0;
  int64_t version_ = 0;
  TokenLog* log_ = nullptr;
  bool stopping_ = false;                // what is still under way is being ended
  std::deque<OpenPtr> open_;             // by order of submission, not yet kept or dropped
  std::map<int64_t, Open*> group_of_;    // by sample index, of open_ and stopping ones
  std::map<int64_t, std::size_t> live_;  // engine that has the sample
  std::deque<Open*> finish_order_;       // of open_, as they became done
  std::chrono::steady_clock::time_point last_progress_;
};

/// Seed of the draws of a sample: a function of run seed, rollout and sample.
uint64_t sample_seed(uint64_t rollout_seed, int64_t rollout_id, int64_t index);

}  // namespace baleen::rl
