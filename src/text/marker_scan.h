#pragma once
// Looks for markup in text that arrives in pieces: the first place where a marker stands, or where
// one may be beginning at the end of the text. Pure, any thread.
//
//   if (auto hit = scan_markers(pending, markers, false)) { hit->begin, hit->marker }

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace baleen::text {

struct MarkerHit {
  size_t begin = 0;
  int marker = -1;  // index into the markers; -1: the text ends inside what may become one
};

/// No marker is the beginning of another one. With `at_end` no more text comes, so that the
/// beginning of a marker is plain text.
std::optional<MarkerHit> scan_markers(std::string_view text,
                                      std::span<const std::string> markers,
                                      bool at_end);

}  // namespace baleen::text
