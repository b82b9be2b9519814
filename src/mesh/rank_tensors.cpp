#include "mesh/rank_tensors.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/zeros_like.h>

#include "mesh/collectives.h"

namespace baleen::mesh {

bool counts_in_norm(Sharding sharding, bool on_pipeline_ends, const comm::Mesh& mesh) {
  const comm::MeshPlace& place = mesh.place();
  if (on_pipeline_ends && place.pp != 0) {
    return false;
  }
  // Without sequence parallelism the tensor ranks compute what they all hold alike.
  return sharding == Sharding::kTensor || mesh.shape().sequence_parallel || place.tp == 0;
}

std::vector<RankTensor> rank_tensors(model::ModelParameters& leaves,
                                     const comm::Mesh& mesh,
                                     const StageSplit& stages) {
  std::vector<RankTensor> tensors;
  model::for_each_parameter(leaves, [&](const model::ParameterInfo& info, at::Tensor& value) {
    if (!info.trainable() || !value.defined()) {
      return;
    }
    RankTensor& tensor = tensors.emplace_back();
    tensor.name = info.name;
    tensor.sharding = shard_of(info, mesh).sharding;
    tensor.value = value.detach();
    if (!value.grad().defined()) {
      value.mutable_grad() = at::zeros_like(tensor.value);
    }
    tensor.gradient = value.grad();
    tensor.on_pipeline_ends =
        info.role == model::ParameterRole::kEmbedding && stages.embedding_is_shared();
    tensor.counts_in_norm = counts_in_norm(tensor.sharding, tensor.on_pipeline_ends, mesh);
  });
  return tensors;
}

void sum_over_pipeline_ends(std::vector<RankTensor>& tensors, const comm::Mesh& mesh) {
  for (RankTensor& tensor : tensors) {
    if (tensor.on_pipeline_ends) {
      at::Tensor sum = tensor.gradient.contiguous();
      sum_in_place(sum, mesh.group(comm::Axis::kPipelineEnds));
      tensor.gradient.copy_(sum);
    }
  }
}

void sum_gradients(std::vector<RankTensor>& tensors, const comm::Mesh& mesh) {
  sum_over_pipeline_ends(tensors, mesh);
  for (const Sharding sharding : {Sharding::kWhole, Sharding::kTensor, Sharding::kExperts}) {
    comm::Group& group = mesh.group(gradient_axis(sharding));
    std::vector<at::Tensor> flat;
    for (const RankTensor& tensor : tensors) {
      if (tensor.sharding == sharding) {
        flat.push_back(tensor.gradient.reshape({-1}));
      }
    }
    if (flat.empty() || group.size() == 1) {
      continue;
    }
    at::Tensor all = at::cat(flat, 0);  // one message
    sum_in_place(all, group);
    int64_t begin = 0;
    for (RankTensor& tensor : tensors) {
      if (tensor.sharding == sharding) {
        const int64_t count = tensor.gradient.numel();
        tensor.gradient.copy_(all.narrow(0, begin, count).view(tensor.gradient.sizes()));
        begin += count;
      }
    }
  }
}

}  // namespace baleen::mesh
