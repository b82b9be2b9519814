#pragma once
// What the cache counted since the start. Plain data, copied out by the engine for metrics.

#include <array>
#include <cstdint>

#include "cache/resume_point.h"

namespace baleen::cache {

/// Why a hit is shorter than what the tree shares with the request.
enum class CutReason : uint8_t {
  kNone,
  kNoPoint,     // no page border and no resume point up to there
  kWindowGone,  // a page border is there, but its window rows were given up
  kLimit,       // at least one token must be computed, or input log-probs are wanted from there
};
inline constexpr int kNumCutReasons = 4;
const char* cut_reason_name(CutReason reason);

/// Why a resume point was not made.
enum class CaptureSkip : uint8_t {
  kPinned,      // all slots in use by copies in flight, or none at all
  kOpenBlocks,  // no room for the rows of the open group
  kAborted,     // the sequence ended before the position was final
  kInFlight,    // a step in flight overwrites ring rows that it needs
};
inline constexpr int kNumCaptureSkips = 4;
const char* capture_skip_name(CaptureSkip reason);

struct CacheStats {
  int64_t admissions = 0;
  int64_t admissions_refused = 0;                     // no room for the pages that a resume needs
  int64_t prompt_tokens = 0;                          // of admitted sequences
  int64_t cached_tokens = 0;                          // of these, not computed again
  int64_t hits_live = 0;                              // continued behind live pages
  int64_t hits_point = 0;                             // continued at a resume point
  std::array<int64_t, kNumCutReasons> cut_hits{};     // by CutReason; kNone: not cut
  std::array<int64_t, kNumCutReasons> lost_tokens{};  // shared by the tree, computed again
  std::array<int64_t, kNumPointKinds> captures{};     // points that became visible, by PointKind
  std::array<int64_t, kNumCaptureSkips> captures_skipped{};
  int64_t pages_stored = 0;        // blocks that became nodes
  int64_t pages_deduplicated = 0;  // blocks that were there already
  int64_t windows_adopted = 0;     // tombstones that got window rows again
  int64_t evicted_pages = 0;       // nodes
  int64_t evicted_windows = 0;     // nodes that became tombstones
  int64_t evicted_points = 0;
  int64_t late_events = 0;  // completions of unknown or finished tickets
};

}  // namespace baleen::cache
