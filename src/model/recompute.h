#pragma once
// Activation recompute: the forward keeps a segment's input alone; its backward runs the segment
// again. The values and gradients are those of running it once, bit for bit, as long as the segment
// is a pure function of its input and of leaves (parameters get their gradients directly).
//
//   std::vector<at::Tensor> out = recomputed([&](const at::Tensor& x) { ... }, streams);

#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

namespace baleen::model {

/// Called twice with gradients: in forward, whose graph is thrown away, and in backward. Must own
/// what it needs: it lives as long as the graph. All results are defined, and differentiable or
/// constant in both runs.
using Segment = std::function<std::vector<at::Tensor>(const at::Tensor& input)>;

std::vector<at::Tensor> recomputed(Segment segment, const at::Tensor& input);

}  // namespace baleen::model
