#pragma once
// Which parameters are trained. A frozen one has no gradient, no optimizer state, no decay and no
// share in the gradient norm; it is still saved and published. Router biases and hash tables are
// never trained by gradients. Plain data and pure functions.
//
//   FreezeRules rules({.gate = true, .patterns = {"layers\\.0\\..*"}}, params);
//   if (rules.frozen(info)) { ... }

#include <cstdint>
#include <regex>
#include <string>
#include <vector>

#include "model/parameters.h"

namespace baleen::train {

enum class FreezeMixing : uint8_t { kNone, kComb, kAll };  // of the hyper-connections

struct FreezeConfig {
  bool gate = false;     // router matrices
  bool indexer = false;  // no gradient reaches it but from its own objective
  bool mtp = false;      // MTP blocks, where their loss has no weight
  FreezeMixing mixing = FreezeMixing::kNone;
  /// Regular expressions that match a whole published name; experts of a layer are frozen together,
  /// so the expert's number is written "*" there: "layers\.3\.ffn\.experts\.\*\.w1\.weight".
  std::vector<std::string> patterns = {};
};

class FreezeRules {
 public:
  /// Throws ConfigError naming a pattern that is no regular expression or matches no parameter.
  FreezeRules(FreezeConfig config, model::ModelParameters& params);

  bool frozen(const model::ParameterInfo& info) const;
  /// Rows along dim 0 whose gradient is set to zero although the tensor is trained: [first, end).
  /// The residual part of the mixing, with FreezeMixing::kComb; else empty.
  struct Rows {
    int64_t first = 0;
    int64_t end = 0;
  };
  Rows still_rows(const model::ParameterInfo& info, int64_t num_streams) const;

 private:
  FreezeConfig config_;
  std::vector<std::regex> patterns_;
};

}  // namespace baleen::train
