#pragma once
// What the rows of an executor's latest step accepted: rows of the next step that follow them begin
// with the last of it, behind all of it. Owned by an executor, used on its thread.
//
//   int32_t id = accepted.resolve(plan.ids[i]);        // of a plan that follows the kept step
//   BatchRow placed = accepted.placed(plan.rows[k]);
//   int32_t limit = accepted.limit(row, sampling);
//   accepted.keep(result);                             // when the step's tokens are drawn

#include <algorithm>
#include <cstdint>
#include <vector>

#include "engine/batch_plan.h"

namespace baleen::engine {

class AcceptedTokens {
 public:
  void keep(const StepResult& result) {
    rows_.clear();
    for (const RowResult& row : result.rows) {
      rows_.push_back({row.ids.empty() ? 0 : row.ids.back(), static_cast<int32_t>(row.ids.size())});
    }
  }
  /// `id` itself, or for -1-k what row k accepted last. A row that drew nothing has ended its
  /// request: whatever follows it is thrown away, and any token will do.
  int32_t resolve(int32_t id) const {
    return id >= 0 ? id : rows_.at(static_cast<size_t>(-1 - id)).last_id;
  }
  /// Positions by which the row lies behind its planned place.
  int32_t shift(const BatchRow& row) const {
    return row.follows < 0 ? 0
                           : std::max(0, rows_.at(static_cast<size_t>(row.follows)).num_tokens - 1);
  }
  /// The row where it lies.
  BatchRow placed(const BatchRow& row) const {
    BatchRow out = row;
    out.first_position = TokenPos(row.first_position.value() + shift(row));
    return out;
  }
  /// Most tokens that the row may accept, and one more than it may draft. Behind a row that drew
  /// nothing there is nothing to draft from.
  int32_t limit(const BatchRow& row, const SamplingRow& sampling) const {
    return follows_nothing(row) ? 1 : std::max(1, sampling.accept_limit - shift(row));
  }

 private:
  bool follows_nothing(const BatchRow& row) const {
    return row.follows >= 0 && rows_.at(static_cast<size_t>(row.follows)).num_tokens == 0;
  }

  struct Row {
    int32_t last_id = 0;
    int32_t num_tokens = 0;
  };
  std::vector<Row> rows_;
};

}  // namespace baleen::engine
