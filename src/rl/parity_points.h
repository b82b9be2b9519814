#pragma once
// The named intermediate values of a forward, cut into what belongs to one token, so that two
// passes over the same texts can be compared although one ran token by token and the other packed.
// A compressed entry belongs to the token that completes it; of scores and picks a token has those
// of the entries that it sees. Made by one pass, then read; one thread.
//
//   EnginePass pass{.numerics = numerics, .prefill = 7};
//   std::vector<TokenPoints> engine = engine_points(params, samples, pass);
//   std::vector<TokenPoints> trainer = trainer_points(params, samples, {.numerics = numerics});

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "model/choices.h"
#include "model/parameters.h"
#include "model/sequence_state.h"
#include "model/trace.h"
#include "ops/numerics_config.h"

namespace baleen::rl {

using TokenIds = std::vector<int32_t>;

/// Of one text: per point and token the values, flat, in the compute type (ids: i64, picks: bool).
/// Tokens without a value at a point have an undefined tensor.
class TokenPoints {
 public:
  explicit TokenPoints(int64_t num_tokens) : num_tokens_(num_tokens) {}

  int64_t num_tokens() const { return num_tokens_; }
  void set(const std::string& point, int64_t token, const at::Tensor& value);
  /// Per token; the point must be there (checked).
  const std::vector<at::Tensor>& at(const std::string& point) const;
  bool contains(const std::string& point) const { return points_.contains(point); }
  const std::map<std::string, std::vector<at::Tensor>>& points() const { return points_; }

 private:
  int64_t num_tokens_;
  std::map<std::string, std::vector<at::Tensor>> points_;
};

/// How the serving side runs a text: its first tokens at once, the others one by one.
struct EnginePass {
  ops::Numerics numerics;
  int64_t prefill = 1;       // tokens of the first step
  int64_t chunk = 1;         // tokens of every further step
  double temperature = 1.0;  // of the log-probabilities
  /// Called before each step with the position that it begins at; for experiments.
  std::function<void(model::SequenceState&, int64_t position)> before_step = {};
};

/// How the training side runs the texts: packed, without gradients.
struct TrainerPass {
  ops::Numerics numerics;
  int64_t pad_multiple = 1;
  double temperature = 1.0;
  int64_t target_shift = 0;  // added to the place of each target; 0 is right
  /// Choices taken instead of made, in rows and groups of the texts packed in their order; null:
  /// no.
  const model::ChoicesByLayer* given = nullptr;
};

/// Of each text all tokens but the last, which is a target only. Point "logprob" is that of the
/// next token.
std::vector<TokenPoints> engine_points(const model::ModelParameters& params,
                                       const std::vector<TokenIds>& samples,
                                       const EnginePass& pass);
std::vector<TokenPoints> trainer_points(const model::ModelParameters& params,
                                        const std::vector<TokenIds>& samples,
                                        const TrainerPass& pass);

}  // namespace baleen::rl
