#include "model/block.h"

#include "model/attention.h"
#include "model/hyper_connection.h"
#include "model/moe.h"

namespace baleen::model {

at::Tensor run_block(const at::Tensor& streams,
                     const BlockParameters& params,
                     const BlockPlace& place,
                     const StepContext& step) {
  const at::Tensor attended =
      through_hyper_connection(streams,
                               params.hc_attn,
                               params.attn_norm,
                               step,
                               place.prefix + "hc_attn",
                               [&](const at::Tensor& x) {
                                 return attention(x, params.attention, params.spec, place, step);
                               });
  const at::Tensor output =
      through_hyper_connection(attended,
                               params.hc_ffn,
                               params.ffn_norm,
                               step,
                               place.prefix + "hc_ffn",
                               [&](const at::Tensor& x) {
                                 return mixture_of_experts(x, params.moe, params.spec, place, step);
                               });
  step.capture(place.prefix, "streams", output);
  return output;
}

}  // namespace baleen::model
