#pragma once
// One step of up to `max_requests` sequences, one token each or (to verify drafts) a few tokens
// each within the same number of tokens in all, as a fixed list of kernel launches whose inputs are
// raw state: token ids, committed lengths, page tables. Everything that the layers need is derived
// on the device, so the list can be captured once and replayed for any state. With `prompts` a
// sequence may have any number of the tokens; such a pass is launched for the tokens it has instead
// of being captured. The model's memory, the inputs and the buffers outlive it; passes that share
// buffers run one after the other. Used by the thread that owns the stream.
//
//   DecodeBuffers buffers(model.config, 8, 32768);
//   DecodePass pass(model, {.max_requests = 8, .max_context = 32768}, inputs, buffers, sm_count);
//   const device::Graph graph = device::Graph::capture(stream, [&](auto s) { pass.record(s); });
//   graph.launch(stream);           // reads `inputs`, writes pass.logits() and the pools
//   prompts.record_prompts({.tokens = 300, .rows = 2, .results = 1, .context = 4096}, stream);
//
// A record allocates nothing and never waits. Kernels of consecutive layers overlap by programmatic
// launches where `programmatic` says so.

#include <cstdint>
#include <functional>
#include <span>

#include "device/buffer.h"
#include "device/stream_handle.h"
#include "kernels/linear/linear.h"
#include "kernels/sparse_attention/sparse_attention.h"
#include "runner/decode/decode_buffers.h"
#include "runner/decode/decode_model.h"
#include "runner/decode/prompt_forms.h"

namespace baleen::runner {

/// Entries of ratio 128 that attention takes in one part, in tokens.
inline constexpr int64_t kMostInvariantContext = int64_t{kernels::kAttentionPartRows} * kC128Ratio;

struct DecodeLimits {
  int32_t max_requests = 1;  // and tokens of the step
  int64_t max_context = 0;   // tokens of a sequence, this step's token included
  bool programmatic = true;
  bool prompts = false;  // max_requests may be 1,024 tokens then
  PromptForms forms = {};
  /// A token's bits do not depend on how many others run, nor on whether it is decoded or part of a
  /// prompt. Up to kMostInvariantContext tokens.
  bool invariant = false;
};

/// What a pass of prompts is launched for, all within its limits.
struct PromptShape {
  int32_t tokens = 0;
  int32_t rows = 0;     // sequences
  int32_t results = 0;  // rows of `result_rows`
  int64_t context = 0;  // tokens of the longest sequence, those of the pass included
};

/// Device arrays. Request r of the step belongs to a slot, which has a row of `slot_table` and a
/// ring of the ratio-128 compressors; `row_table` holds the same pages for every token of the step.
struct DecodeInputs {
  const int32_t* ids = nullptr;  // i32 [max_requests], the tokens to run
  // i32 [max_requests], tokens of each request, one after another; null: one each. With rings of
  // R rows a request may have R - 8 + 1 tokens (ratio 4) and R - 128 + 1 (ratio 128).
  const int32_t* token_counts = nullptr;
  const int32_t* slots = nullptr;         // i32 [max_requests]; null: request r has slot r
  const int32_t* lengths = nullptr;       // i32 [max_requests], committed tokens before the step
  const int32_t* num_requests = nullptr;  // i32 [1]; the rows behind are padding
  const int32_t* slot_table = nullptr;    // i32 [slots, table_blocks], full pages
  const int32_t* row_table = nullptr;     // i32 [max_requests, table_blocks], by token
  int32_t table_blocks = 0;               // a multiple of 4, covers max_context
  // Window page of a block: of its full page, or of the slot's block.
  const int32_t* window_pages = nullptr;  // i32 [full pages]; unused with window_table
  const int32_t* window_table = nullptr;  // i32 [slots, table_blocks] or null
  const int32_t* result_rows = nullptr;   // i32 [results], with `prompts`: tokens that get logits
  // Of the draft layer, whose ids are those of the tokens behind: bf16 [max_requests, n, H],
  // streams at the tokens' positions; and rows of its window that a request must not read.
  const uint16_t* streams = nullptr;
  const int32_t* draft_begin = nullptr;  // i32 [max_requests], first visible position; may be null
  const int32_t* draft_hole = nullptr;   // i32 [max_requests], one hidden position; may be null
};

class DecodePass {
 public:
  DecodePass(const DecodeModel& model,
             const DecodeLimits& limits,
             const DecodeInputs& inputs,
             DecodeBuffers& buffers,
             int32_t num_multiprocessors);

  /// Called before the launches of a stage: "metadata", "layers.3.attention", ... For timing.
  using StageObserver = std::function<void(const char* stage, int64_t layer)>;

  void record(device::StreamHandle stream, const StageObserver& observer = {});
  /// Of a pass with `prompts`. One after another only: it clears counters in the workspace.
  void record_prompts(const PromptShape& shape,
                      device::StreamHandle stream,
                      const StageObserver& observer = {});

  /// bf16 [max_requests, n·H], the streams behind the last block.
  const uint16_t* streams() const { return work_.streams.data(); }
  /// f32 [max_requests, vocabulary], or of a pass with `prompts` [results, vocabulary].
  const float* logits() const { return work_.logits.data(); }
  const uint32_t* refused() const { return work_.errors.data(); }  // u32 [1], requests and plans
  const DecodeLimits& limits() const { return limits_; }
  /// Of its own, beside the buffers.
  int64_t workspace_bytes() const { return workspace_bytes_; }
  /// The same without making one. `draft`: of the draft layer.
  static int64_t workspace_bytes_for(const ModelConfig& config,
                                     bool draft,
                                     const DecodeLimits& limits,
                                     int32_t num_multiprocessors);
  int32_t num_launches() const { return num_launches_; }  // of the last record

 private:
  void set_context(int64_t context);
  void metadata(device::StreamHandle stream);
  void embed(device::StreamHandle stream);
  void enter_draft(const DecodeDraftEntry& entry, device::StreamHandle stream);
  /// Of a block's halves the first goes on from the streams, the second leaves them there.
  enum class HyperHalf : uint8_t { kFirst, kSecond, kHead };
  void hyper(const DecodeHyper& hyper,
             int32_t rows,
             const uint16_t* part,
             bool first,
             HyperHalf half,
             device::StreamHandle stream);
  void project(const DecodeLayer& layer, device::StreamHandle stream);
  void after_projection(const DecodeLayer& layer, device::StreamHandle stream);
  void queries(const DecodeLayer& layer, device::StreamHandle stream);
  void pick(const DecodeLayer& layer, int32_t picking, device::StreamHandle stream);
  void attend(const DecodeLayer& layer, device::StreamHandle stream);
  void project_out(const DecodeLayer& layer, device::StreamHandle stream);
  void experts(const DecodeLayer& layer, int32_t routed, device::StreamHandle stream);
  void head(device::StreamHandle stream);
  void code_picks(device::StreamHandle stream);
  void linears(std::span<const kernels::LinearTask> tasks,
               int32_t num_tokens,
               device::StreamHandle stream);
  kernels::LinearTask fp8_task(const DecodeMatrix& matrix,
                               const uint8_t* codes,
                               const uint8_t* scales,
                               uint16_t* y) const;
  static kernels::LinearTask bf16_task(const DecodeMatrix& matrix,
                                       const uint16_t* x,
                                       void* y,
                                       kernels::LinearOutput output);

  struct AttentionPlans {
    kernels::SparseAttentionPlan window, c4, c128;
    int64_t stretch = 0;  // bytes of one plan's workspace
  };
  static AttentionPlans attention_plans(const ModelConfig& config,
                                        const DecodeLimits& limits,
                                        int32_t tokens,
                                        int64_t context,
                                        int32_t num_multiprocessors);
  static int64_t experts_bytes(const ModelConfig& config, const DecodeLimits& limits);
  static int32_t narrow(int64_t value) { return static_cast<int32_t>(value); }

  const DecodeModel& model_;
  DecodeLimits limits_;
  DecodeInputs inputs_;
  DecodeBuffers& work_;
  int32_t num_multiprocessors_ = 0;
  int32_t tokens_ = 0;
  int32_t rows_ = 0;
  int32_t results_ = 0;
  int32_t heads_ = 0;
  int64_t context_ = 0;
  int64_t score_stride_ = 0;
  int32_t num_launches_ = 0;
  int64_t workspace_bytes_ = 0;

  // Of the draft layer: its streams normed, [max_requests, n, H], and after the projection.
  device::Buffer<uint8_t> draft_codes_, draft_scales_;
  device::Buffer<uint16_t> draft_rows_;
  // Their layout, counters included, depends on the limits: no two passes may share one.
  device::Buffer<uint8_t> experts_workspace_, attention_workspace_;
  AttentionPlans attention_;
};

}  // namespace baleen::runner
