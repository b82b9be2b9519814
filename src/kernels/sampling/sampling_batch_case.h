#pragma once
// A batch of rows on the host and on the device, for tests of the sampling kernels: rows are added
// with the parameters of sample_token, run together, and compared with it one by one.
//
//   SamplingCase c(vocab);
//   c.add(logits, params, counts);
//   c.run(sample_rows_portable, stream);
//   SampledRow got = c.sampled[0];

#include <functional>
#include <vector>

#include "device/buffer.h"
#include "kernels/sampling/sampling_rows.h"

namespace baleen::kernels::testing {

using SampleFunction = std::function<void(const SamplingBatch&, cudaStream_t)>;

class SamplingCase {
 public:
  explicit SamplingCase(int32_t vocab_size)
      : vocab(vocab_size),
        stride((vocab_size + 3) / 4 * 4 + 8),
        mask_stride((vocab_size + 31) / 32) {}

  struct HostRow {
    std::vector<float> logits;
    SamplingParams params;  // lists are filled from the vectors below
    std::vector<int32_t> counts;
    std::vector<std::pair<int32_t, float>> bias;
    std::vector<int32_t> forbidden;
    std::vector<uint32_t> allowed;
    std::vector<int32_t> chain;
  };

  void add(HostRow row) {
    SamplingRow out;
    const SamplingParams& p = row.params;
    out.temperature = p.temperature;
    out.top_k = p.top_k;
    out.top_p = p.top_p;
    out.min_p = p.min_p;
    out.frequency_penalty = p.frequency_penalty;
    out.presence_penalty = p.presence_penalty;
    out.repetition_penalty = p.repetition_penalty;
    out.sample_index = p.sample_index;
    out.seed = p.seed;
    out.position = p.position;
    out.forced_id = p.forced_id;
    out.num_top = p.top_logprobs;
    logits_.insert(logits_.end(), row.logits.begin(), row.logits.end());
    logits_.resize(logits_.size() + static_cast<size_t>(stride - vocab), 1e30F);  // never a column
    if (!row.counts.empty()) {
      out.counts_row = static_cast<int32_t>(counts_.size() / static_cast<size_t>(stride));
      counts_.insert(counts_.end(), row.counts.begin(), row.counts.end());
      counts_.resize(counts_.size() + static_cast<size_t>(stride - vocab), 9);
    }
    if (!row.allowed.empty()) {
      out.mask_row = static_cast<int32_t>(masks_.size() / static_cast<size_t>(mask_stride));
      masks_.insert(masks_.end(), row.allowed.begin(), row.allowed.begin() + mask_stride);
    }
    out.bias_begin = static_cast<int32_t>(biases_.size());
    out.bias_count = static_cast<int32_t>(row.bias.size());
    for (const auto& [id, bias] : row.bias) {
      biases_.push_back({id, bias});
    }
    out.forbidden_begin = static_cast<int32_t>(forbidden_.size());
    out.forbidden_count = static_cast<int32_t>(row.forbidden.size());
    forbidden_.insert(forbidden_.end(), row.forbidden.begin(), row.forbidden.end());
    out.chain_begin = static_cast<int32_t>(chain_.size());
    out.chain_count = static_cast<int32_t>(row.chain.size());
    chain_.insert(chain_.end(), row.chain.begin(), row.chain.end());
    device_rows_.push_back(out);
    rows.push_back(std::move(row));
  }

  void run(const SampleFunction& sample, cudaStream_t stream) {
    auto logits = device::Buffer<float>::from_host(logits_);
    auto params = device::Buffer<SamplingRow>::from_host(device_rows_);
    auto counts = device::Buffer<int32_t>::from_host(counts_);
    auto masks = device::Buffer<uint32_t>::from_host(masks_);
    auto biases = device::Buffer<TokenBias>::from_host(biases_);
    auto forbidden = device::Buffer<int32_t>::from_host(forbidden_);
    auto chain = device::Buffer<int32_t>::from_host(chain_);
    const auto num_rows = static_cast<int32_t>(device_rows_.size());
    device::Buffer<SampledRow> out(num_rows);
    device::Buffer<int32_t> ids(int64_t{num_rows} * kMostTopLogprobs);
    device::Buffer<float> logprobs(int64_t{num_rows} * kMostTopLogprobs);
    out.fill_bytes(0xFF);
    ids.fill_bytes(0xFF);
    logprobs.fill_bytes(0xFF);
    sample({.logits = logits.data(),
            .row_stride = stride,
            .vocab = vocab,
            .num_rows = num_rows,
            .rows = params.data(),
            .counts = counts.data(),
            .counts_stride = stride,
            .masks = masks.data(),
            .mask_stride = mask_stride,
            .biases = biases.data(),
            .forbidden = forbidden.data(),
            .chain = chain.data(),
            .sampled = out.data(),
            .top_ids = ids.data(),
            .top_logprobs = logprobs.data()},
           stream);
    BALEEN_CUDA_CHECK(cudaStreamSynchronize(stream));
    sampled = out.to_host();
    top_ids = ids.to_host();
    top_logprobs = logprobs.to_host();
  }

  /// sample_token on one row, chain tokens counted in.
  SampledToken expected(size_t r, std::vector<ScoredToken>* top) const {
    const HostRow& row = rows[r];
    SamplingParams params = row.params;
    params.logit_bias = row.bias;
    params.forbidden_ids = row.forbidden;
    params.allowed_bits = row.allowed;
    params.want_logprob = true;
    std::vector<int32_t> counts = row.counts;
    if (!row.chain.empty() && counts.empty()) {
      counts.assign(static_cast<size_t>(vocab), 0);
    }
    for (const int32_t id : row.chain) {
      ++counts[static_cast<size_t>(id)];
    }
    SamplingWorkspace workspace;
    return sample_token(row.logits, params, counts, workspace, top);
  }

  int32_t vocab;
  int64_t stride;
  int64_t mask_stride;
  std::vector<HostRow> rows;
  std::vector<SampledRow> sampled;
  std::vector<int32_t> top_ids;
  std::vector<float> top_logprobs;

 private:
  std::vector<float> logits_;
  std::vector<SamplingRow> device_rows_;
  std::vector<int32_t> counts_;
  std::vector<uint32_t> masks_;
  std::vector<TokenBias> biases_;
  std::vector<int32_t> forbidden_;
  std::vector<int32_t> chain_;
};

}  // namespace baleen::kernels::testing
