#pragma once
// A position at which a sequence can continue although the tree keeps no window rows before it: a
// checkpoint slot holds the window, the carry rows and, inside a kC128 group, the open group's
// rows. Host side only; the payload lies in the checkpoint pool.

#include <array>
#include <cstdint>
#include <span>

#include "base/strong_id.h"
#include "cache/pool.h"

namespace baleen::cache {

enum class PointKind : uint8_t { kPrompt, kTurn, kInterval, kBranch };
inline constexpr int kNumPointKinds = 4;
const char* point_kind_name(PointKind kind);

inline constexpr int32_t kNoDraftRows = INT32_MAX;  // draft_begin of a sequence without drafts

struct ResumePoint {
  enum class State : uint8_t {
    kFree,
    kPending,  // payload not written yet, or the sequence has not reached the position
    kVisible,
    kDoomed,  // given up, but a step in flight still writes the payload
  };
  State state = State::kFree;
  PointKind kind = PointKind::kPrompt;
  bool has_streams = false;  // the payload has the residual streams of position - 1
  bool written = false;      // pending: the ticket of the writing step is complete
  NamespaceId space;
  FullPage node{0};      // covers the whole pages before the position; locked while pinned
  FullPage head{0};      // holds the positions after `node`; 0 if there are none
  int32_t position = 0;  // the first token to compute
  int32_t next_id = -1;  // token the draft row of position - 1 was computed with
  int32_t draft_begin = kNoDraftRows;  // first position whose draft row is valid
  int32_t pins = 0;                    // copies in flight that read the payload
  int64_t stamp = 0;                   // last use
  RequestSlot owner;  // pending: the sequence it belongs to; invalid once that has ended
  std::array<OpenGroupBlock, 16> blocks;
  int32_t num_blocks = 0;

  std::span<const OpenGroupBlock> open_blocks() const {
    return {blocks.data(), static_cast<size_t>(num_blocks)};
  }
};

}  // namespace baleen::cache
