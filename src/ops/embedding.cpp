#include "ops/embedding.h"

#include <vector>

#include <ATen/ATen.h>

namespace baleen::ops {

at::Tensor embed(const at::Tensor& weight, const at::Tensor& ids) {
  return at::embedding(weight, ids);
}

at::Tensor broadcast_streams(const at::Tensor& x, int64_t num_streams) {
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.insert(sizes.end() - 1, num_streams);
  return x.unsqueeze(-2).expand(sizes);
}

at::Tensor embed_streams(const at::Tensor& weight, const at::Tensor& ids, int64_t num_streams) {
  return broadcast_streams(embed(weight, ids), num_streams);
}

}  // namespace baleen::ops
