#pragma once
// Scores given token sequences: logits of every position, log-probabilities of the tokens that
// follow, and MTP logits, written to one safetensors file. The cut of the sequences into steps is
// the caller's choice and does not change the result beyond rounding. One thread.
//
//   write_scores(model, sequences, {.chunk = 128}, "out.safetensors");

#include <cstdint>
#include <filesystem>
#include <vector>

#include "model/forward.h"

namespace baleen::runner {

struct ScoreOptions {
  int64_t chunk = 0;    // tokens of a step; 0: not in chunks
  int64_t prefill = 0;  // tokens of the first step, then one by one; 0: not so
};

/// Lengths of the steps that a sequence of `num_tokens` is run in: whole by default. Throws
/// ConfigError when both options are given or one is negative.
std::vector<int64_t> score_steps(int64_t num_tokens, const ScoreOptions& options);

/// Per sequence i: `logits.i` [T, V]; `logprobs.i` [T-1], of token t+1 at row t at temperature 1;
/// with the model's MTP block on `mtp_logits.i` [T-1, V], row t about token t+2. All in the model's
/// compute type. Throws ConfigError naming the sequence when it is empty, longer than the model's
/// context or holds an id outside the vocabulary; nothing is written then.
void write_scores(model::Model& model,
                  const std::vector<std::vector<int32_t>>& sequences,
                  const ScoreOptions& options,
                  const std::filesystem::path& output);

}  // namespace baleen::runner
