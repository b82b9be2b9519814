#include "runner/decode/decode_shapes.h"

#include <algorithm>

#include "base/check.h"

namespace baleen::runner {

std::vector<DecodeShape> decode_shapes(int32_t most_requests, int64_t max_context) {
  constexpr int64_t kFirstContext = 4096;
  constexpr int64_t kContextStep = 4;
  BALEEN_CHECK(most_requests > 0 && max_context > 0,
               "most_requests={} max_context={}",
               most_requests,
               max_context);
  std::vector<DecodeShape> shapes;
  for (int64_t context = std::min(kFirstContext, max_context);;
       context = std::min(context * kContextStep, max_context)) {
    for (int32_t requests = 1;; requests = std::min(2 * requests, most_requests)) {
      shapes.push_back({.requests = requests, .context = context});
      if (requests == most_requests) {
        break;
      }
    }
    if (context == max_context) {
      return shapes;
    }
  }
}

std::size_t smallest_shape(std::span<const DecodeShape> shapes, int32_t requests, int64_t context) {
  const auto found = std::find_if(shapes.begin(), shapes.end(), [&](const DecodeShape& shape) {
    return shape.requests >= requests && shape.context >= context;
  });
  BALEEN_CHECK(found != shapes.end(), "no shape for {} requests of {} tokens", requests, context);
  return static_cast<std::size_t>(found - shapes.begin());
}

}  // namespace baleen::runner
