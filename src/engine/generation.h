#pragma once
// The rules of one token stream: how its next token is drawn, what each accepted token does to it,
// and when and why it ends. Knows nothing of slots, steps and threads. One per live request, owned
// by the engine, used on its thread.
//
//   Generation generation(std::move(request), rules, tokenizer, seed);
//   generation.fill_sampling(row);                  // before a step that draws
//   if (generation.accept(result, event)) { ... }   // after it; true: ended, event.finish is set

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "cache/choice_records.h"
#include "engine/batch_plan.h"
#include "engine/request.h"
#include "engine/request_queue.h"
#include "text/grammar.h"
#include "text/output_stream.h"

namespace baleen::engine {

/// What all requests of an engine share.
struct GenerationRules {
  std::vector<int32_t> end_token_ids;
  int32_t reasoning_end_id = -1;  // -1: none
  int32_t markup_id = -1;         // the token in every tag of tool calls; -1: none
  int64_t max_context = 0;        // tokens
  int64_t vocab_size = 0;
  std::optional<cache::ChoiceLayout> choices = std::nullopt;  // what the executor records
};

class Generation {
 public:
  /// `request` has passed check_request. `seed` is used where the request has none.
  Generation(GenerationRequest request,
             const GenerationRules& rules,
             std::shared_ptr<const text::Tokenizer> tokenizer,
             uint64_t seed);

  const std::string& id() const { return request_.id; }
  QueuePlace place() const { return {request_.priority, request_.client}; }
  int32_t num_prompt_tokens() const { return num_prompt_tokens_; }
  int32_t num_generated() const { return num_generated_; }
  int32_t max_new_tokens() const { return max_new_tokens_; }
  /// Prompt and generated tokens.
  const std::vector<int32_t>& tokens() const { return tokens_; }
  bool draws_tokens() const { return max_new_tokens_ > 0; }
  /// False once they were handed over: a preempted request does not score its prompt twice.
  bool wants_prompt_logprobs() const { return request_.want_prompt_logprobs && first_event_; }
  /// First position whose choices are not known yet; -1: none are wanted.
  int32_t choices_from() const { return choices_ ? choices_->end() : -1; }

  /// Each next token depends on the one before in a way that the executor does not know.
  bool has_grammar() const { return grammar_.has_value(); }
  /// The next token is drawn under a mask.
  bool wants_mask() const { return grammar_ && !stream_.in_reasoning(); }
  /// The tokens that may come next, 32 per word.
  void fill_mask(std::span<uint32_t> bits) const { grammar_->fill_mask(bits); }

  /// Most drafts of a step that the request wants; -1: as many as the engine makes.
  int32_t draft_limit() const { return request_.max_drafts.value_or(-1); }
  /// Drafts of the next step that can stand: limits, and rules that change the draw, end a step.
  /// `ahead` tokens before it are not known yet.
  int32_t most_drafts(int32_t ahead = 0) const {
    return draws_tokens() ? accept_limit(num_generated_ + ahead) - 1 : 0;
  }
  /// Parameters of the next draw, `ahead` tokens behind the last known one; its mask apart. Assigns
  /// every field; keeps the row's capacity.
  void fill_sampling(SamplingRow& row, int32_t ahead = 0) const;
  /// Whether those parameters are the same for any 1 to `most` tokens before it, whatever they are,
  /// and the request need not end with the first of them.
  bool can_run_ahead(int32_t most) const;
  /// The sequence begins, or begins again after a preemption, behind `num_cached` tokens.
  void begin(int32_t num_cached);
  /// Keeps the prompt's log-probs of a row for the first event.
  void keep_prompt_logprobs(std::vector<TokenLogprob>&& logprobs);
  /// Keeps the choices of a row's tokens as far as they are final: before accept(), which settles
  /// how many of a row that drew are, or finish_prompt_only(). `first`: position of the row's first
  /// token; records of earlier ones come from the cache.
  void keep_choices(cache::ChoiceRecords&& records, int32_t first);
  /// Takes what was kept, up to position `end`.
  void settle_choices(int32_t end);
  /// Takes the tokens of a row that drew, up to the first that ends the request. Fills `event` and
  /// returns true when the request has ended. Throws Error when the result breaks the contract.
  bool accept(RowResult&& result, OutputEvent& event);
  /// Ends a request that draws no token, after its prompt.
  void finish_prompt_only(OutputEvent& event);
  /// Ends the request from outside: kAbort or kError.
  void finish(FinishReason reason, Status error, OutputEvent& event);

  /// Valid after the end.
  int64_t unparsable_tool_blocks() const { return stream_.unparsable_tool_blocks(); }

 private:
  int32_t accept_limit(int32_t num_generated) const;
  bool forbids_ends(int32_t num_generated) const { return num_generated < request_.min_new_tokens; }
  bool is_end_token(int32_t id) const;
  void take_token(RowResult& result, size_t index, OutputEvent& event);
  bool ends_with(int32_t id, OutputEvent& event);
  void settle(FinishReason reason, text::EndCause cause, OutputEvent& event);

  GenerationRequest request_;
  const GenerationRules& rules_;  // the engine's; outlives its requests
  text::OutputStream stream_;
  std::optional<text::GrammarMatcher> grammar_;
  std::vector<int32_t> tokens_;
  std::vector<TokenLogprob> prompt_logprobs_;
  std::optional<cache::ChoiceRecords> choices_;  // where wanted
  cache::ChoiceRecords row_choices_;             // of the row under way, refused drafts included
  int64_t recomputed_tokens_ = 0;                // ran again although their choices were known
  uint64_t seed_;
  int32_t num_prompt_tokens_;
  int32_t num_generated_ = 0;
  int32_t num_cached_ = -1;  // prompt tokens from the cache at the first admission; -1: none yet
  int32_t max_new_tokens_;
  int32_t reasoning_limit_;  // tokens; -1: no budget
  DraftCounts drafts_;
  bool first_event_ = true;
};

}  // namespace baleen::engine
