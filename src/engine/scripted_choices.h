#pragma once
// The made-up choices of the scripted executor: of each token a function of its id and position.
//
//   cache::ChoiceRecords records = scripted_choices(layout, ids, first_position);

#include <cstdint>
#include <span>

#include "cache/choice_records.h"

namespace baleen::engine {

/// Token i of `ids` stands at first_position + i.
cache::ChoiceRecords scripted_choices(const cache::ChoiceLayout& layout,
                                      std::span<const int32_t> ids,
                                      int32_t first_position);

}  // namespace baleen::engine
