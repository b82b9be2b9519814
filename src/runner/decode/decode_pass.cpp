#include "runner/decode/decode_pass.h"

#include <algorithm>

#include "base/check.h"
#include "base/error.h"
#include "device/cuda_check.h"
#include "kernels/draft_entry/draft_entry.h"
#include "kernels/experts/experts.h"
#include "kernels/experts_prompt/experts_prompt.h"
#include "kernels/hyper_connection/hyper_connection.h"
#include "kernels/linear_prompt/linear_prompt.h"
#include "kernels/pick_codes/pick_codes.h"
#include "kernels/router/router.h"
#include "kernels/step_metadata/step_metadata.h"
#include "kernels/token_rows/token_rows.h"

namespace baleen::runner {

DecodePass::DecodePass(const DecodeModel& model,
                       const DecodeLimits& limits,
                       const DecodeInputs& inputs,
                       DecodeBuffers& buffers,
                       int32_t num_multiprocessors)
    : model_(model),
      limits_(limits),
      inputs_(inputs),
      work_(buffers),
      num_multiprocessors_(num_multiprocessors),
      tokens_(limits.max_requests),
      rows_(limits.max_requests),
      results_(limits.max_requests),
      heads_(narrow(model.config.num_attention_heads)) {
  const ModelConfig& config = model.config;
  if (const std::string reason = decode_unsupported(config); !reason.empty()) {
    throw ConfigError("decode on kernels: " + reason);
  }
  BALEEN_CHECK(limits.max_requests > 0 && limits.max_requests <= buffers.max_requests &&
                   limits.max_context <= buffers.max_context && inputs.table_blocks % 4 == 0 &&
                   int64_t{inputs.table_blocks} * kernels::kPageTokens >= limits.max_context,
               "max_requests={} of {} table_blocks={} max_context={} of {}",
               limits.max_requests,
               buffers.max_requests,
               inputs.table_blocks,
               limits.max_context,
               buffers.max_context);
  BALEEN_CHECK(!limits.invariant || limits.max_context <= kMostInvariantContext,
               "max_context={} in invariant mode",
               limits.max_context);
  const auto make = [this]<class T>(device::Buffer<T>& buffer, int64_t count) {
    buffer = device::Buffer<T>(count);
    buffer.fill_bytes(0);
    workspace_bytes_ += static_cast<int64_t>(buffer.bytes());
  };
  make(experts_workspace_, experts_bytes(config, limits));
  set_context(limits.max_context);
  // One after the other: every plan has a workspace of its own.
  make(attention_workspace_, 3 * attention_.stretch);
  if (model.draft_entry) {
    BALEEN_CHECK(inputs.streams != nullptr, "the draft layer begins from streams");
    const int64_t numbers = int64_t{tokens_} * kernels::kHcStreams * config.hidden_size;
    make(draft_codes_, numbers);
    make(draft_scales_, numbers / kActivationScaleBlock);
    make(draft_rows_, numbers);
  }
}

int64_t DecodePass::experts_bytes(const ModelConfig& config, const DecodeLimits& limits) {
  kernels::ExpertsParams experts;
  experts.num_tokens = limits.max_requests;
  experts.hidden = narrow(config.hidden_size);
  experts.width = narrow(config.moe_intermediate_size);
  experts.slots = narrow(config.num_experts_per_tok) + 1;
  experts.num_experts = narrow(config.n_routed_experts);
  return std::max(kernels::experts_workspace(experts).bytes,
                  limits.prompts ? kernels::experts_prompt_workspace(experts).bytes : 0);
}

int64_t DecodePass::workspace_bytes_for(const ModelConfig& config,
                                        bool draft,
                                        const DecodeLimits& limits,
                                        int32_t num_multiprocessors) {
  int64_t bytes =
      experts_bytes(config, limits) +
      3 * attention_plans(
              config, limits, limits.max_requests, limits.max_context, num_multiprocessors)
              .stretch;
  if (draft) {
    const int64_t numbers = int64_t{limits.max_requests} * kernels::kHcStreams * config.hidden_size;
    bytes += 3 * numbers + numbers / kActivationScaleBlock;
  }
  return bytes;
}

/// How attention is cut for sequences of up to `context` tokens.
DecodePass::AttentionPlans DecodePass::attention_plans(const ModelConfig& config,
                                                       const DecodeLimits& limits,
                                                       int32_t tokens,
                                                       int64_t context,
                                                       int32_t num_multiprocessors) {
  const int32_t heads = narrow(config.num_attention_heads);
  std::size_t workspace = 0;
  const auto plan = [&](int64_t second, bool dense) {
    const kernels::SparseAttentionShape shape{.num_queries = tokens,
                                              .heads = heads,
                                              .first_capacity = kernels::kWindowCapacity,
                                              .second_capacity = narrow(second),
                                              .second_is_dense = dense};
    BALEEN_CHECK(kernels::supports_sparse_attention(shape), "heads={}", heads);
    // Many queries fill the card without cutting any: a token's bits then depend on its own rows
    // alone, not on how its prompt is cut.
    constexpr int32_t kWidest = 64;
    const kernels::SparseAttentionPlan made =
        limits.prompts
            ? kernels::SparseAttentionPlan{.mode = kernels::AttentionMode::kFast,
                                           .heads_per_block = std::min(heads, kWidest),
                                           .max_queries = tokens}
            : kernels::plan_sparse_attention(shape,
                                             limits.invariant ? kernels::AttentionMode::kInvariant
                                                              : kernels::AttentionMode::kFast,
                                             num_multiprocessors);
    workspace = std::max(workspace, kernels::sparse_attention_workspace_bytes(shape, made));
    return made;
  };
  AttentionPlans plans;
  plans.window = plan(0, false);
  plans.c4 = plan(config.index_topk, false);
  plans.c128 = plan(std::max<int64_t>(1, context / kC128Ratio), true);
  plans.stretch = static_cast<int64_t>((workspace + 255) / 256 * 256);
  return plans;
}

/// Sequences of up to `context` tokens: the width of scores, and how attention is cut.
void DecodePass::set_context(int64_t context) {
  context_ = context;
  score_stride_ = decode_score_stride(context);
  attention_ = attention_plans(model_.config, limits_, tokens_, context, num_multiprocessors_);
}

void DecodePass::metadata(device::StreamHandle stream) {
  kernels::StepMetadataParams params;
  params.slots = inputs_.slots != nullptr ? inputs_.slots : work_.slots.data();
  params.lengths = inputs_.lengths;
  params.chain_len = 1;
  params.token_counts = inputs_.token_counts;
  params.max_requests = rows_;
  params.num_requests = inputs_.num_requests;
  params.max_tokens = tokens_;
  params.page_table = inputs_.slot_table;
  params.table_blocks = inputs_.table_blocks;
  params.window_pages = inputs_.window_pages;
  params.window_table = inputs_.window_table;
  params.draft_begin = inputs_.draft_begin;
  params.draft_hole = inputs_.draft_hole;
  params.positions = work_.positions.data();
  params.window_slots = work_.window_slots.data();
  params.c4_entries = work_.c4_entries.data();
  params.c128_entries = work_.c128_entries.data();
  params.window_rows = work_.window_rows.data();
  const auto outputs = [&](LayerKind kind, auto& plan, auto& writes, int32_t* counts) {
    kernels::CompressionOutputs out;
    for (const DecodeLayer& layer : model_.layers) {
      if (layer.spec.kind == kind) {
        out = {.plan = plan.data(),
               .max_entries = tokens_,
               .num_entries = counts,
               .writes = writes.data(),
               .max_writes = tokens_,
               .num_writes = counts + 1,
               .ring_size = layer.main.ring_size};
        break;
      }
    }
    return out;
  };
  params.c4 = outputs(LayerKind::kC4, work_.c4_plan, work_.c4_writes, work_.counts.data());
  params.c128 =
      outputs(LayerKind::kC128, work_.c128_plan, work_.c128_writes, work_.counts.data() + 2);
  params.errors = work_.errors.data();
  kernels::step_metadata(params, stream);
  ++num_launches_;
}

void DecodePass::embed(device::StreamHandle stream) {
  kernels::token_rows({.table = model_.embed,
                       .ids = inputs_.ids,
                       .out = work_.part.data(),
                       .vocab = narrow(model_.config.vocab_size),
                       .width = narrow(model_.config.hidden_size),
                       .num_tokens = tokens_,
                       .programmatic = limits_.programmatic},
                      stream);
  ++num_launches_;
}

/// Embeddings of the tokens behind and streams at the positions become the block's streams.
void DecodePass::enter_draft(const DecodeDraftEntry& entry, device::StreamHandle stream) {
  const int32_t hidden = narrow(model_.config.hidden_size);
  const auto eps = static_cast<float>(model_.config.rms_norm_eps);
  const int32_t stream_rows = kernels::kHcStreams * tokens_;
  kernels::norm_codes({.rows = work_.part.data(),
                       .weight = entry.enorm,
                       .codes = work_.codes.data(),
                       .scales = work_.scales.data(),
                       .num_rows = tokens_,
                       .width = hidden,
                       .eps = eps},
                      stream);
  kernels::norm_codes({.rows = inputs_.streams,
                       .weight = entry.hnorm,
                       .codes = draft_codes_.data(),
                       .scales = draft_scales_.data(),
                       .num_rows = stream_rows,
                       .width = hidden,
                       .eps = eps},
                      stream);
  const kernels::LinearTask of_token =
      fp8_task(entry.e_proj, work_.codes.data(), work_.scales.data(), work_.input.data());
  linears({&of_token, 1}, tokens_, stream);
  const kernels::LinearTask of_streams =
      fp8_task(entry.h_proj, draft_codes_.data(), draft_scales_.data(), draft_rows_.data());
  linears({&of_streams, 1}, stream_rows, stream);
  kernels::join_streams({.token = work_.input.data(),
                         .streams = draft_rows_.data(),
                         .out = work_.streams.data(),
                         .num_tokens = tokens_,
                         .width = hidden},
                        stream);
  num_launches_ += 3;
}

void DecodePass::hyper(const DecodeHyper& hyper,
                       int32_t rows,
                       const uint16_t* part,
                       bool first,
                       HyperHalf half,
                       device::StreamHandle stream) {
  const ModelConfig& config = model_.config;
  kernels::HcFusedParams params;
  const bool given = first && model_.draft_entry.has_value();  // streams that are there already
  params.parts[0] = given ? nullptr : part;
  params.num_parts = given ? 0 : 1;
  // Few tokens: what is written lies apart from what is read.
  const bool few = tokens_ <= kernels::kHcFewTokens;
  const bool from_half = few && half == HyperHalf::kSecond;
  const bool to_half = few && half == HyperHalf::kFirst;
  auto* const streams = work_.streams.data();
  auto* const post = work_.post.data();
  auto* const comb = work_.comb.data();
  params.residual = first && !given ? nullptr : from_half ? work_.half_streams.data() : streams;
  params.post = first ? nullptr : from_half ? work_.half_post.data() : post;
  params.comb = first ? nullptr : from_half ? work_.half_comb.data() : comb;
  params.fn = hyper.fn;
  params.base = hyper.base;
  params.scale = hyper.scale;
  params.norm_weight = hyper.norm;
  params.streams = to_half ? work_.half_streams.data() : streams;
  params.y = work_.input.data();
  if (rows == kernels::kHcRows) {
    params.post_out = to_half ? work_.half_post.data() : post;
    params.comb_out = to_half ? work_.half_comb.data() : comb;
    params.codes = work_.codes.data();
    params.scales = work_.scales.data();
  }
  params.num_tokens = tokens_;
  params.width = narrow(config.hidden_size);
  params.rows = rows;
  params.rms_norm_eps = static_cast<float>(config.rms_norm_eps);
  params.hc_eps = static_cast<float>(config.hc_eps);
  params.sinkhorn_iters = narrow(config.hc_sinkhorn_iters);
  params.programmatic = limits_.programmatic;
  kernels::hc_fused(params, stream);
  ++num_launches_;
}

kernels::LinearTask DecodePass::fp8_task(const DecodeMatrix& matrix,
                                         const uint8_t* codes,
                                         const uint8_t* scales,
                                         uint16_t* y) const {
  kernels::LinearTask task;
  task.weight = matrix.weight;
  task.weight_scales = matrix.scales;
  task.x = codes;
  task.x_scales = scales;
  task.y = y;
  task.x_stride = matrix.inputs;
  task.y_stride = matrix.outputs;
  task.x_scale_stride = matrix.inputs / kActivationScaleBlock;
  task.num_outputs = matrix.outputs;
  task.num_inputs = matrix.inputs;
  task.format = matrix.format;
  return task;
}

kernels::LinearTask DecodePass::bf16_task(const DecodeMatrix& matrix,
                                          const uint16_t* x,
                                          void* y,
                                          kernels::LinearOutput output) {
  kernels::LinearTask task;
  task.weight = matrix.weight;
  task.x = x;
  task.y = y;
  task.x_stride = matrix.inputs;
  task.y_stride = matrix.outputs;
  task.num_outputs = matrix.outputs;
  task.num_inputs = matrix.inputs;
  task.format = kernels::WeightFormat::kBf16;
  task.output = output;
  return task;
}

void DecodePass::linears(std::span<const kernels::LinearTask> tasks,
                         int32_t num_tokens,
                         device::StreamHandle stream) {
  kernels::LinearParams params;
  std::copy(tasks.begin(), tasks.end(), params.tasks.begin());
  params.num_tasks = static_cast<int32_t>(tasks.size());
  params.num_tokens = num_tokens;
  params.programmatic = limits_.programmatic;
  ++num_launches_;
  if (limits_.prompts && limits_.forms.wide_linears &&
      kernels::linear_prompt_serves(params)) {  // of the same bits
    kernels::launch_linear_prompt(params, stream);
    return;
  }
  kernels::launch_linear(params, stream);
}

/// `routed`: number of the layer among those that choose by score.
void DecodePass::experts(const DecodeLayer& layer, int32_t routed, device::StreamHandle stream) {
  const ModelConfig& config = model_.config;
  const kernels::LinearTask gate = bf16_task(
      layer.gate, work_.input.data(), work_.gate_logits.data(), kernels::LinearOutput::kFloat32);
  linears({&gate, 1}, tokens_, stream);
  const kernels::ExpertLists lists{.num_units = work_.num_units.data(),
                                   .units = work_.units.data()};
  kernels::RouterParams router;
  router.logits = work_.gate_logits.data();
  router.bias = layer.gate_bias;
  router.table = layer.hash_table;
  router.token_ids = inputs_.ids;
  router.routes = work_.routes.data();
  router.weights = work_.route_weights.data();
  router.counter = work_.router_counter.data();
  router.num_tokens = tokens_;
  router.num_experts = narrow(config.n_routed_experts);
  router.top = narrow(config.num_experts_per_tok);
  router.scale = static_cast<float>(config.routed_scaling_factor);
  router.shared_expert = true;
  router.programmatic = limits_.programmatic;
  router.lists = lists;
  if (work_.route_record.count() > 0 && !layer.spec.hash_routed) {
    const int64_t bytes = router.num_experts <= 256 ? 1 : 2;
    router.record_stride = work_.route_record.count() / work_.max_requests / bytes;
    router.record = work_.route_record.data() + int64_t{routed} * router.top * bytes;
  }
  kernels::launch_router(router, stream);
  kernels::ExpertsParams params;
  params.x_codes = work_.codes.data();
  params.x_scales = work_.scales.data();
  params.lists = lists;
  params.up = layer.experts.up;
  params.down = layer.experts.down;
  params.shared_up = layer.experts.shared_up;
  params.shared_down = layer.experts.shared_down;
  params.y = work_.part.data();
  params.workspace = experts_workspace_.data();
  params.num_tokens = tokens_;
  params.hidden = narrow(config.hidden_size);
  params.width = narrow(config.moe_intermediate_size);
  params.slots = router.top + 1;
  params.num_experts = router.num_experts;
  params.leaf_blocks = std::max(1, params.width / kActivationScaleBlock / 8);
  params.limit = static_cast<float>(config.swiglu_limit);
  params.shared_limit = params.limit;
  params.programmatic = limits_.programmatic;
  if (limits_.prompts && tokens_ >= limits_.forms.fewest_grouped_tokens &&
      kernels::experts_prompt_supported(params)) {  // of the same bits
    kernels::launch_experts_prompt(params, stream);
    num_launches_ += 1 + kernels::kExpertsPromptLaunches;
    return;
  }
  if (limits_.prompts) {  // the layout, and with it where counters lie, follows from the tokens
    BALEEN_CUDA_CHECK(
        cudaMemsetAsync(params.workspace,
                        0,
                        static_cast<std::size_t>(kernels::experts_workspace(params).counter_bytes),
                        stream));
  }
  kernels::launch_experts(params, stream);
  num_launches_ += 2;
}

/// The head's collapse of every token; logits of all tokens, or of the chosen ones of prompts.
void DecodePass::head(device::StreamHandle stream) {
  hyper(
      model_.head_hyper, kernels::kHcHeadRows, work_.part.data(), false, HyperHalf::kHead, stream);
  const uint16_t* rows = work_.input.data();
  if (limits_.prompts) {
    kernels::token_rows({.table = rows,
                         .ids = inputs_.result_rows,
                         .out = work_.part.data(),
                         .vocab = tokens_,
                         .width = narrow(model_.config.hidden_size),
                         .num_tokens = results_},
                        stream);
    ++num_launches_;
    rows = work_.part.data();
  }
  const kernels::LinearTask task =
      bf16_task(model_.head, rows, work_.logits.data(), kernels::LinearOutput::kFloat32);
  linears({&task, 1}, results_, stream);
}

/// What the layers picked, as records keep it.
void DecodePass::code_picks(device::StreamHandle stream) {
  const auto layers = narrow(model_.config.count_layers(LayerKind::kC4));
  if (work_.pick_codes.count() == 0 || layers == 0) {
    return;
  }
  kernels::pick_codes({.picks = work_.pick_record.data(),
                       .layer_stride = int64_t{work_.max_requests} * model_.config.index_topk,
                       .visible = work_.c4_entries.data(),
                       .codes = work_.pick_codes.data(),
                       .token_stride = work_.pick_codes.count() / work_.max_requests,
                       .errors = work_.errors.data(),
                       .num_layers = layers,
                       .num_tokens = tokens_,
                       .topk = narrow(model_.config.index_topk)},
                      stream);
  ++num_launches_;
}

void DecodePass::record_prompts(const PromptShape& shape,
                                device::StreamHandle stream,
                                const StageObserver& observer) {
  BALEEN_CHECK(limits_.prompts && shape.tokens > 0 && shape.tokens <= limits_.max_requests &&
                   shape.rows > 0 && shape.rows <= shape.tokens && shape.results >= 0 &&
                   shape.results <= work_.max_results && shape.results <= shape.tokens &&
                   shape.context <= limits_.max_context,
               "tokens={} rows={} results={} context={}",
               shape.tokens,
               shape.rows,
               shape.results,
               shape.context);
  tokens_ = shape.tokens;
  rows_ = shape.rows;
  results_ = shape.results;
  set_context(shape.context);
  record(stream, observer);
}

void DecodePass::record(device::StreamHandle stream, const StageObserver& observer) {
  const auto stage = [&](const char* name, int64_t layer) {
    if (observer) {
      observer(name, layer);
    }
  };
  num_launches_ = 0;
  stage("metadata", -1);
  metadata(stream);
  embed(stream);
  if (model_.draft_entry) {
    stage("entry", -1);
    enter_draft(*model_.draft_entry, stream);
  }
  int32_t picking = 0;
  int32_t routed = 0;
  for (std::size_t i = 0; i < model_.layers.size(); ++i) {
    const DecodeLayer& layer = model_.layers[i];
    const auto number = static_cast<int64_t>(i);
    stage("hyper", number);
    hyper(layer.hc_attn, kernels::kHcRows, work_.part.data(), i == 0, HyperHalf::kFirst, stream);
    stage("projections", number);
    project(layer, stream);
    stage("after_projection", number);
    after_projection(layer, stream);
    stage("queries", number);
    queries(layer, stream);
    if (layer.spec.kind == LayerKind::kC4) {
      stage("index", number);
      pick(layer, picking++, stream);
    }
    stage("attention", number);
    attend(layer, stream);
    stage("output", number);
    project_out(layer, stream);
    stage("hyper", number);
    hyper(layer.hc_ffn, kernels::kHcRows, work_.part.data(), false, HyperHalf::kSecond, stream);
    stage("experts", number);
    experts(layer, routed, stream);
    routed += layer.spec.hash_routed ? 0 : 1;
  }
  stage("head", -1);
  head(stream);
  code_picks(stream);
  stage("end", -1);
}

}  // namespace baleen::runner
