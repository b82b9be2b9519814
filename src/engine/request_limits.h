#pragma once
// What a request must satisfy to be accepted, apart from load: ranges, vocabulary, context. Pure;
// any thread.
//
//   Status status = check_request(request, limits);

#include <cstdint>

#include "base/result.h"
#include "engine/executor.h"
#include "engine/request.h"

namespace baleen::engine {

struct RequestLimits {
  int64_t max_context = 0;     // tokens of prompt and answer together
  bool cache_is_less = false;  // they are what the cache holds, the model could take more
  int64_t vocab_size = 0;
  bool has_reasoning_end = false;  // a reasoning budget can be kept
  bool records_choices = false;    // routes and picks can be given
};

inline constexpr int32_t kMaxTopLogprobs = 20;
inline constexpr float kGreedyTemperature = 1e-6F;  // below: the largest logit

/// Tokens that the executor's cache holds in all, 0 without a cache.
int64_t cached_tokens_at_most(const ExecutorCapacity& capacity);
/// Most tokens of a sequence: what the model takes, or the cache if that holds less.
int64_t usable_context(const ExecutorCapacity& capacity);

/// kInvalidArgument with `param` = the field at fault; a prompt that leaves no room has api_code
/// context_length_exceeded.
Status check_request(const GenerationRequest& request, const RequestLimits& limits);

/// Tokens that a request may generate: its own limit and what the context leaves.
int32_t effective_max_new_tokens(int32_t max_new_tokens,
                                 int64_t num_prompt_tokens,
                                 int64_t max_context);

/// Reasoning tokens after which the end of reasoning is forced.
int32_t reasoning_limit(int32_t budget, int32_t max_new_tokens);

}  // namespace baleen::engine
