// The attention kernel for head groups of 32.

#include "kernels/sparse_attention/sparse_attention_sm90.cuh"

namespace baleen::kernels {

template void launch_attention_sm90<32>(const SparseAttentionParams& params,
                                        device::StreamHandle stream);

}  // namespace baleen::kernels
