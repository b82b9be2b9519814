#pragma once
// Every tensor a model of a given shape consists of, under its published name. The loader checks a
// checkpoint against it, `synth` and `convert` write by it, `plan` counts bytes with it.
//
//   for (const Parameter& p : parameter_inventory(config)) { ... p.name, p.shape ... }
//   std::vector<TensorSpec> files = stored_tensors(config, CheckpointFormat{});

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/model_config.h"
#include "base/strong_id.h"
#include "weights/safetensors_writer.h"

namespace baleen::weights {

enum class ParameterKind : uint8_t {
  kMatrix,        // FP8 with 128x128 scales in published files
  kExpertMatrix,  // routed expert: FP4 with group-32 scales (or FP8) in published files
  kBf16,          // embeddings, norms, router and compressor matrices
  kF32,           // hyper-connections, sinks, position embeddings, router bias
  kTable,         // tid2eid
};

struct Parameter {
  std::string name;  // published name, `.weight` included
  ParameterKind kind = ParameterKind::kBf16;
  std::vector<int64_t> shape;  // logical: FP4 pairs count as two
  LayerIndex layer;            // main layers, then MTP blocks; invalid for globals

  int64_t num_elements() const;
};

/// How the values of a parameter are stored.
enum class WeightFormat : uint8_t { kBf16, kF16, kF32, kF64, kFp8, kFp4, kI64, kI32 };

const char* weight_format_name(WeightFormat format);  // "bf16", "fp8", ...

/// What a checkpoint as a whole is written in. Matrices in f32 or f64 take the other tensors along.
struct CheckpointFormat {
  WeightFormat matrices = WeightFormat::kFp8;  // kFp8, kBf16, kF32, kF64
  WeightFormat experts = WeightFormat::kFp4;   // kFp4, kFp8, kBf16, kF32, kF64

  WeightFormat format_of(ParameterKind kind) const;
};

/// Globals, main layers, MTP blocks, in this order.
std::vector<Parameter> parameter_inventory(const ModelConfig& config);
/// Prefix of the names of a layer: "layers.3." or "mtp.0.".
std::string layer_prefix(const ModelConfig& config, LayerIndex layer);
/// `x.weight` -> `x.scale`.
std::string scale_name(std::string_view weight_name);
/// The parameter as stored: its values, and its scales for kFp8 and kFp4. kFp4 needs an input width
/// that is a multiple of 32 (checked).
std::vector<TensorSpec> stored_forms(const Parameter& parameter, WeightFormat format);
std::vector<TensorSpec> stored_tensors(const ModelConfig& config, const CheckpointFormat& format);

}  // namespace baleen::weights
