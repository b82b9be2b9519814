#include "engine/request_limits.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace baleen::engine {
namespace {

Status bad(const char* param, std::string message) {
  return Status::invalid(std::move(message), param);
}

Status check_sampling(const SamplingConfig& s, const RequestLimits& limits) {
  // Written so that NaN fails.
  if (!(s.temperature >= 0.0F) || !std::isfinite(s.temperature)) {
    return bad("temperature", fmt::format("temperature must be at least 0, is {}", s.temperature));
  }
  if (s.top_k != -1 && s.top_k < 1) {
    return bad("top_k", fmt::format("top_k must be -1 (all) or at least 1, is {}", s.top_k));
  }
  if (!(s.top_p > 0.0F && s.top_p <= 1.0F)) {
    return bad("top_p", fmt::format("top_p must be in (0, 1], is {}", s.top_p));
  }
  if (!(s.min_p >= 0.0F && s.min_p <= 1.0F)) {
    return bad("min_p", fmt::format("min_p must be in [0, 1], is {}", s.min_p));
  }
  if (!(s.frequency_penalty >= -2.0F && s.frequency_penalty <= 2.0F)) {
    return bad("frequency_penalty",
               fmt::format("frequency_penalty must be in [-2, 2], is {}", s.frequency_penalty));
  }
  if (!(s.presence_penalty >= -2.0F && s.presence_penalty <= 2.0F)) {
    return bad("presence_penalty",
               fmt::format("presence_penalty must be in [-2, 2], is {}", s.presence_penalty));
  }
  if (!(s.repetition_penalty > 0.0F && s.repetition_penalty <= 2.0F)) {
    return bad("repetition_penalty",
               fmt::format("repetition_penalty must be in (0, 2], is {}", s.repetition_penalty));
  }
  for (const auto& [id, bias] : s.logit_bias) {
    if (id < 0 || id >= limits.vocab_size) {
      return bad(
          "logit_bias",
          fmt::format(
              "logit_bias names token {}, the vocabulary has {} tokens", id, limits.vocab_size));
    }
    if (!std::isfinite(bias)) {
      return bad("logit_bias", fmt::format("logit_bias of token {} must be finite", id));
    }
  }
  if (s.sample_index < 0) {
    return bad("sample_index",
               fmt::format("sample_index must be at least 0, is {}", s.sample_index));
  }
  return {};
}

Status check_prompt(const GenerationRequest& request, const RequestLimits& limits) {
  if (request.prompt.empty()) {
    return bad("prompt", "the prompt must have at least one token");
  }
  const auto length = static_cast<int64_t>(request.prompt.size());
  const int64_t longest = limits.max_context - (request.max_new_tokens > 0 ? 1 : 0);
  if (length > longest) {
    return Status::invalid(
        fmt::format("the prompt has {} tokens; {} {} tokens, the answer included",
                    length,
                    limits.cache_is_less ? "the cache holds" : "the context is",
                    limits.max_context),
        "prompt",
        "context_length_exceeded");
  }
  for (size_t i = 0; i < request.prompt.size(); ++i) {
    const int32_t id = request.prompt[i];
    if (id < 0 || id >= limits.vocab_size) {
      return bad(
          "prompt",
          fmt::format(
              "prompt token {} is {}, the vocabulary has {} tokens", i, id, limits.vocab_size));
    }
  }
  return {};
}

Status check_stops(const GenerationRequest& request, const RequestLimits& limits) {
  for (const int32_t id : request.stop_token_ids) {
    if (id < 0 || id >= limits.vocab_size) {
      return bad("stop_token_ids",
                 fmt::format("stop_token_ids names token {}, the vocabulary has {} tokens",
                             id,
                             limits.vocab_size));
    }
  }
  for (const std::string& text : request.output.stop) {
    if (text.empty()) {
      return bad("stop", "a stop string must not be empty");
    }
  }
  return {};
}

}  // namespace

int64_t cached_tokens_at_most(const ExecutorCapacity& capacity) {
  return capacity.cache
             ? int64_t{capacity.cache->sizes.full_pages} * capacity.cache->geometry.page_tokens
             : 0;
}

int64_t usable_context(const ExecutorCapacity& capacity) {
  return capacity.cache ? std::min(capacity.max_context, cached_tokens_at_most(capacity))
                        : capacity.max_context;
}

Status check_request(const GenerationRequest& request, const RequestLimits& limits) {
  if (request.id.empty()) {
    return bad("id", "the request id must not be empty");
  }
  if (request.max_new_tokens < 0) {
    return bad("max_new_tokens",
               fmt::format("max_new_tokens must be at least 0, is {}", request.max_new_tokens));
  }
  if (request.min_new_tokens < 0 || request.min_new_tokens > request.max_new_tokens) {
    return bad("min_new_tokens",
               fmt::format("min_new_tokens must be in [0, max_new_tokens = {}], is {}",
                           request.max_new_tokens,
                           request.min_new_tokens));
  }
  if (request.grammar && request.min_new_tokens > 0) {
    return bad("min_new_tokens", "min_new_tokens cannot be kept where a grammar says when it ends");
  }
  if (request.grammar && request.ignore_eos) {
    return bad("ignore_eos", "ignore_eos cannot be kept where a grammar says when the answer ends");
  }
  if (request.top_logprobs < 0 || request.top_logprobs > kMaxTopLogprobs) {
    return bad(
        "top_logprobs",
        fmt::format(
            "top_logprobs must be in [0, {}], is {}", kMaxTopLogprobs, request.top_logprobs));
  }
  if (request.top_logprobs > 0 && !request.want_logprobs) {
    return bad("top_logprobs", "top_logprobs needs logprobs to be asked for");
  }
  if (request.max_drafts && *request.max_drafts < 0) {
    return bad("max_drafts",
               fmt::format("max_drafts must be at least 0, is {}", *request.max_drafts));
  }
  if ((request.want_routes || request.want_picks) && !limits.records_choices) {
    return bad(request.want_routes ? "want_routes" : "want_picks",
               "this server does not record choices; start it with --record-choices");
  }
  const auto num_prompt_tokens = static_cast<int64_t>(request.prompt.size());
  if (request.choices_from < 0 || request.choices_from > num_prompt_tokens) {
    return bad("choices_from",
               fmt::format("choices_from must be in [0, prompt tokens = {}], is {}",
                           num_prompt_tokens,
                           request.choices_from));
  }
  if (request.reasoning_budget) {
    if (*request.reasoning_budget < 1) {
      return bad(
          "reasoning_budget",
          fmt::format("the reasoning budget must be at least 1, is {}", *request.reasoning_budget));
    }
    if (!limits.has_reasoning_end) {
      return bad("reasoning_budget", "this model has no end-of-reasoning token: no budget is kept");
    }
  }
  if (Status status = check_prompt(request, limits); !status.ok()) {
    return status;
  }
  if (Status status = check_sampling(request.sampling, limits); !status.ok()) {
    return status;
  }
  return check_stops(request, limits);
}

int32_t effective_max_new_tokens(int32_t max_new_tokens,
                                 int64_t num_prompt_tokens,
                                 int64_t max_context) {
  return static_cast<int32_t>(std::min<int64_t>(max_new_tokens, max_context - num_prompt_tokens));
}

int32_t reasoning_limit(int32_t budget, int32_t max_new_tokens) {
  const int32_t reserve = std::min(512, max_new_tokens / 4);
  return std::min(budget, max_new_tokens - reserve);
}

}  // namespace baleen::engine
