#include "runner/decode/decode_sampler.h"

#include <algorithm>

#include "base/check.h"

namespace baleen::runner {
namespace {

constexpr int64_t kMostListed = 512;  // biases of a row, and forbidden ids of a row
constexpr int64_t kRowAlignment = 4;  // floats, of the kernel

}  // namespace

template <class T>
void DecodeSampler::Pair<T>::upload(int64_t count, const device::Stream& stream) {
  if (count > 0) {
    BALEEN_CUDA_CHECK(cudaMemcpyAsync(device.data(),
                                      host.data(),
                                      static_cast<std::size_t>(count) * sizeof(T),
                                      cudaMemcpyHostToDevice,
                                      stream.get()));
  }
}

template <class T>
void DecodeSampler::Pair<T>::download(int64_t count, const device::Stream& stream) {
  BALEEN_CUDA_CHECK(cudaMemcpyAsync(host.data(),
                                    device.data(),
                                    static_cast<std::size_t>(count) * sizeof(T),
                                    cudaMemcpyDeviceToHost,
                                    stream.get()));
}

DecodeSampler::DecodeSampler(int64_t vocab, int32_t most_rows)
    : vocab_(vocab),
      mask_words_((vocab + 31) / 32),
      rows_(most_rows),
      biases_(most_rows * kMostListed),
      forbidden_(most_rows * kMostListed),
      masks_(most_rows * mask_words_),
      sampled_(most_rows),
      top_ids_(int64_t{most_rows} * kernels::kMostTopLogprobs),
      top_logprobs_(int64_t{most_rows} * kernels::kMostTopLogprobs) {}

bool DecodeSampler::covers(const engine::SamplingRow& sampling) const {
  return vocab_ % kRowAlignment == 0 && vocab_ <= kernels::kMostSampledVocab &&
         sampling.frequency_penalty == 0.0F && sampling.presence_penalty == 0.0F &&
         sampling.repetition_penalty == 1.0F &&
         static_cast<int64_t>(sampling.logit_bias.size()) <= kMostListed &&
         static_cast<int64_t>(sampling.forbidden_ids.size()) <= kMostListed &&
         sampling.top_logprobs <= kernels::kMostTopLogprobs;
}

void DecodeSampler::begin(std::size_t num_rows) {
  num_rows_ = static_cast<int64_t>(num_rows);
  BALEEN_CHECK(num_rows_ <= rows_.host.count(), "rows={} of {}", num_rows, rows_.host.count());
  num_set_ = 0;
  num_biases_ = 0;
  num_forbidden_ = 0;
  num_masks_ = 0;
  wants_top_ = false;
  // Rows that are not set are drawn greedily, and nobody asks.
  std::fill_n(rows_.host.data(), num_rows, kernels::SamplingRow{.temperature = 0.0F});
}

void DecodeSampler::set(std::size_t row,
                        const engine::SamplingRow& sampling,
                        int64_t position,
                        std::span<const uint32_t> allowed_bits) {
  kernels::SamplingRow& out = rows_.host.span()[row];
  out.temperature = sampling.temperature;
  out.top_k = sampling.top_k;
  out.top_p = sampling.top_p;
  out.min_p = sampling.min_p;
  out.sample_index = sampling.sample_index;
  out.seed = sampling.seed;
  out.position = position;
  out.forced_id = sampling.forced_id;
  out.bias_begin = static_cast<int32_t>(num_biases_);
  out.bias_count = static_cast<int32_t>(sampling.logit_bias.size());
  for (const auto& [id, bias] : sampling.logit_bias) {
    biases_.host.data()[num_biases_++] = {.id = id, .bias = bias};
  }
  out.forbidden_begin = static_cast<int32_t>(num_forbidden_);
  out.forbidden_count = static_cast<int32_t>(sampling.forbidden_ids.size());
  for (const int32_t id : sampling.forbidden_ids) {
    forbidden_.host.data()[num_forbidden_++] = id;
  }
  if (!allowed_bits.empty()) {
    BALEEN_CHECK(static_cast<int64_t>(allowed_bits.size()) == mask_words_,
                 "mask of {} words, not {}",
                 allowed_bits.size(),
                 mask_words_);
    out.mask_row = static_cast<int32_t>(num_masks_);
    std::copy(
        allowed_bits.begin(), allowed_bits.end(), masks_.host.data() + num_masks_ * mask_words_);
    ++num_masks_;
  }
  out.num_top = sampling.want_logprobs ? sampling.top_logprobs : 0;
  wants_top_ = wants_top_ || out.num_top > 0;
  ++num_set_;
}

void DecodeSampler::launch(const float* logits, const device::Stream& stream) {
  if (num_set_ == 0) {
    return;
  }
  rows_.upload(num_rows_, stream);
  biases_.upload(num_biases_, stream);
  forbidden_.upload(num_forbidden_, stream);
  masks_.upload(num_masks_ * mask_words_, stream);
  kernels::SamplingBatch batch;
  batch.logits = logits;
  batch.row_stride = vocab_;
  batch.vocab = static_cast<int32_t>(vocab_);
  batch.num_rows = static_cast<int32_t>(num_rows_);
  batch.rows = rows_.device.data();
  batch.masks = masks_.device.data();
  batch.mask_stride = mask_words_;
  batch.biases = biases_.device.data();
  batch.forbidden = forbidden_.device.data();
  batch.sampled = sampled_.device.data();
  batch.top_ids = wants_top_ ? top_ids_.device.data() : nullptr;
  batch.top_logprobs = wants_top_ ? top_logprobs_.device.data() : nullptr;
  kernels::sample_rows_sm90(batch, stream.get());
  sampled_.download(num_rows_, stream);
  if (wants_top_) {
    top_ids_.download(num_rows_ * kernels::kMostTopLogprobs, stream);
    top_logprobs_.download(num_rows_ * kernels::kMostTopLogprobs, stream);
  }
}

kernels::SampledToken DecodeSampler::token(std::size_t row) const {
  const kernels::SampledRow& drawn = sampled_.host.span()[row];
  return {.status = static_cast<kernels::SamplingStatus>(drawn.status),
          .id = drawn.id,
          .logprob = drawn.logprob};
}

void DecodeSampler::append_top(std::size_t row, std::vector<kernels::ScoredToken>& top) const {
  if (rows_.host.span()[row].num_top == 0) {
    return;
  }
  const std::size_t begin = row * kernels::kMostTopLogprobs;
  for (int32_t k = 0; k < sampled_.host.span()[row].num_top; ++k) {
    const std::size_t at = begin + static_cast<std::size_t>(k);
    top.push_back({.id = top_ids_.host.span()[at], .logprob = top_logprobs_.host.span()[at]});
  }
}

int64_t DecodeSampler::device_bytes() const {
  return static_cast<int64_t>(rows_.device.bytes() + biases_.device.bytes() +
                              forbidden_.device.bytes() + masks_.device.bytes() +
                              sampled_.device.bytes() + top_ids_.device.bytes() +
                              top_logprobs_.device.bytes());
}

int64_t DecodeSampler::device_bytes_for(int64_t vocab, int32_t most_rows) {
  constexpr int64_t kWord = sizeof(uint32_t);  // of an id, a mask's word, a log-prob
  const int64_t of_row = static_cast<int64_t>(sizeof(kernels::SamplingRow)) +
                         static_cast<int64_t>(sizeof(kernels::SampledRow)) +
                         kMostListed * (static_cast<int64_t>(sizeof(kernels::TokenBias)) + kWord) +
                         (vocab + 31) / 32 * kWord + kernels::kMostTopLogprobs * 2 * kWord;
  return most_rows * of_row;
}

}  // namespace baleen::runner
