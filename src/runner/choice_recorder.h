#pragma once
// Keeps what every token of the executor's sequences chose, and hands it out with the rows that ask
// for it: the row's own tokens from the step, earlier ones from the table beside the pools. Owned
// by the executor, used on its thread.
//
//   ChoiceRecorder recorder(layout, num_full_pages);
//   recorder.resume(copy);                                  // with the pages' own bytes
//   recorder.record(row, pages, choices, token, result);    // after the forward

#include <cstddef>
#include <cstdint>
#include <optional>

#include "cache/choice_table.h"
#include "cache/resume_point.h"
#include "cache/sequence_cache.h"
#include "cache/sequence_pages.h"
#include "engine/batch_plan.h"
#include "model/forward.h"

namespace baleen::runner {

class ChoiceRecorder {
 public:
  /// `num_full_pages` 0: no shared cache, so no token runs that was run for another sequence.
  ChoiceRecorder(const cache::ChoiceLayout& layout, int64_t num_full_pages);

  void resume(const cache::ResumeCopy& copy);
  /// `first_token`: the row's first token among those of the step.
  void record(const engine::BatchRow& row,
              const cache::SequencePages& pages,
              const model::ForwardChoices& choices,
              std::size_t first_token,
              engine::RowResult& result);

 private:
  void keep(const cache::SequencePages& pages,
            int32_t first_position,
            int32_t count,
            const model::ForwardChoices& choices,
            std::size_t first_token);

  std::optional<cache::ChoiceTable> table_;  // with a shared cache
};

}  // namespace baleen::runner
