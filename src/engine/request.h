#pragma once
// What a caller hands to the engine and what it gets back. One GenerationRequest is one token
// stream; n > 1 answers are n requests with sample_index 0 .. n-1 and one seed.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "cache/choice_arrays.h"
#include "cache/choice_records.h"
#include "engine/batch_plan.h"
#include "text/output_stream.h"

namespace baleen::text {
class Grammar;
}  // namespace baleen::text

namespace baleen::engine {

struct SamplingConfig {
  float temperature = 1.0F;         // >= 0; below 1e-6 is greedy
  int32_t top_k = -1;               // -1 or >= 1
  float top_p = 1.0F;               // (0, 1]
  float min_p = 0.0F;               // [0, 1]
  float frequency_penalty = 0.0F;   // [-2, 2]
  float presence_penalty = 0.0F;    // [-2, 2]
  float repetition_penalty = 1.0F;  // (0, 2]; like the other two, of generated tokens
  std::vector<std::pair<int32_t, float>> logit_bias;  // finite, ids of the vocabulary
  std::optional<uint64_t> seed;                       // none: the engine draws one
  int32_t sample_index = 0;
};

struct GenerationRequest {
  std::string id;               // unique among live requests
  std::vector<int32_t> prompt;  // at least one token
  SamplingConfig sampling;
  int32_t max_new_tokens = 128;         // >= 0; bounded by the context; 0: the prompt only
  int32_t min_new_tokens = 0;           // [0, max_new_tokens]; no end or stop token before
  std::vector<int32_t> stop_token_ids;  // besides the end token
  bool ignore_eos = false;
  bool want_logprobs = false;
  int32_t top_logprobs = 0;  // [0, 20]
  bool want_prompt_logprobs = false;
  bool want_routes = false;  // experts of every token, prompt included; executors that record them
  bool want_picks = false;   // entries that the indexer picked, likewise
  int32_t choices_from = 0;  // [0, prompt tokens]: first position of both
  // >= 1; once reasoning has min(budget, max_new_tokens - min(512, max_new_tokens / 4)) tokens, the
  // next one is </think>.
  std::optional<int32_t> reasoning_budget;
  // Most drafts of a step, 0: no speculation. None: as many as the engine makes. Whatever it is, a
  // greedy request and, with coupled draws, any other gets the same tokens.
  std::optional<int32_t> max_drafts;
  int32_t priority = 0;  // larger goes first
  std::string client;    // waits its turn against other clients; empty is a client too
  text::OutputConfig output;
  // What the answer must follow, from its first token or, where it starts in reasoning, from the
  // token behind </think>; ends are forbidden before. Not with min_new_tokens or ignore_eos.
  std::shared_ptr<const text::Grammar> grammar;
};

enum class FinishReason : uint8_t { kStop, kLength, kAbort, kError };

struct GeneratedToken {
  int32_t id = -1;
  float logprob = 0.0F;                    // valid where log-probs were asked for
  std::vector<TokenLogprob> top_logprobs;  // best first
  bool reasoning = false;                  // of the reasoning, its end token included
};

/// What speculation did for a request.
struct DraftCounts {
  int64_t verify_steps = 0;
  int64_t drafted = 0;
  int64_t accepted = 0;  // of the drafted; each verify step gives one token more
};

struct FinishInfo {
  FinishReason reason = FinishReason::kStop;
  std::optional<std::string> matched_stop;    // the stop string
  std::optional<int32_t> matched_stop_token;  // a stop token other than the end token
  text::OutputMessage message;                // the whole answer, as OutputStream settled it
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t reasoning_tokens = 0;
  DraftCounts drafts;
  /// Where routes or picks were asked for: of the positions from `choices_from` on that have run,
  /// which the last generated token has not. Sizes: EngineStats::capacity.choices. What was not
  /// asked for is empty.
  std::optional<cache::ChoiceRecords> choices;
  /// With `choices`: of the layers that are not recorded because the token decides; null: none.
  std::shared_ptr<const cache::TokenRoutes> token_routes;
  /// Tokens that ran again, after a preemption or new weights: their first record stays.
  int64_t recomputed_tokens = 0;
  std::shared_ptr<const std::string> weight_version;  // name of the weights at the end
  Status error;                                       // for kError and kAbort: why
};

struct OutputEvent {
  std::vector<text::OutputDelta> deltas;
  std::vector<GeneratedToken> tokens;                 // new tokens of this step
  std::shared_ptr<const std::string> weight_version;  // name of the weights that drew them
  // Once, with the first event, where asked for; entry i is of prompt token i + 1.
  std::vector<TokenLogprob> prompt_logprobs;
  std::optional<FinishInfo> finish;  // last event of the request
};

/// Receives a request's events on the engine's thread, in order. Must not block and must not throw.
class OutputSink {
 public:
  virtual ~OutputSink() = default;
  virtual void on_event(OutputEvent&& event) = 0;
};

}  // namespace baleen::engine
