#include "mesh/shard_spec.h"

#include <string>
#include <string_view>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "base/error.h"
#include "mesh/collectives.h"

namespace baleen::mesh {
namespace {

void check_divides(const char* axis, int ranks, const char* key, int64_t count) {
  if (count % ranks != 0) {
    throw ConfigError(
        fmt::format("mesh axis {}: {} ranks do not divide {} {}", axis, ranks, key, count));
  }
}

/// The sharding and the dim; the part follows.
ParameterShard kind_of(const model::ParameterInfo& info) {
  using Role = model::ParameterRole;
  const std::string_view name = info.name;
  switch (info.role) {
    case Role::kEmbedding:
    case Role::kOutputHead:
    case Role::kSink:
    case Role::kOutputLatent:
      return {.sharding = Sharding::kTensor, .dim = 0, .part = {}};
    case Role::kExpertMatrix:
      return {.sharding = Sharding::kExperts, .dim = 0, .part = {}};
    case Role::kDenseMatrix:
      if (name.ends_with("attn.wq_b.weight")) {
        return {.sharding = Sharding::kTensor, .dim = 0, .part = {}};
      }
      if (name.ends_with("attn.wo_b.weight")) {
        return {.sharding = Sharding::kTensor, .dim = 1, .part = {}};
      }
      return {};
    default:
      return {};
  }
}

}  // namespace

void validate(const comm::MeshShape& shape, const ModelConfig& config) {
  comm::validate(shape);
  check_divides("tp", shape.tp, "o_groups", config.o_groups);
  check_divides("tp", shape.tp, "num_attention_heads", config.num_attention_heads);
  check_divides("ep", shape.ep, "n_routed_experts", config.n_routed_experts);
}

void validate_formats(const comm::MeshShape& shape, model::ModelParameters& whole) {
  constexpr int64_t kBlock = 128;  // rows and columns that share a scale
  model::for_each_matrix_or_tensor(
      whole, [&](const model::ParameterInfo& info, at::Tensor&, ops::LinearFormat* format) {
        const ParameterShard shard = kind_of(info);
        if (format == nullptr || *format == ops::LinearFormat::kPlain ||
            shard.sharding != Sharding::kTensor || shape.tp == 1) {
          return;
        }
        const int64_t own = info.shape[static_cast<std::size_t>(shard.dim)] / shape.tp;
        if (own % kBlock != 0) {
          throw ConfigError(fmt::format(
              "mesh axis tp: {} ranks cut {} of {} along dim {} into pieces of {}, which go "
              "through "
              "its quantised blocks of {}; train with precision f32, or with fewer tensor ranks",
              shape.tp,
              info.name,
              info.shape[static_cast<std::size_t>(shard.dim)],
              shard.dim,
              own,
              kBlock));
        }
      });
}

comm::Axis parts_axis(Sharding sharding) {
  return sharding == Sharding::kExperts ? comm::Axis::kExperts : comm::Axis::kTp;
}

comm::Axis gradient_axis(Sharding sharding) {
  switch (sharding) {
    case Sharding::kWhole:
      return comm::Axis::kTokens;
    case Sharding::kTensor:
      return comm::Axis::kReplicas;
    case Sharding::kExperts:
      return comm::Axis::kExpertReplicas;
  }
  return comm::Axis::kTokens;
}

ParameterShard shard_of(const model::ParameterInfo& info, const comm::Mesh& mesh) {
  ParameterShard shard = kind_of(info);
  const int64_t length = info.shape[static_cast<std::size_t>(shard.dim)];
  if (shard.sharding == Sharding::kWhole) {
    shard.part = {0, length};
    return shard;
  }
  const comm::Group& group = mesh.group(parts_axis(shard.sharding));
  shard.part = part_of(length, group.rank(), group.size());
  return shard;
}

model::ModelParameters own_parameters(const model::ModelParameters& whole,
                                      const comm::Mesh& mesh,
                                      const StageSplit& stages) {
  model::ModelParameters own = whole;  // tensors are shared until replaced below
  model::for_each_parameter(own, [&](const model::ParameterInfo& info, at::Tensor& value) {
    if (!stages.holds(mesh.place().pp, info.name)) {
      value = at::Tensor();
      return;
    }
    const ParameterShard shard = shard_of(info, mesh);
    value = value.narrow(shard.dim, shard.part.begin, shard.part.count())
                .clone(at::MemoryFormat::Contiguous);
  });
  return own;
}

at::Tensor whole_tensor(const at::Tensor& own,
                        const ParameterShard& shard,
                        const comm::Mesh& mesh) {
  if (shard.sharding == Sharding::kWhole) {
    return own;
  }
  // Parts may differ in length by one, so each comes from its holder by a broadcast.
  comm::Group& group = mesh.group(parts_axis(shard.sharding));
  int64_t length = own.size(shard.dim);
  group.all_reduce(&length, &length, 1, comm::Element::kInt64, comm::Reduction::kSum);
  std::vector<at::Tensor> parts;
  for (int rank = 0; rank < group.size(); ++rank) {
    std::vector<int64_t> sizes = own.sizes().vec();
    sizes[static_cast<std::size_t>(shard.dim)] = part_of(length, rank, group.size()).count();
    at::Tensor part = rank == group.rank() ? own.clone(at::MemoryFormat::Contiguous)
                                           : at::empty(sizes, own.options());
    broadcast_in_place(part, rank, group);
    parts.push_back(part);
  }
  return at::cat(parts, shard.dim);
}

}  // namespace baleen::mesh
