#pragma once
// The parameters of a V4 model: one plain struct per module, tensors in compute dtype, experts of a
// layer stacked. Owned by whoever loads or trains; the forward reads them and never writes, caches
// or detaches them, so a trainer may put non-leaf tensors here before each step. Any thread may
// read.
//
//   ModelParameters params = make_parameters(config, source);
//   for_each_parameter(params, [](const ParameterInfo& info, at::Tensor& value) { ... });

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/model_config.h"
#include "ops/linear_format.h"

namespace baleen::model {

/// A linear layer [out, in], or a stack of them [E, out, in], and the format it is served in.
struct Matrix {
  at::Tensor weight;
  ops::LinearFormat format = ops::LinearFormat::kPlain;
};

struct HyperConnectionParameters {
  at::Tensor fn;     // [(2+n)·n, n·H]; head: [n, n·H]
  at::Tensor base;   // [(2+n)·n]; head: [n]
  at::Tensor scale;  // [3]; head: [1]
};

struct CompressorParameters {
  at::Tensor ape;    // [r, c·d]
  at::Tensor wkv;    // [c·d, H]; with overlap the first d rows are the carry half
  at::Tensor wgate;  // [c·d, H]
  at::Tensor norm;   // [d]
};

struct IndexerParameters {
  Matrix wq_b;              // [nI·dI, Q]
  at::Tensor weights_proj;  // [nI, H]
  CompressorParameters compressor;
};

struct AttentionParameters {
  at::Tensor attn_sink;                            // [nh]
  Matrix wq_a;                                     // [Q, H]
  at::Tensor q_norm;                               // [Q]
  Matrix wq_b;                                     // [nh·D, Q]
  Matrix wkv;                                      // [D, H]
  at::Tensor kv_norm;                              // [D]
  Matrix wo_a;                                     // [G·O, nh·D/G]; bf16 values
  Matrix wo_b;                                     // [H, G·O]
  std::optional<CompressorParameters> compressor;  // kC4 and kC128 layers
  std::optional<IndexerParameters> indexer;        // kC4 layers
};

struct MoeParameters {
  at::Tensor gate_weight;  // [E, H]
  at::Tensor gate_bias;    // [E]; undefined in hash-routed layers; never gets a gradient
  at::Tensor tid2eid;      // i64 [V, k]; hash-routed layers only
  Matrix w1;               // [E, I, H], gate projections
  Matrix w3;               // [E, I, H], up projections
  Matrix w2;               // [E, H, I], down projections
  Matrix shared_w1;        // [I, H]
  Matrix shared_w3;        // [I, H]
  Matrix shared_w2;        // [H, I]
};

struct BlockParameters {
  LayerSpec spec;
  at::Tensor attn_norm;  // [H]
  at::Tensor ffn_norm;   // [H]
  HyperConnectionParameters hc_attn;
  HyperConnectionParameters hc_ffn;
  AttentionParameters attention;
  MoeParameters moe;
};

/// Collapse of the streams and the norm before the (shared) output matrix.
struct HeadParameters {
  HyperConnectionParameters hc;
  at::Tensor norm;  // [H]
};

struct MtpParameters {
  Matrix e_proj;     // [H, H]
  Matrix h_proj;     // [H, H]
  at::Tensor enorm;  // [H]
  at::Tensor hnorm;  // [H]
  BlockParameters block;
  HeadParameters head;
};

struct ModelParameters {
  ModelConfig config;
  at::Tensor embed;  // [V, H]
  at::Tensor head;   // [V, H]
  HeadParameters final_head;
  std::vector<BlockParameters> blocks;
  std::vector<MtpParameters> mtp;
};

/// What a tensor is, for initialisation, optimizer groups and quantisation.
enum class ParameterRole : uint8_t {
  kEmbedding,
  kOutputHead,
  kNorm,               // weights around 1
  kDenseMatrix,        // FP8 in published checkpoints
  kOutputLatent,       // wo_a: FP8 in the file, used as bf16
  kExpertMatrix,       // FP4 (or FP8) in published checkpoints
  kUnquantizedMatrix,  // compressor projections, weights_proj, router: bf16 in the file
  kHyperFn,
  kHyperBase,
  kHyperScale,
  kSink,
  kApe,
  kRouterBias,  // moved by load statistics, never by a gradient
  kHashTable,   // integers
};

struct ParameterInfo {
  std::string name;  // published name; of a stack the name with "*" in the place of the expert id
  ParameterRole role = ParameterRole::kDenseMatrix;
  std::vector<int64_t> shape;  // of the whole tensor, stack included
  int64_t stack = 0;           // experts stacked along dim 0, 0 for none

  /// Published name of one member of a stack.
  std::string member_name(int64_t expert) const;
  /// Gets a gradient from the main or the MTP loss (or, for the indexer, from its own).
  bool trainable() const {
    return role != ParameterRole::kRouterBias && role != ParameterRole::kHashTable;
  }
};

using ParameterVisitor = std::function<void(const ParameterInfo&, at::Tensor&)>;
using MatrixVisitor = std::function<void(const ParameterInfo&, at::Tensor&, ops::LinearFormat*)>;

/// Calls `visit` for every tensor in a fixed order: globals, layers, MTP blocks.
void for_each_parameter(ModelParameters& params, const ParameterVisitor& visit);

/// The same, with the format of those that have one (else nullptr).
void for_each_matrix_or_tensor(ModelParameters& params, const MatrixVisitor& visit);

/// As for_each_parameter, stacks split into their members; the tensors are views of the stacks.
void for_each_published_tensor(ModelParameters& params,
                               const std::function<void(const std::string&, at::Tensor)>& visit);

/// Gives the value of one published tensor; its shape is checked against `shape`.
using TensorSource = std::function<at::Tensor(
    const ParameterInfo& info, const std::string& name, const std::vector<int64_t>& shape)>;

/// Fills every tensor (those that `wanted` takes; empty: all) from `source`, stacks member by
/// member, floating ones in `options`' dtype, all on its device. With `num_threads` above 1 the
/// source is asked for several members of a stack at once.
void fill_parameters(ModelParameters& params,
                     const at::TensorOptions& options,
                     const TensorSource& source,
                     const std::function<bool(const ParameterInfo&)>& wanted = {},
                     int32_t num_threads = 1);

/// The formats that matrices are served in, by what the published checkpoints do.
struct FormatPlan {
  ops::LinearFormat dense = ops::LinearFormat::kPlain;    // kFp8 in published checkpoints
  ops::LinearFormat experts = ops::LinearFormat::kPlain;  // kFp4 or kFp8
};
void set_formats(ModelParameters& params, const FormatPlan& plan);

/// The structure for `config` with undefined tensors (compressors and indexers where they belong).
ModelParameters make_empty_parameters(const ModelConfig& config);

/// Bytes of all tensors as held in memory.
int64_t parameter_bytes(ModelParameters& params);

/// Moves all floating tensors to a dtype and everything to a device. Undefined ones stay so.
void convert_parameters(ModelParameters& params, at::ScalarType dtype, at::Device device);

}  // namespace baleen::model
