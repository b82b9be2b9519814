// The attention kernel for head groups of 16.

#include "kernels/sparse_attention/sparse_attention_sm90.cuh"

namespace baleen::kernels {

template void launch_attention_sm90<16>(const SparseAttentionParams& params,
                                        device::StreamHandle stream);

}  // namespace baleen::kernels
