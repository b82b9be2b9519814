#pragma once
// Mixture-of-experts of a decode step (1 to 1,024 tokens): up, clamped SwiGLU, down and combine of
// the routed FP4 experts and, if present, the FP8 shared expert, for e4m3 activations.
//
//   launch_experts({.x_codes = x, .x_scales = sx, .lists = lists, .up = up, .down = down, .y = y,
//                   .workspace = workspace, .num_tokens = m, .hidden = 4096, .width = 512,
//                   .slots = 6, .num_experts = 256, .limit = 10.0F, .leaf_blocks = 2}, stream);
//
// Per entry (token, slot) of expert e, with g and u in bf16:
//   h = bf16(silu(min(g, limit)) * clamp(u, -limit, limit) * weight),  y_e = W2 * q(h)
// where q is e4m3 per 128 inputs with power-of-two scales. Then y = sum over slots in FP32; slots
// hold ascending expert ids, the shared expert last. Order of sums: blocks of 128 inputs ascend; a
// block is four 32-input tensor products, of FP4 weights scaled and added in FP32 (exact scaling,
// ascending), of FP8 weights one chain, and is then added in FP32. The up product is cut in four
// leaves, the down product in leaves of `leaf_blocks` blocks, which are added by a balanced binary
// tree. The bits of a row depend on nothing but its own inputs: not on the number of tokens, its
// neighbours or the schedule. Errors: shapes outside supports() are a programmer's error (checked).
// Sync: none; capture-safe; allocates nothing; zero tokens are legal. Oracle: experts_oracle.h.

#include <cstddef>
#include <cstdint>

#include "device/stream_handle.h"
#include "kernels/experts/expert_lists.h"

namespace baleen::kernels {

enum class MoeRound : uint8_t {
  kPerExpert,  // y_e to bf16, y bf16: the whole width is here
  kAfterSum    // y_e and y stay FP32: a rank holds a share of the width, rounding follows its sum
};

struct ExpertsParams {
  const uint8_t* x_codes = nullptr;        // e4m3 [num_tokens, hidden], rows 16-byte aligned
  const uint8_t* x_scales = nullptr;       // UE8M0 [num_tokens, hidden / 128]
  ExpertLists lists = {};                  // of these tokens, see expert_lists.h
  const std::byte* up = nullptr;           // pack_up_fp4, one after another [num_experts]
  const std::byte* down = nullptr;         // pack_down_fp4 [num_experts]
  const std::byte* shared_up = nullptr;    // pack_up_fp8, or null without shared expert
  const std::byte* shared_down = nullptr;  // pack_down_fp8
  void* y = nullptr;                       // out [num_tokens, hidden], bf16 or (kAfterSum) f32
  void* workspace = nullptr;  // workspace_bytes(), first `counter_bytes` zero before the first
                              // launch; every launch leaves them zero. What that covers depends on
                              // num_tokens, width and shared_up: zero it again where they change
  int32_t num_tokens = 0;
  int32_t hidden = 0;       // inputs of up = outputs of down
  int32_t width = 0;        // channels of an expert on this rank
  int32_t slots = 0;        // routed slots per token, + 1 with a shared expert
  int32_t num_experts = 0;  // routed experts; id num_experts is the shared one
  int32_t leaf_blocks = 0;  // blocks of 128 per leaf of the down product: max(1, unsharded / 8)
  float limit = 0.0F;       // SwiGLU clamp of routed experts; infinity for none
  float shared_limit = 0.0F;
  MoeRound round = MoeRound::kPerExpert;
  bool programmatic = false;  // may start before its predecessor ended
};

/// Places inside the workspace, in bytes.
struct ExpertsWorkspace {
  int64_t ready = 0;          // i32 [units]: finished up tiles
  int64_t done = 0;           // i32 [num_tokens, hidden / 64]: finished slots; room for four tokens
  int64_t hidden_words = 0;   // bf16 [num_tokens * slots, width] of a small step
  int64_t counter_bytes = 0;  // everything before this must be zero
  int64_t hidden_rows = 0;    // bf16 [num_tokens * slots, width], in list order
  int64_t slot_rows = 0;      // bf16 or f32 [num_tokens, slots, hidden]
  int64_t bytes = 0;
};
ExpertsWorkspace experts_workspace(const ExpertsParams& params);

/// Few up tiles, if every unit there may be comes: the step is one of waits.
bool small_expert_step(const ExpertsParams& params);

bool experts_supported(const ExpertsParams& params);

/// Hopper: one persistent kernel. Portable: plain kernels for any GPU, obvious rather than fast;
/// not of the same bits.
void launch_experts(const ExpertsParams& params, device::StreamHandle stream);
void launch_experts_portable(const ExpertsParams& params, device::StreamHandle stream);

}  // namespace baleen::kernels
