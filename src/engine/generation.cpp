#include "engine/generation.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/error.h"
#include "engine/request_limits.h"

namespace baleen::engine {
namespace {

bool contains(const std::vector<int32_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

Generation::Generation(GenerationRequest request,
                       const GenerationRules& rules,
                       std::shared_ptr<const text::Tokenizer> tokenizer,
                       uint64_t seed)
    : request_(std::move(request)),
      rules_(rules),
      stream_(std::move(tokenizer), request_.output),
      tokens_(std::move(request_.prompt)),
      seed_(request_.sampling.seed.value_or(seed)),
      num_prompt_tokens_(static_cast<int32_t>(tokens_.size())),
      max_new_tokens_(effective_max_new_tokens(
          request_.max_new_tokens, num_prompt_tokens_, rules.max_context)) {
  reasoning_limit_ = request_.reasoning_budget && request_.output.starts_in_reasoning
                         ? reasoning_limit(*request_.reasoning_budget, max_new_tokens_)
                         : -1;
  if (request_.grammar) {
    grammar_.emplace(std::move(request_.grammar));
  }
  tokens_.reserve(tokens_.size() + static_cast<size_t>(max_new_tokens_));
  if (request_.want_routes || request_.want_picks) {
    choices_.emplace().first_position = request_.choices_from;
  }
}

bool Generation::is_end_token(int32_t id) const {
  return !request_.ignore_eos && contains(rules_.end_token_ids, id);
}

bool Generation::can_run_ahead(int32_t most) const {
  if (grammar_ || num_generated_ + 1 >= max_new_tokens_ ||
      forbids_ends(num_generated_ + 1) != forbids_ends(num_generated_ + most)) {
    return false;
  }
  // At its limit, reasoning goes on or not by what the unknown tokens are.
  return reasoning_limit_ < 0 || !stream_.in_reasoning() ||
         num_generated_ + most < reasoning_limit_;
}

void Generation::fill_sampling(SamplingRow& row, int32_t ahead) const {
  const int32_t num_generated = num_generated_ + ahead;
  const SamplingConfig& s = request_.sampling;
  row.temperature = s.temperature < kGreedyTemperature ? 0.0F : s.temperature;
  row.top_k = s.top_k;
  row.top_p = s.top_p;
  row.min_p = s.min_p;
  row.frequency_penalty = s.frequency_penalty;
  row.presence_penalty = s.presence_penalty;
  row.repetition_penalty = s.repetition_penalty;
  row.seed = seed_;
  row.sample_index = s.sample_index;
  row.logit_bias = s.logit_bias;
  row.bitmask_row = -1;
  row.want_logprobs = request_.want_logprobs;
  row.top_logprobs = request_.top_logprobs;

  row.accept_limit = accept_limit(num_generated);
  row.forbidden_ids.clear();
  if (forbids_ends(num_generated)) {
    if (!request_.ignore_eos) {
      row.forbidden_ids = rules_.end_token_ids;
    }
    row.forbidden_ids.insert(
        row.forbidden_ids.end(), request_.stop_token_ids.begin(), request_.stop_token_ids.end());
  }
  if (grammar_ && stream_.in_reasoning()) {
    // The answer comes after the reasoning: nothing else may end it.
    row.forbidden_ids.insert(
        row.forbidden_ids.end(), rules_.end_token_ids.begin(), rules_.end_token_ids.end());
    row.forbidden_ids.insert(
        row.forbidden_ids.end(), request_.stop_token_ids.begin(), request_.stop_token_ids.end());
    if (rules_.markup_id >= 0) {
      row.forbidden_ids.push_back(rules_.markup_id);
    }
  }
  // Reasoning starts with the first generated token, so all of them are reasoning so far.
  const bool must_end =
      reasoning_limit_ >= 0 && stream_.in_reasoning() && num_generated >= reasoning_limit_;
  row.forced_id = must_end ? rules_.reasoning_end_id : -1;
}

/// A limit that changes the draw or ends the request falls on the end of a step, so that a step of
/// several tokens obeys it as single steps do.
int32_t Generation::accept_limit(int32_t num_generated) const {
  if (grammar_) {
    return 1;
  }
  int32_t limit = max_new_tokens_ - num_generated;
  if (forbids_ends(num_generated)) {
    limit = std::min(limit, request_.min_new_tokens - num_generated);
  }
  if (reasoning_limit_ >= 0 && stream_.in_reasoning()) {
    limit = std::min(limit, std::max(reasoning_limit_ - num_generated, 1));
  }
  return limit;
}

void Generation::begin(int32_t num_cached) {
  if (num_cached_ < 0) {
    num_cached_ = num_cached;
  }
  if (first_event_) {
    prompt_logprobs_.clear();
  }
}

void Generation::keep_prompt_logprobs(std::vector<TokenLogprob>&& logprobs) {
  if (prompt_logprobs_.empty()) {
    prompt_logprobs_ = std::move(logprobs);
  } else {
    prompt_logprobs_.insert(prompt_logprobs_.end(), logprobs.begin(), logprobs.end());
  }
}

void Generation::take_token(RowResult& result, size_t index, OutputEvent& event) {
  GeneratedToken token;
  token.id = result.ids[index];
  token.reasoning = stream_.in_reasoning();
  if (request_.want_logprobs) {
    token.logprob = result.logprobs[index];
    if (request_.top_logprobs > 0) {
      token.top_logprobs = std::move(result.top_logprobs[index]);
    }
  }
  tokens_.push_back(token.id);
  ++num_generated_;
  event.tokens.push_back(std::move(token));
}

bool Generation::ends_with(int32_t id, OutputEvent& event) {
  const bool is_end = is_end_token(id);
  const bool is_stop_token = !is_end && contains(request_.stop_token_ids, id);
  // The text of an end or stop token stays out, unless a raw completion asks for it.
  const bool hides =
      (is_end || is_stop_token) && (request_.output.parse_markup || !request_.output.include_stop);
  if (!hides) {
    stream_.push(id, event.deltas);
  }
  if (is_end || is_stop_token || stream_.stopped()) {
    settle(FinishReason::kStop, text::EndCause::kStop, event);
    event.finish->matched_stop = stream_.matched_stop();
    if (is_stop_token) {
      event.finish->matched_stop_token = id;
    }
    return true;
  }
  if (num_generated_ == max_new_tokens_) {
    settle(FinishReason::kLength, text::EndCause::kLength, event);
    return true;
  }
  return false;
}

void Generation::keep_choices(cache::ChoiceRecords&& records, int32_t first) {
  if (choices_) {
    recomputed_tokens_ += std::max(std::min(records.end(), choices_->end()) - first, 0);
  }
  row_choices_ = std::move(records);
}

void Generation::settle_choices(int32_t end) {
  if (choices_) {
    BALEEN_CHECK(rules_.choices.has_value(), "choices are wanted, but not recorded");
    cache::take_choices(*choices_, row_choices_, end, *rules_.choices);
    row_choices_ = {};
  }
}

bool Generation::accept(RowResult&& result, OutputEvent& event) {
  const size_t num_ids = result.ids.size();
  if (result.num_drafted > 0) {
    ++drafts_.verify_steps;
    drafts_.drafted += result.num_drafted;
    drafts_.accepted += static_cast<int64_t>(std::max<size_t>(num_ids, 1)) - 1;
  }
  if (request_.want_logprobs &&
      (result.logprobs.size() != num_ids ||
       (request_.top_logprobs > 0 && result.top_logprobs.size() != num_ids))) {
    throw Error(fmt::format("the executor gave {} tokens, {} log-probs and {} lists",
                            num_ids,
                            result.logprobs.size(),
                            result.top_logprobs.size()));
  }
  if (num_ids == 0 && !result.out_of_room) {
    throw Error("the executor gave no token for a row that draws one");
  }
  for (size_t i = 0; i < num_ids; ++i) {
    const int32_t id = result.ids[i];
    if (id < 0 || id >= rules_.vocab_size || num_generated_ >= max_new_tokens_) {
      throw Error(fmt::format("the executor gave token {} as number {} of at most {}",
                              id,
                              num_generated_ + 1,
                              max_new_tokens_));
    }
    if (wants_mask() && !grammar_->accept(id)) {
      throw Error(fmt::format("the executor gave token {}, which the mask forbids", id));
    }
    take_token(result, i, event);
    if (ends_with(id, event)) {
      return true;
    }
  }
  if (result.out_of_room) {
    settle(FinishReason::kLength, text::EndCause::kLength, event);
    return true;
  }
  settle_choices(static_cast<int32_t>(tokens_.size()) - 1);
  if (first_event_) {
    event.prompt_logprobs = std::move(prompt_logprobs_);
    first_event_ = false;
  }
  return false;
}

void Generation::finish_prompt_only(OutputEvent& event) {
  settle(FinishReason::kLength, text::EndCause::kLength, event);
}

void Generation::finish(FinishReason reason, Status error, OutputEvent& event) {
  settle(reason, text::EndCause::kAbort, event);
  event.finish->error = std::move(error);
}

void Generation::settle(FinishReason reason, text::EndCause cause, OutputEvent& event) {
  stream_.finish(cause, event.deltas);
  // What the last token chose is not known: it has not run.
  settle_choices(static_cast<int32_t>(tokens_.size()) - (num_generated_ > 0 ? 1 : 0));
  if (first_event_) {
    event.prompt_logprobs = std::move(prompt_logprobs_);
    first_event_ = false;
  }
  FinishInfo& info = event.finish.emplace();
  info.reason = reason;
  info.message = stream_.message();
  info.prompt_tokens = num_prompt_tokens_;
  info.cached_tokens = std::max(num_cached_, 0);
  info.completion_tokens = num_generated_;
  info.reasoning_tokens = stream_.reasoning_tokens();
  info.drafts = drafts_;
  info.choices = std::move(choices_);
  info.recomputed_tokens = recomputed_tokens_;
  if (info.choices && !request_.want_routes) {
    info.choices->routes.clear();
  }
  if (info.choices && !request_.want_picks) {
    info.choices->picks.clear();
  }
}

}  // namespace baleen::engine
