#pragma once
// Clamped SwiGLU experts: one always-on expert, and the routed ones combined in ascending expert
// id.
//
//   at::Tensor routed = routed_experts(x, experts, route_weights, weights, format, limit,
//   numerics); at::Tensor shared = swiglu_expert(x, w1, w3, w2, format, limit, numerics);
//   at::Tensor y = store_activation(routed + shared, numerics);

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>

#include "ops/linear_format.h"
#include "ops/numerics_config.h"

namespace baleen::ops {

/// silu(min(gate, limit)) * clamp(up, -limit, limit), unrounded; without limit nothing is clamped.
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up, std::optional<double> limit);

/// One expert: w1 (gate), w3 (up) [I, H], w2 (down) [H, I]; x [..., H] -> [..., H], stored as bf16
/// where the setting says so. The caller passes no limit when the shared expert's clamp is off.
at::Tensor swiglu_expert(const at::Tensor& x,
                         const at::Tensor& w1,
                         const at::Tensor& w3,
                         const at::Tensor& w2,
                         LinearFormat format,
                         std::optional<double> limit,
                         const Numerics& numerics);

struct ExpertWeights {
  at::Tensor w1;  // gate [E, I, H]
  at::Tensor w3;  // up   [E, I, H]
  at::Tensor w2;  // down [E, H, I]
};

/// How the routed experts are run. All forms give the same values up to summation order inside a
/// product. With Summation::kInvariant kPerToken and kGrouped mean the two forms of fixed order,
/// which give the same bits, and kDense is kGrouped.
enum class ExpertForm : uint8_t {
  kAuto,     // CPU: kPerToken for few rows without gradients, else kGrouped; GPU: kDense for few
             // experts
  kDense,    // every expert on every row, batched; no device synchronisation
  kGrouped,  // rows gathered per expert; reads the counts on the host
  kPerToken  // CPU only, no gradients: rows one by one, reading the chosen experts' weights only
};

/// x [N, H], experts int64 [N, k], weights [N, k] -> [N, H]: the sum over the slots of a row, in
/// ascending expert id, unrounded (the caller adds the shared expert, then rounds). A repeated
/// expert counts once per slot (kDense adds the weights of its slots before it rounds). The route
/// weight multiplies the hidden vector before w2, or the output after it, as
/// numerics.routing_weight says.
at::Tensor routed_experts(const at::Tensor& x,
                          const at::Tensor& experts,
                          const at::Tensor& weights,
                          const ExpertWeights& expert_weights,
                          LinearFormat format,
                          std::optional<double> limit,
                          const Numerics& numerics,
                          ExpertForm form = ExpertForm::kAuto);

}  // namespace baleen::ops
