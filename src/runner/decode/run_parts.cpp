#include "runner/decode/run_parts.h"

#include <algorithm>

#include "base/check.h"

namespace baleen::runner {

RunParts::RunParts(const RunLimits& limits) : limits_(limits) {
  BALEEN_CHECK(limits.row_tokens > 0 && limits.row_tokens <= limits.graph_tokens &&
                   limits.pass_tokens > 0 && limits.pass_rows > 0 && limits.pass_results > 0,
               "graph_tokens={} row_tokens={} pass_tokens={} pass_rows={} pass_results={}",
               limits.graph_tokens,
               limits.row_tokens,
               limits.pass_tokens,
               limits.pass_rows,
               limits.pass_results);
}

void RunParts::begin_part(bool prompts) {
  RunPart next{.prompts = prompts, .piece_begin = static_cast<int32_t>(pieces_.size())};
  if (!parts_.empty()) {
    next.token_begin = parts_.back().token_begin + parts_.back().num_tokens;
    next.result_begin = parts_.back().result_begin + parts_.back().num_results;
  }
  parts_.push_back(next);
}

void RunParts::add_piece(const RunPiece& piece) {
  pieces_.push_back(piece);
  RunPart& part = parts_.back();
  ++part.num_pieces;
  part.num_tokens += piece.count;
  part.num_results += piece.num_results();
}

void RunParts::split(std::span<const RunRow> rows) {
  parts_.clear();
  pieces_.clear();
  for (const RunRow& row : rows) {
    BALEEN_CHECK(row.tokens > 0 && row.first_result >= 0 && row.first_result <= row.tokens,
                 "tokens={} first_result={}",
                 row.tokens,
                 row.first_result);
  }
  if (!std::all_of(rows.begin(), rows.end(), [this](const RunRow& r) { return fits_graphs(r); })) {
    split_prompts(rows);
    return;
  }
  for (std::size_t r = 0; r < rows.size(); ++r) {
    if (parts_.empty() || parts_.back().num_tokens + rows[r].tokens > limits_.graph_tokens) {
      begin_part(false);
    }
    add_piece({.row = static_cast<int32_t>(r), .count = rows[r].tokens});
  }
}

void RunParts::split_prompts(std::span<const RunRow> rows) {
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const RunRow& row = rows[r];
    for (int32_t first = 0; first < row.tokens;) {
      if (parts_.empty() || parts_.back().num_tokens == limits_.pass_tokens ||
          parts_.back().num_pieces == limits_.pass_rows ||
          (parts_.back().num_results == limits_.pass_results && row.first_result <= first)) {
        begin_part(true);
      }
      const RunPart& part = parts_.back();
      const int32_t end =
          std::min({row.tokens,
                    first + limits_.pass_tokens - part.num_tokens,
                    std::max(first, row.first_result) + limits_.pass_results - part.num_results});
      add_piece({.row = static_cast<int32_t>(r),
                 .first = first,
                 .count = end - first,
                 .first_result = std::clamp(row.first_result, first, end)});
      first = end;
    }
  }
}

}  // namespace baleen::runner
