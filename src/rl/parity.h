#pragma once
// Finds where two passes over the same texts part: the first point in the order of the forward at
// which a token has other bits, how far apart they are, how many tokens it concerns, and what
// usually causes it. Pure. docs/training/parity.md.
//
//   ParityReport report = compare_points(engine, trainer);
//   std::string table = parity_text(report, "engine decode", "trainer");

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rl/parity_points.h"

namespace baleen::rl {

/// How one point differs.
struct PointDifference {
  std::string point;       // as in the trace: "layers.3.attn.kv"
  int64_t order = 0;       // in the forward
  int64_t num_tokens = 0;  // that have other bits
  int64_t of_tokens = 0;   // that have a value on both sides
  int64_t sample = -1;     // first of them
  int64_t position = -1;
  double largest = 0.0;  // absolute difference; of ids and picks: how many are not common
};

struct ParityReport {
  std::vector<PointDifference> points;  // all that were compared, in the order of the forward
  std::vector<std::string> missing;     // points that one side alone has
  int64_t num_tokens = 0;

  /// The earliest point with a difference.
  std::optional<PointDifference> first() const;
  bool equal() const { return !first() && missing.empty(); }
};

/// The same texts in the same order on both sides (checked).
ParityReport compare_points(const std::vector<TokenPoints>& a, const std::vector<TokenPoints>& b);

/// What usually is behind a first difference at this point.
std::string_view parity_hint(std::string_view point);

/// A table: the first differing point of every layer, then the verdict with its hint.
std::string parity_text(const ParityReport& report, std::string_view a, std::string_view b);

}  // namespace baleen::rl
