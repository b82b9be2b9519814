#pragma once
// How the rows of a step are laid on passes. Rows of one or a few tokens go into captured graphs,
// as many as one holds. A step with a row that is longer, or wants results behind some of its
// tokens only, is laid on passes of prompts, all rows of it: a decoded token costs little beside
// the weights that the pass reads anyway. Long rows are cut. Pure; nothing is allocated behind the
// largest step so far.
//
//   RunParts parts({.graph_tokens = 64, .row_tokens = 4, .pass_tokens = 512});
//   parts.split(rows);
//   for (const RunPart& part : parts.parts()) { ... parts.pieces_of(part) ... }

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace baleen::runner {

struct RunRow {
  int32_t tokens = 0;
  int32_t first_result = 0;  // results are wanted behind this token of the row and all after it
};

/// Tokens [first, first + count) of a row, results behind those from `first_result` on.
struct RunPiece {
  int32_t row = 0;
  int32_t first = 0;
  int32_t count = 0;
  int32_t first_result = 0;  // in first .. first + count; the latter: none

  int32_t num_results() const { return first + count - first_result; }
  friend bool operator==(const RunPiece&, const RunPiece&) = default;
};

/// What one pass runs; tokens and results are counted over the whole step.
struct RunPart {
  bool prompts = false;
  int32_t piece_begin = 0;
  int32_t num_pieces = 0;
  int32_t token_begin = 0;
  int32_t num_tokens = 0;
  int32_t result_begin = 0;
  int32_t num_results = 0;
  friend bool operator==(const RunPart&, const RunPart&) = default;
};

struct RunLimits {
  int32_t graph_tokens = 0;   // of one captured graph
  int32_t row_tokens = 0;     // of one row in a graph, at most graph_tokens
  int32_t pass_tokens = 0;    // of one pass of prompts
  int32_t pass_rows = 64;     // sequences of such a pass
  int32_t pass_results = 64;  // results of such a pass
};

class RunParts {
 public:
  explicit RunParts(const RunLimits& limits);

  /// Every row has a token at least, and 0 <= first_result <= tokens.
  void split(std::span<const RunRow> rows);

  std::span<const RunPart> parts() const { return parts_; }
  std::span<const RunPiece> pieces_of(const RunPart& part) const {
    return std::span(pieces_).subspan(static_cast<std::size_t>(part.piece_begin),
                                      static_cast<std::size_t>(part.num_pieces));
  }

 private:
  bool fits_graphs(const RunRow& row) const {
    return row.first_result == 0 && row.tokens <= limits_.row_tokens;
  }
  void begin_part(bool prompts);
  void add_piece(const RunPiece& piece);
  void split_prompts(std::span<const RunRow> rows);

  RunLimits limits_;
  std::vector<RunPart> parts_;
  std::vector<RunPiece> pieces_;
};

}  // namespace baleen::runner
