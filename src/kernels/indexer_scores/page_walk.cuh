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
    const auto block = static_cast<int32_t>(blockIdx.x);
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
    int64_t total = 0;
    for (int32_t base = 0; base < requests; base += 32) {
      total += __reduce_add_sync(0xFFFFFFFFU, base + lane < requests ? pages[base + lane] : 0);
    }
    const int64_t begin = total * block / gridDim.x;
    const int64_t end = total * (block + 1) / gridDim.x;
    left_ = static_cast<int32_t>(end - begin);
    int64_t before = 0;
    for (int32_t base = 0; base < requests; base += 32) {
      const int32_t mine = base + lane < requests ? pages[base + lane] : 0;
      const int32_t sum = __reduce_add_sync(0xFFFFFFFFU, mine);
      if (begin < before + sum) {
        int64_t at = before;
        for (int32_t i = 0; i < 32; ++i) {
          const int32_t count = __shfl_sync(0xFFFFFFFFU, mine, i);
          if (begin < at + count) {
            request_ = base + i;
            page_ = static_cast<int32_t>(begin - at);
            return;
          }
          at += count;
        }
      }
      before += sum;
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
