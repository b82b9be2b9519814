#pragma once
// The parameters as their checkpoint would hold them: every matrix through the rounding of its
// format, gradients passed straight to the unrounded master. A model trained on these computes what
// its quantised export will compute.
//
//   ModelParameters served = fake_quantized(masters);   // once per optimizer step
//   forward_training(served, ids, options).logits ...   // gradients reach `masters`

#include "model/parameters.h"

namespace baleen::model {

/// FP8 and FP4 matrices by their format; wo_a to bf16 after its format's rounding; other matrices,
/// embedding and head to bf16; everything else is shared with `masters` as it is.
ModelParameters fake_quantized(const ModelParameters& masters);
/// The same for one tensor; `format` counts for matrices only.
at::Tensor fake_quantized(const ParameterInfo& info,
                          const at::Tensor& master,
                          ops::LinearFormat format);

}  // namespace baleen::model
