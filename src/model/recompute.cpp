#include "model/recompute.h"

#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

namespace baleen::model {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Keeps a segment in the context of its function.
struct SegmentHolder : torch::CustomClassHolder {
  explicit SegmentHolder(Segment held) : segment(std::move(held)) {}
  Segment segment;
};

class Recomputed : public torch::autograd::Function<Recomputed> {
 public:
  /// `anchor` asks for gradients where the input does not, so that parameters get theirs.
  static variable_list forward(AutogradContext* ctx,
                               const at::Tensor& input,
                               const at::Tensor& anchor,
                               const c10::intrusive_ptr<SegmentHolder>& holder) {
    ctx->save_for_backward({input, anchor});
    ctx->saved_data["segment"] = c10::IValue::make_capsule(holder);
    // With gradients, although the graph is thrown away: operators choose their form by it, and
    // both runs must have the same one.
    variable_list results = with_graph(*holder, input).second;
    for (at::Tensor& result : results) {
      result = result.detach();
    }
    return results;
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    const at::Tensor saved = ctx->get_saved_variables()[0];
    const auto holder =
        c10::static_intrusive_pointer_cast<SegmentHolder>(ctx->saved_data["segment"].toCapsule());
    const auto [input, results] = with_graph(*holder, saved);
    variable_list outputs;
    variable_list given;
    for (std::size_t i = 0; i < results.size(); ++i) {
      if (results[i].requires_grad() && gradients[i].defined()) {
        outputs.push_back(results[i]);
        given.push_back(gradients[i]);
      }
    }
    if (!outputs.empty()) {
      torch::autograd::backward(outputs, given);
    }
    return {input.grad(), at::Tensor(), at::Tensor()};
  }

 private:
  /// A leaf with the values of `input`, and the segment's results behind it.
  static std::pair<at::Tensor, variable_list> with_graph(const SegmentHolder& holder,
                                                         const at::Tensor& input) {
    const at::AutoGradMode with_gradients(true);
    at::Tensor leaf = input.detach();
    leaf.requires_grad_(input.requires_grad());
    return {leaf, holder.segment(leaf)};
  }
};

}  // namespace

std::vector<at::Tensor> recomputed(Segment segment, const at::Tensor& input) {
  if (!at::GradMode::is_enabled()) {
    return segment(input);
  }
  const at::Tensor anchor = at::zeros({}, input.options().requires_grad(true));
  return Recomputed::apply(input, anchor, c10::make_intrusive<SegmentHolder>(std::move(segment)));
}

}  // namespace baleen::model
