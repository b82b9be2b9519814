#pragma once
// One forward step as plain data: what the scheduler decided and what came back. Ids only, no
// tensors, no pointers; built without side effects, then committed by Executor::submit. Vectors
// keep their capacity between steps.
//
// What the lists of pages mean: docs/contracts/sequence_cache.md. An executor that keeps its state
// per request slot gets them empty.

#include <cstdint>
#include <utility>
#include <vector>

#include "base/strong_id.h"
#include "cache/choice_records.h"
#include "cache/sequence_cache.h"

namespace baleen::engine {

enum class RowKind : uint8_t {
  kPrefill,  // part or all of a prompt
  kDecode,   // one new token
  kVerify,   // the last token and drafts behind it, which the executor guesses itself
};

/// Consecutive tokens of one sequence that this step runs.
struct BatchRow {
  RequestSlot slot;
  RowKind kind = RowKind::kDecode;
  TokenPos first_position;
  int32_t num_tokens = 0;  // drafts included
  int32_t num_drafts = 0;  // last tokens of a verify row; they are not in BatchPlan::ids
  int32_t ids_offset = 0;  // first token in BatchPlan::ids
  // >= 0: this row of the step in flight runs the same sequence, and its last accepted token is the
  // first one here. The plan counts one accepted token there: each further one moves this row by a
  // position and takes one off its accept_limit, which stays at least 1.
  int32_t follows = -1;
  int32_t sampling_index = -1;  // into BatchPlan::sampling; -1: draw no token (prompt not finished)
  int32_t input_logprobs_from = -1;  // first position whose token's log-prob is wanted, -1: none
  int32_t choices_from = -1;         // first position whose recorded choices are wanted, -1: none
  int32_t next_id = -1;  // the prompt's token behind this part of it, -1: none or not known
  // Rows of the draft layer that others made for other texts: those before draft_begin and row
  // draft_hole (-1: none) are not read.
  int32_t draft_begin = 0;
  int32_t draft_hole = -1;
};

/// How the next token of a row is drawn. The draw is a function of (seed, sample_index, position,
/// logits).
struct SamplingRow {
  float temperature = 1.0F;  // 0: take the largest logit, ties to the lower id
  int32_t top_k = -1;        // -1: all
  float top_p = 1.0F;
  float min_p = 0.0F;
  float frequency_penalty = 0.0F;
  float presence_penalty = 0.0F;
  float repetition_penalty = 1.0F;
  uint64_t seed = 0;
  int32_t sample_index = 0;
  std::vector<std::pair<int32_t, float>> logit_bias;  // token id, added to the logit
  std::vector<int32_t> forbidden_ids;                 // never drawn at this step (min_tokens)
  int32_t bitmask_row = -1;                           // row of the grammar mask, -1: none
  int32_t forced_id = -1;    // the token is this one, whatever the logits say; -1: drawn
  int32_t accept_limit = 1;  // most tokens the row may accept in this step
  bool want_logprobs = false;
  int32_t top_logprobs = 0;
};

/// A slot that begins a sequence in this step.
struct SlotReset {
  RequestSlot slot;
  int32_t first_position = 0;      // tokens before it are in the cache
  std::vector<int32_t> generated;  // tokens drawn before the sequence was preempted, for penalties
  bool drafts = false;             // the draft layer runs for this sequence
};

/// The parts of a step run in this order: end captures, page changes, resets, resume copies, rows,
/// captures of the pass.
struct BatchPlan {
  int64_t step = 0;  // monotone
  std::vector<BatchRow> rows;
  std::vector<int32_t>
      ids;  // token ids; -1-k is the last token that row k of the step in flight accepts
  std::vector<SlotReset> resets;
  std::vector<cache::CaptureJob> end_captures;  // of sequences that ended or were preempted
  std::vector<cache::PageChange> pages;         // of the page tables, in order
  std::vector<cache::ResumeCopy> copies;
  std::vector<cache::CaptureJob> captures;
  std::vector<SamplingRow> sampling;
};

struct TokenLogprob {
  int32_t id = -1;
  // Natural logarithm. Drawn tokens: after bias, mask, penalties and temperature (1 when greedy),
  // before truncation. Prompt tokens: of the plain logits.
  float logprob = 0.0F;
};

struct RowResult {
  std::vector<int32_t> ids;     // accepted tokens: none, one, or several after a verify
  std::vector<float> logprobs;  // one per accepted token where wanted
  std::vector<std::vector<TokenLogprob>> top_logprobs;  // best first, one list per accepted token
  std::vector<TokenLogprob> input_logprobs;             // positions max(1, from) .. end of the row
  int32_t num_drafted = 0;  // drafts that a verify row tried; of them ids.size() - 1 stood
  /// Where wanted: of positions min(from, first of the row) .. end of the row, refused drafts
  /// included. An executor without a shared cache begins at the row's first.
  cache::ChoiceRecords choices;
  bool nan_logits = false;   // NaN or +inf, or no token left to draw; ids is empty
  bool out_of_room = false;  // no further token of this sequence can be run: it ends with kLength
};

struct StepResult {
  int64_t step = 0;
  std::vector<RowResult> rows;  // as BatchPlan::rows
};

}  // namespace baleen::engine
