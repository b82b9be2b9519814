#pragma once
// An index that knows which index space it belongs to. Ids of different spaces do not mix; turning
// one into another is a named function in one place. -1 is "no id".
//
//   using RequestSlot = StrongId<struct RequestSlotTag>;
//   RequestSlot slot(3);

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace baleen {

template <class Tag, class Rep = int32_t>
class StrongId {
 public:
  using rep = Rep;
  constexpr StrongId() = default;
  constexpr explicit StrongId(Rep value) : value_(value) {}
  constexpr Rep value() const { return value_; }
  constexpr bool valid() const { return value_ >= 0; }
  friend constexpr auto operator<=>(StrongId, StrongId) = default;

 private:
  Rep value_ = -1;
};

using TokenPos = StrongId<struct TokenPosTag>;        // position of a token in its own sequence
using RequestSlot = StrongId<struct RequestSlotTag>;  // row of an executor's per-request state
using LayerIndex = StrongId<struct LayerIndexTag>;  // decoder layer, MTP blocks after the main ones

}  // namespace baleen

template <class Tag, class Rep>
struct std::hash<baleen::StrongId<Tag, Rep>> {
  std::size_t operator()(baleen::StrongId<Tag, Rep> id) const noexcept {
    return std::hash<Rep>{}(id.value());
  }
};
