#include "ops/fixed_experts.h"

#include <algorithm>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include "base/check.h"

namespace baleen::ops {
namespace {

constexpr int64_t kExpertRows = 32;  // rows that go through an expert's weights together

/// Contiguous copies where needed, for as long as pointers into them are used.
struct HeldExperts {
  at::Tensor x, experts, weights, w1, w3, w2;

  HeldExperts(const at::Tensor& prepared,
              const at::Tensor& ids,
              const at::Tensor& route_weights,
              const ExpertWeights& expert_weights)
      : x(prepared.contiguous()),
        experts(ids.contiguous()),
        weights(route_weights.contiguous()),
        w1(expert_weights.w1.contiguous()),
        w3(expert_weights.w3.contiguous()),
        w2(expert_weights.w2.contiguous()) {}

  int64_t rows() const { return x.size(0); }
  int64_t width() const { return x.size(1); }
  int64_t slots() const { return experts.size(1); }
  int64_t hidden() const { return w1.size(1); }
  int64_t num_experts() const { return w1.size(0); }
};

/// The (row, slot) pairs of every expert, pairs numbered row * slots + slot.
std::vector<std::vector<int64_t>> pairs_by_expert(const HeldExperts& held) {
  std::vector<std::vector<int64_t>> pairs(static_cast<std::size_t>(held.num_experts()));
  const auto* experts = held.experts.const_data_ptr<int64_t>();
  for (int64_t pair = 0; pair < held.experts.numel(); ++pair) {
    BALEEN_CHECK(experts[pair] >= 0 && experts[pair] < held.num_experts(),
                 "expert {} of {}",
                 experts[pair],
                 held.num_experts());
    pairs[static_cast<std::size_t>(experts[pair])].push_back(pair);
  }
  return pairs;
}

/// Gathers `count` pairs of one expert, runs it on them, and puts each output where its pair's is.
template <class T>
void run_pairs(const HeldExperts& held,
               int64_t expert,
               const int64_t* pairs,
               int64_t count,
               const kernels::ExpertOptions& options,
               std::vector<T>& buffer,
               T* parts) {
  const int64_t width = held.width();
  const int64_t area = held.hidden() * width;
  buffer.resize(static_cast<std::size_t>(count * (2 * width + 2 * held.hidden() + 1)));
  T* rows = buffer.data();
  T* outputs = rows + count * width;
  T* scratch = outputs + count * width;
  T* weights = scratch + 2 * count * held.hidden();
  for (int64_t i = 0; i < count; ++i) {
    const T* row = held.x.const_data_ptr<T>() + pairs[i] / held.slots() * width;
    std::copy(row, row + width, rows + i * width);
    weights[i] = held.weights.const_data_ptr<T>()[pairs[i]];
  }
  kernels::expert_rows_cpu<T>({.x = rows,
                               .w1 = held.w1.const_data_ptr<T>() + expert * area,
                               .w3 = held.w3.const_data_ptr<T>() + expert * area,
                               .w2 = held.w2.const_data_ptr<T>() + expert * area,
                               .weights = weights,
                               .y = outputs,
                               .scratch = scratch,
                               .rows = count,
                               .width = width,
                               .hidden = held.hidden(),
                               .options = options});
  for (int64_t i = 0; i < count; ++i) {
    std::copy(outputs + i * width, outputs + (i + 1) * width, parts + pairs[i] * width);
  }
}

}  // namespace

at::Tensor routed_experts_per_token(const at::Tensor& prepared,
                                    const at::Tensor& experts,
                                    const at::Tensor& weights,
                                    const ExpertWeights& expert_weights,
                                    const kernels::ExpertOptions& options) {
  const HeldExperts held(prepared, experts, weights, expert_weights);
  at::Tensor y = at::empty_like(held.x);
  AT_DISPATCH_FLOATING_TYPES(y.scalar_type(), "experts_per_token", [&] {
    at::parallel_for(0, held.rows(), 1, [&](int64_t begin, int64_t end) {
      std::vector<scalar_t> scratch(static_cast<std::size_t>(2 * held.hidden() + held.width()));
      for (int64_t row = begin; row < end; ++row) {
        kernels::experts_cpu<scalar_t>(
            {.x = held.x.const_data_ptr<scalar_t>() + row * held.width(),
             .w1 = held.w1.const_data_ptr<scalar_t>(),
             .w3 = held.w3.const_data_ptr<scalar_t>(),
             .w2 = held.w2.const_data_ptr<scalar_t>(),
             .experts = held.experts.const_data_ptr<int64_t>() + row * held.slots(),
             .weights = held.weights.const_data_ptr<scalar_t>() + row * held.slots(),
             .y = y.mutable_data_ptr<scalar_t>() + row * held.width(),
             .scratch = scratch.data(),
             .slots = held.slots(),
             .width = held.width(),
             .hidden = held.hidden(),
             .num_experts = held.num_experts(),
             .options = options});
      }
    });
  });
  return y;
}

at::Tensor routed_experts_by_expert(const at::Tensor& prepared,
                                    const at::Tensor& experts,
                                    const at::Tensor& weights,
                                    const ExpertWeights& expert_weights,
                                    const kernels::ExpertOptions& options) {
  const HeldExperts held(prepared, experts, weights, expert_weights);
  const std::vector<std::vector<int64_t>> pairs = pairs_by_expert(held);
  const int64_t width = held.width();
  const int64_t slots = held.slots();
  at::Tensor y = at::empty_like(held.x);
  at::Tensor all_parts = at::empty({held.experts.numel(), width}, y.options());
  AT_DISPATCH_FLOATING_TYPES(y.scalar_type(), "experts_by_expert", [&] {
    auto* parts = all_parts.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, held.num_experts(), 1, [&](int64_t first, int64_t last) {
      std::vector<scalar_t> buffer;
      for (int64_t expert = first; expert < last; ++expert) {
        const std::vector<int64_t>& own = pairs[static_cast<std::size_t>(expert)];
        const auto count = static_cast<int64_t>(own.size());
        for (int64_t begin = 0; begin < count; begin += kExpertRows) {
          run_pairs(held,
                    expert,
                    own.data() + begin,
                    std::min(kExpertRows, count - begin),
                    options,
                    buffer,
                    parts);
        }
      }
    });
    at::parallel_for(0, held.rows(), kExpertRows, [&](int64_t begin, int64_t end) {
      std::vector<const scalar_t*> of_row(static_cast<std::size_t>(slots));
      for (int64_t row = begin; row < end; ++row) {
        for (int64_t slot = 0; slot < slots; ++slot) {
          of_row[static_cast<std::size_t>(slot)] = parts + (row * slots + slot) * width;
        }
        kernels::sum_slots_cpu(of_row.data(),
                               held.experts.const_data_ptr<int64_t>() + row * slots,
                               slots,
                               held.num_experts(),
                               width,
                               y.mutable_data_ptr<scalar_t>() + row * width);
      }
    });
  });
  return y;
}

at::Tensor fixed_expert(const at::Tensor& prepared,
                        const at::Tensor& w1,
                        const at::Tensor& w3,
                        const at::Tensor& w2,
                        const kernels::ExpertOptions& options) {
  const at::Tensor x = prepared.contiguous();
  const at::Tensor gate = w1.contiguous();
  const at::Tensor up = w3.contiguous();
  const at::Tensor down = w2.contiguous();
  const int64_t width = x.size(-1);
  const int64_t hidden = gate.size(0);
  at::Tensor y = at::empty_like(x);
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "fixed_expert", [&] {
    at::parallel_for(0, x.numel() / width, kExpertRows, [&](int64_t first, int64_t last) {
      std::vector<scalar_t> scratch(static_cast<std::size_t>(2 * kExpertRows * hidden));
      for (int64_t begin = first; begin < last; begin += kExpertRows) {
        kernels::expert_rows_cpu<scalar_t>({.x = x.const_data_ptr<scalar_t>() + begin * width,
                                            .w1 = gate.const_data_ptr<scalar_t>(),
                                            .w3 = up.const_data_ptr<scalar_t>(),
                                            .w2 = down.const_data_ptr<scalar_t>(),
                                            .y = y.mutable_data_ptr<scalar_t>() + begin * width,
                                            .scratch = scratch.data(),
                                            .rows = std::min(kExpertRows, last - begin),
                                            .width = width,
                                            .hidden = hidden,
                                            .options = options});
      }
    });
  });
  return y;
}

}  // namespace baleen::ops
