#pragma once
// Draws the tokens behind the rows of a decode step where their logits lie: what
// kernels::sample_token does, by the kernel that gives the same tokens. Owned by the path, used on
// its thread; a step is begin, set for each row that draws, launch, wait for the stream, take.
//
//   sampler.begin(rows.size());
//   sampler.set(0, *row.draw, row.position + 1, row.allowed_bits);
//   sampler.launch(logits, stream);
//   stream.synchronize();
//   kernels::SampledToken token = sampler.token(0);

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "device/buffer.h"
#include "device/pinned_buffer.h"
#include "device/stream.h"
#include "engine/batch_plan.h"
#include "kernels/sampling/sampling_rows.h"

namespace baleen::runner {

class DecodeSampler {
 public:
  DecodeSampler(int64_t vocab, int32_t most_rows);

  /// Whether the kernel draws by these parameters: without penalties, with lists that fit.
  bool covers(const engine::SamplingRow& sampling) const;
  void begin(std::size_t num_rows);
  /// `position`: of the drawn token. `allowed_bits`: 32 tokens per word; empty: all.
  void set(std::size_t row,
           const engine::SamplingRow& sampling,
           int64_t position,
           std::span<const uint32_t> allowed_bits);
  /// logits f32 [rows, vocabulary] on the device. Nothing is launched when no row was set.
  void launch(const float* logits, const device::Stream& stream);

  kernels::SampledToken token(std::size_t row) const;
  /// Appends the row's best tokens, best first.
  void append_top(std::size_t row, std::vector<kernels::ScoredToken>& top) const;
  int64_t device_bytes() const;
  static int64_t device_bytes_for(int64_t vocab, int32_t most_rows);  // without making one

 private:
  /// A host array and its copy on the device.
  template <class T>
  struct Pair {
    explicit Pair(int64_t count) : host(count), device(count) {}
    device::PinnedBuffer<T> host;
    device::Buffer<T> device;
    void upload(int64_t count, const device::Stream& stream);
    void download(int64_t count, const device::Stream& stream);
  };

  int64_t vocab_;
  int64_t mask_words_;
  int64_t num_rows_ = 0;
  int64_t num_set_ = 0;
  int64_t num_biases_ = 0;
  int64_t num_forbidden_ = 0;
  int64_t num_masks_ = 0;
  bool wants_top_ = false;
  Pair<kernels::SamplingRow> rows_;
  Pair<kernels::TokenBias> biases_;
  Pair<int32_t> forbidden_;
  Pair<uint32_t> masks_;
  Pair<kernels::SampledRow> sampled_;
  Pair<int32_t> top_ids_;
  Pair<float> top_logprobs_;
};

}  // namespace baleen::runner
