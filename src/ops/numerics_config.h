#pragma once
// Which numeric variant of the model is computed: the switches of the model's numeric contract and
// its two named settings. Plain data, owned by whoever owns the model; read by every operator.
//
//   ops::Numerics numerics = ops::Numerics::by_name("reference");
//   numerics.index_score = ops::IndexScore::kCompute;
//   at::Tensor y = ops::rms_norm(x, weight, 1e-6, numerics);
//
// What all operators of this room share:
// - The compute dtype is the dtype of the activations, double or float; every floating-point tensor
// of
//   a call has it and lies on the same device (CPU or CUDA). Ids and picks are int64, masks bool.
// - Values "rounded to bf16 / e4m3 / e2m1" stay in the compute dtype and take the rounded value. On
// a GPU
//   double is rounded through float; the CPU rounds it once. The gradient of every rounding is the
//   identity.
// - Operators are pure, differentiable by autograd where a gradient exists, allocate their results,
//   never wait for a device, may be called from any thread. Sizes of zero are legal.
// - A wrong shape is a programmer error (BALEEN_CHECK).

#include <cstdint>
#include <string_view>

namespace baleen::ops {

enum class LinearActivation : uint8_t { kNone, kFp8 };    // kFp8: blocks of 128 along the input
enum class IndexerQuant : uint8_t { kNone, kFp8, kFp4 };  // kFp8 block 128, kFp4 block 32
enum class IndexScore : uint8_t { kCompute, kBf16 };
enum class QueryNorm : uint8_t { kCompute, kBf16 };
enum class RoutingWeight : uint8_t { kBeforeW2, kAfterW2 };
enum class RopeTableType : uint8_t { kCompute, kF32, kBf16 };

/// kFast: sums as the matrix library likes them for the shape at hand. kInvariant: every sum of an
/// output row in one order that nothing but the row decides: not the other rows, not how they are
/// cut into calls, not the number of threads, not whether gradients are kept. On the CPU, by the
/// kernels of src/kernels; values then differ from kFast in their last bits. Gradients are those of
/// kFast.
enum class Summation : uint8_t { kFast, kInvariant };

struct Numerics {
  bool round_activations = true;  // bf16 at every point where the reference program stores bf16
  bool shared_expert_clamp = true;
  LinearActivation linear_activation = LinearActivation::kFp8;
  bool kv_s8 = true;  // raw rows and main compressed entries, blocks of 64
  IndexerQuant indexer_quant = IndexerQuant::kFp4;
  bool indexer_hadamard = true;
  IndexScore index_score = IndexScore::kBf16;
  QueryNorm query_norm = QueryNorm::kCompute;
  RoutingWeight routing_weight = RoutingWeight::kBeforeW2;
  LinearActivation wo_a_activation = LinearActivation::kNone;
  double router_denominator_eps = 0.0;
  RopeTableType rope_table = RopeTableType::kF32;
  Summation summation = Summation::kFast;

  bool invariant() const { return summation == Summation::kInvariant; }

  /// The published program, with the query-head norm in the compute dtype.
  static Numerics reference();
  /// No rounding and no quantisation anywhere; Hadamard on; tables in the compute dtype.
  static Numerics plain();
  /// "reference" or "plain", then perhaps "+fp8kv" (kv_s8) and "+invariant" (kInvariant), in this
  /// order. Throws ConfigError naming any other name.
  static Numerics by_name(std::string_view name);

  friend bool operator==(const Numerics&, const Numerics&) = default;
};

}  // namespace baleen::ops
