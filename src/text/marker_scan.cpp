#include "text/marker_scan.h"

namespace baleen::text {

std::optional<MarkerHit> scan_markers(std::string_view text,
                                      std::span<const std::string> markers,
                                      bool at_end) {
  for (size_t i = 0; i < text.size(); ++i) {
    const std::string_view rest = text.substr(i);
    bool may_begin = false;
    for (size_t marker = 0; marker < markers.size(); ++marker) {
      const std::string& wanted = markers[marker];
      if (rest[0] != wanted[0]) {
        continue;
      }
      if (rest.starts_with(wanted)) {
        return MarkerHit{i, static_cast<int>(marker)};
      }
      may_begin = may_begin || std::string_view(wanted).starts_with(rest);
    }
    if (may_begin && !at_end) {
      return MarkerHit{i, -1};
    }
  }
  return std::nullopt;
}

}  // namespace baleen::text
