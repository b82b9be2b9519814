#pragma once
// Two copies of one policy that compute in different formats, as a rollout engine and a trainer do,
// and what that does to the log-probabilities of the same texts: with and without the choices of
// the rollout side replayed on the other. Formats are rounding points of the same code. Pure; one
// thread.
//
//   NumericSide rollout = numeric_side(params, "bf16+fp8kv");
//   ScoredTexts seen = score_recording(rollout, texts);
//   NumericSide trainer = numeric_side(params, "f32");
//   ScoredTexts taken = score_replaying(trainer, texts, seen, {.routes = true});

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cache/choice_records.h"
#include "rl/parity_points.h"
#include "train/choice_replay.h"

namespace baleen::rl {

struct NumericSide {
  model::ModelParameters params;
  ops::Numerics numerics;
  int64_t samples_per_forward =
      0;  // 0: all; what else is in a forward moves last bits of fast sums
};

/// Names of formats, joined by '+': "f32" (nothing rounded, sums in fixed order), "bf16"
/// (matrices), "bf16act" (activations, in the sums of the library), "fp8kv" (rows and entries),
/// "fp8" (matrices, one scale per tensor), "fp8block" (matrices and their inputs as published).
/// Throws ConfigError.
NumericSide numeric_side(const model::ModelParameters& params, std::string_view formats);

struct ScoredTexts {
  std::vector<std::vector<float>> logprobs;   // per text, of each token but the first
  std::vector<cache::ChoiceRecords> choices;  // per text, of each token but the last
  train::ReplayAgreement agreement;           // with the side's own choices, when replaying
};

/// The side chooses for itself.
ScoredTexts score_recording(const NumericSide& side, const std::vector<TokenIds>& texts);
/// The side takes `parts` of `choices`.
ScoredTexts score_replaying(const NumericSide& side,
                            const std::vector<TokenIds>& texts,
                            const std::vector<cache::ChoiceRecords>& choices,
                            train::ReplayParts parts);

/// Gradients of sum over texts of advantage * sum of log-probabilities / all tokens, per class of
/// parameter (the last part of the name), with choices replayed as given.
std::vector<std::pair<std::string, at::Tensor>> policy_gradient(
    const NumericSide& side,
    const std::vector<TokenIds>& texts,
    const std::vector<double>& advantages,
    const std::vector<cache::ChoiceRecords>& choices,
    train::ReplayParts parts);

/// Texts that continue each prompt to `length` tokens, drawn from the side at temperature 1 without
/// the `forbidden` ids: a function of seed and place.
std::vector<TokenIds> sampled_texts(const NumericSide& side,
                                    const std::vector<TokenIds>& prompts,
                                    int64_t length,
                                    std::span<const int32_t> forbidden,
                                    uint64_t seed);

}  // namespace baleen::rl
