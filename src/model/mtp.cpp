#include "model/mtp.h"

#include <string>

#include "model/block.h"
#include "model/stages.h"
#include "ops/linear.h"
#include "ops/rms_norm.h"
#include "ops/rounding.h"

namespace baleen::model {

at::Tensor run_mtp_block(const at::Tensor& main_streams,
                         const ModelParameters& params,
                         std::size_t block,
                         const StepContext& step) {
  const MtpParameters& mtp = params.mtp[block];
  const ops::Numerics& numerics = step.numerics;
  const double eps = step.config.rms_norm_eps;
  const at::Tensor embedded = embedded_ids(params.embed, step);
  const at::Tensor from_token = ops::linear(ops::rms_norm(embedded, mtp.enorm, eps, numerics),
                                            mtp.e_proj.weight,
                                            mtp.e_proj.format,
                                            numerics);
  const at::Tensor from_streams = ops::linear(ops::rms_norm(main_streams, mtp.hnorm, eps, numerics),
                                              mtp.h_proj.weight,
                                              mtp.h_proj.format,
                                              numerics);
  const at::Tensor streams =
      ops::store_activation(from_token.unsqueeze(1) + from_streams, numerics);
  const BlockPlace place{
      .prefix = "mtp." + std::to_string(block) + ".", .index = block, .is_mtp = true};
  return run_block(streams, mtp.block, place, step);
}

}  // namespace baleen::model
