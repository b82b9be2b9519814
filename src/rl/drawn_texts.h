#pragma once
// Texts that a running engine draws, with the log-probabilities that it reports, for comparing them
// with those of other passes. One thread besides the engine's.
//
//   std::vector<DrawnText> drawn = draw_texts(std::move(executor), tokenizer, prompts, options);
//   DrawnDifference difference = compare_drawn(drawn, trainer_points(params, texts, pass));

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cache/choice_records.h"
#include "engine/executor.h"
#include "rl/parity_points.h"
#include "text/tokenizer.h"

namespace baleen::rl {

struct DrawOptions {
  int64_t new_tokens = 32;
  double temperature = 1.0;
  uint64_t seed = 1;
  int32_t chunk = 512;   // prompt tokens of one text in one step
  bool choices = false;  // want routes and picks
  int32_t max_drafts = 0;
};

struct DrawnText {
  TokenIds ids;                 // behind the prompt
  std::vector<float> logprobs;  // of those
  cache::ChoiceRecords choices;
  int64_t cached_tokens = 0;
};

/// All at once. Throws Error when a text does not come to its full length.
std::vector<DrawnText> draw_texts(std::unique_ptr<engine::Executor> executor,
                                  std::shared_ptr<const text::Tokenizer> tokenizer,
                                  const std::vector<TokenIds>& prompts,
                                  const DrawOptions& options);

/// Difference of a pass from what the engine reported.
struct DrawnDifference {
  int64_t tokens = 0;
  int64_t other_bits = 0;
  double mean_abs = 0.0;
  double max = 0.0;
};
/// `points`: of prompts with the drawn tokens behind them.
DrawnDifference compare_drawn(const std::vector<DrawnText>& drawn,
                              const std::vector<TokenPoints>& points);

}  // namespace baleen::rl
