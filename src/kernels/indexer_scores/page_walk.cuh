#pragma once
// Which key pages a persistent block scores. The pages of all requests in a row are cut evenly; one
// request alone is dealt out page by page instead, so that a block knows its page numbers before it
// knows the length. Every warp walks for itself; all warps of a block see the same walk.
//
//   PageWalk walk(pages_of_request, num_requests);
//   for (; walk.more(); walk.advance(1)) { use(walk.request(), walk.page()); }

#include <cstdint>

namespace baleen::kernels {

class PageWalk {
 public:
  /// The walk over the only request's `count` pages.
  __device__ explicit PageWalk(int32_t count)
      : step_(static_cast<int32_t>(gridDim.x)), page_(static_cast<int32_t>(blockIdx.x)) {
    left_ = page_ < count ? (count - page_ - 1) / step_ + 1 : 0;
  }

  /// `pages` (shared memory) holds the page count of each of several requests. All lanes of the
  /// warp call.
  __device__ PageWalk(const int32_t* pages, int32_t requests) : pages_(pages) {
    constexpr uint32_t kWholeWarp = 0xFFFFFFFFU;
    const auto block = static_cast<int32_t>(blockIdx.x);
    const auto blocks = static_cast<int32_t>(gridDim.x);
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
    int32_t total = 0;
    for (int32_t base = 0; base < requests; base += 32) {
      total += __reduce_add_sync(kWholeWarp, base + lane < requests ? pages[base + lane] : 0);
    }
    // total * block / blocks, rounded down, without its 64-bit product.
    const int32_t each = total / blocks;
    const int32_t rest = total - each * blocks;
    const int32_t begin = each * block + rest * block / blocks;
    left_ = each * (block + 1) + rest * (block + 1) / blocks - begin;
    int32_t before = 0;
    for (int32_t base = 0; base < requests; base += 32) {
      const int32_t mine = base + lane < requests ? pages[base + lane] : 0;
      int32_t end = mine;  // of this lane's request, among those from `base` on
#pragma unroll
      for (int32_t distance = 1; distance < 32; distance *= 2) {
        const int32_t lower = __shfl_up_sync(kWholeWarp, end, distance);
        end += lane >= distance ? lower : 0;
      }
      const uint32_t beyond = __ballot_sync(kWholeWarp, begin < before + end);
      if (beyond != 0) {
        const int32_t first = __ffs(static_cast<int>(beyond)) - 1;
        request_ = base + first;
        page_ = begin - before - __shfl_sync(kWholeWarp, end - mine, first);
        return;
      }
      before += __shfl_sync(kWholeWarp, end, 31);
    }
    left_ = 0;
  }

  __device__ bool more() const { return left_ > 0; }
  __device__ int32_t request() const { return request_; }
  __device__ int32_t page() const { return page_; }
  __device__ int32_t step() const { return step_; }
  /// Pages from here on that belong to the current request.
  __device__ int32_t run() const {
    return pages_ == nullptr ? left_ : min(left_, pages_[request_] - page_);
  }
  /// Goes on by `count` <= run() pages.
  __device__ void advance(int32_t count) {
    left_ -= count;
    page_ += count * step_;
    if (pages_ != nullptr && left_ > 0) {
      while (page_ >= pages_[request_]) {
        page_ = 0;
        ++request_;
      }
    }
  }

 private:
  const int32_t* pages_ = nullptr;  // null: one request
  int32_t step_ = 1;
  int32_t request_ = 0;
  int32_t page_ = 0;
  int32_t left_ = 0;
};

}  // namespace baleen::kernels
