#pragma once
// Choices of consecutive tokens of one sequence as they travel: from the executor with a step's
// result, and to the caller at the end of its request. Plain data; sizes follow from ChoiceLayout.
//
//   take_choices(known, step_records, /*end=*/position + 1, layout);
//   ChoiceReader reader(layout, records);
//   std::vector<int32_t> experts = reader.experts(position, /*routed_layer=*/0);

#include <cstdint>
#include <vector>

#include "cache/choice_layout.h"

namespace baleen::cache {

struct ChoiceRecords {
  int32_t first_position = 0;
  int32_t count = 0;            // positions
  std::vector<uint8_t> routes;  // count * route_bytes
  std::vector<uint8_t> picks;   // the tokens' picks one after another

  int32_t end() const { return first_position + count; }
  friend bool operator==(const ChoiceRecords&, const ChoiceRecords&) = default;
};

/// Appends to `known` what `more` has of the positions [known.end(), end). What is known already
/// stays as it is: a token that runs again keeps its first record. A gap is a programmer error.
void take_choices(ChoiceRecords& known,
                  const ChoiceRecords& more,
                  int32_t end,
                  const ChoiceLayout& layout);

/// Reads records by position. Keeps references; builds an index of the picks. Throws Error when the
/// bytes do not fit the layout, or are no valid record.
class ChoiceReader {
 public:
  ChoiceReader(const ChoiceLayout& layout, const ChoiceRecords& records);

  /// Ascending expert ids; `routed_layer` counts layout.routed_layers.
  std::vector<int32_t> experts(int32_t position, std::size_t routed_layer) const;
  /// Ascending entries; `picking_layer` counts layout.picking_layers.
  std::vector<int32_t> picks(int32_t position, std::size_t picking_layer) const;

 private:
  std::size_t row_of(int32_t position) const;

  const ChoiceLayout& layout_;
  const ChoiceRecords& records_;
  std::vector<int64_t> pick_begin_;  // per position, and the end
};

}  // namespace baleen::cache
