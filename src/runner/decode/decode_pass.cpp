#include "runner/decode/decode_pass.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "base/error.h"
#include "kernels/after_projection/after_projection.h"
#include "kernels/experts/experts.h"
#include "kernels/grouped_projection/grouped_projection.h"
#include "kernels/hyper_connection/hyper_connection.h"
#include "kernels/indexer_scores/indexer_scores.h"
#include "kernels/indexer_topk/indexer_topk.h"
#include "kernels/query_finish/query_finish.h"
#include "kernels/router/router.h"
#include "kernels/step_metadata/step_metadata.h"
#include "kernels/token_rows/token_rows.h"

namespace baleen::runner {
namespace {

constexpr int32_t kC4Ratio = 4;
constexpr int32_t kC128Ratio = 128;
constexpr int32_t kC4PageEntries = kernels::kPageTokens / kC4Ratio;
constexpr int32_t kC128PageEntries = kernels::kPageTokens / kC128Ratio;
constexpr int32_t kScaleBlock = 128;  // inputs that share an activation scale

int32_t narrow(int64_t value) {
  return static_cast<int32_t>(value);
}

/// Zeros: counters must be, and padding rows compute on them.
template <class T>
void make(device::Buffer<T>& buffer, int64_t count) {
  buffer = device::Buffer<T>(count);
  buffer.fill_bytes(0);
}

}  // namespace

DecodePass::DecodePass(const DecodeModel& model,
                       const DecodeLimits& limits,
                       const DecodeInputs& inputs,
                       int32_t num_multiprocessors)
    : model_(model), limits_(limits), inputs_(inputs), tokens_(limits.max_requests) {
  const ModelConfig& config = model.config;
  if (const std::string reason = decode_unsupported(config); !reason.empty()) {
    throw ConfigError("decode on kernels: " + reason);
  }
  BALEEN_CHECK(limits.max_requests > 0 && inputs.table_blocks % 4 == 0 &&
                   int64_t{inputs.table_blocks} * kernels::kPageTokens >= limits.max_context,
               "max_requests={} table_blocks={} max_context={}",
               limits.max_requests,
               inputs.table_blocks,
               limits.max_context);
  const int64_t m = tokens_;
  const int64_t hidden = config.hidden_size;
  heads_ = narrow(config.num_attention_heads);
  make(slots_, m);
  std::vector<int32_t> identity(static_cast<std::size_t>(m));
  std::iota(identity.begin(), identity.end(), 0);
  slots_.copy_from_host(std::span<const int32_t>(identity));
  make(positions_, m);
  make(window_slots_, m);
  make(c4_entries_, m);
  make(c128_entries_, m);
  make(window_rows_, m * kernels::kWindowCapacity);
  make(counts_, 4);
  make(c4_plan_, m);
  make(c128_plan_, m);
  make(c4_writes_, m);
  make(c128_writes_, m);
  make(errors_, 1);

  make(streams_, m * kernels::kHcStreams * hidden);
  make(input_, m * hidden);
  make(part_, m * hidden);
  make(post_, m * kernels::kHcStreams);
  make(comb_, m * kernels::kHcStreams * kernels::kHcStreams);
  make(codes_, m * hidden);
  make(scales_, m * hidden / kScaleBlock);
  make(latent_, m * config.q_lora_rank);
  make(latent_codes_, m * config.q_lora_rank);
  make(latent_scales_, m * config.q_lora_rank / kScaleBlock);
  make(kv_, m * kernels::kKvDims);
  make(query_, m * heads_ * kernels::kKvDims);
  make(context_, m * heads_ * kernels::kKvDims);
  make(output_codes_, m * config.o_groups * config.o_lora_rank);
  make(output_scales_, m * config.o_groups * config.o_lora_rank / kScaleBlock);
  make(main_rows_, m * 4 * kernels::kKvDims);
  if (config.count_layers(LayerKind::kC4) > 0) {
    const int64_t entries = (limits.max_context + kC4Ratio - 1) / kC4Ratio;
    score_stride_ = (entries + kC4PageEntries - 1) / kC4PageEntries * kC4PageEntries;
    make(index_rows_, m * 4 * kernels::kIndexDims);
    make(index_weight_rows_, m * kernels::kIndexHeads);
    make(index_weights_, m * kernels::kIndexHeads);
    make(index_query_, m * kernels::kIndexHeads * kernels::kIndexDims);
    make(index_codes_, m * kernels::kIndexHeads * kernels::kIndexDims);
    make(scores_, m * score_stride_);
    make(picks_, m * config.index_topk);
  }
  const int64_t top = config.num_experts_per_tok;
  make(gate_logits_, m * config.n_routed_experts);
  make(routes_, m * top);
  make(route_weights_, m * top);
  make(router_counter_, 1);
  make(num_units_, 1);
  make(units_, kernels::max_expert_units(m, top, config.n_routed_experts, true));
  make(logits_, m * config.vocab_size);
  kernels::ExpertsParams experts;
  experts.num_tokens = tokens_;
  experts.hidden = narrow(hidden);
  experts.width = narrow(config.moe_intermediate_size);
  experts.slots = narrow(top) + 1;
  experts.num_experts = narrow(config.n_routed_experts);
  make(experts_workspace_, kernels::experts_workspace(experts).bytes);

  std::size_t workspace = 0;
  const auto plan = [&](int64_t second, bool dense) {
    const kernels::SparseAttentionShape shape{.num_queries = tokens_,
                                              .heads = heads_,
                                              .first_capacity = kernels::kWindowCapacity,
                                              .second_capacity = narrow(second),
                                              .second_is_dense = dense};
    BALEEN_CHECK(kernels::supports_sparse_attention(shape), "heads={}", heads_);
    const kernels::SparseAttentionPlan made =
        kernels::plan_sparse_attention(shape, kernels::AttentionMode::kFast, num_multiprocessors);
    workspace = std::max(workspace, kernels::sparse_attention_workspace_bytes(shape, made));
    return made;
  };
  window_plan_ = plan(0, false);
  c4_attention_ = plan(config.index_topk, false);
  c128_attention_ = plan(std::max<int64_t>(1, limits.max_context / kC128Ratio), true);
  // One after the other: every plan has a workspace of its own.
  make(attention_workspace_, 3 * static_cast<int64_t>((workspace + 255) / 256 * 256));
}

int64_t DecodePass::workspace_bytes() const {
  int64_t bytes = 0;
  const auto add = [&bytes](const auto&... buffers) {
    ((bytes += static_cast<int64_t>(buffers.bytes())), ...);
  };
  add(slots_,
      positions_,
      window_slots_,
      c4_entries_,
      c128_entries_,
      window_rows_,
      counts_,
      c4_plan_,
      c128_plan_,
      c4_writes_,
      c128_writes_,
      errors_,
      streams_,
      input_,
      part_,
      post_,
      comb_,
      codes_,
      scales_,
      latent_,
      kv_,
      query_,
      context_,
      index_query_,
      index_weight_rows_,
      latent_codes_,
      latent_scales_,
      output_codes_,
      output_scales_,
      index_codes_,
      main_rows_,
      index_rows_,
      index_weights_,
      scores_,
      gate_logits_,
      picks_,
      routes_,
      router_counter_,
      num_units_,
      route_weights_,
      units_,
      experts_workspace_,
      attention_workspace_,
      logits_);
  return bytes;
}

void DecodePass::metadata(device::StreamHandle stream) {
  kernels::StepMetadataParams params;
  params.slots = inputs_.slots != nullptr ? inputs_.slots : slots_.data();
  params.lengths = inputs_.lengths;
  params.chain_len = 1;
  params.max_requests = tokens_;
  params.num_requests = inputs_.num_requests;
  params.max_tokens = tokens_;
  params.page_table = inputs_.slot_table;
  params.table_blocks = inputs_.table_blocks;
  params.window_pages = inputs_.window_pages;
  params.positions = positions_.data();
  params.window_slots = window_slots_.data();
  params.c4_entries = c4_entries_.data();
  params.c128_entries = c128_entries_.data();
  params.window_rows = window_rows_.data();
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
  params.c4 = outputs(LayerKind::kC4, c4_plan_, c4_writes_, counts_.data());
  params.c128 = outputs(LayerKind::kC128, c128_plan_, c128_writes_, counts_.data() + 2);
  params.errors = errors_.data();
  kernels::step_metadata(params, stream);
  ++num_launches_;
}

void DecodePass::hyper(const DecodeHyper& hyper,
                       int32_t rows,
                       const uint16_t* part,
                       bool first,
                       device::StreamHandle stream) {
  const ModelConfig& config = model_.config;
  kernels::HcFusedParams params;
  params.parts[0] = part;
  params.num_parts = 1;
  params.residual = first ? nullptr : streams_.data();
  params.post = first ? nullptr : post_.data();
  params.comb = first ? nullptr : comb_.data();
  params.fn = hyper.fn;
  params.base = hyper.base;
  params.scale = hyper.scale;
  params.norm_weight = hyper.norm;
  params.streams = streams_.data();
  params.y = input_.data();
  if (rows == kernels::kHcRows) {
    params.post_out = post_.data();
    params.comb_out = comb_.data();
    params.codes = codes_.data();
    params.scales = scales_.data();
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
  task.x_scale_stride = matrix.inputs / kScaleBlock;
  task.num_outputs = matrix.outputs;
  task.num_inputs = matrix.inputs;
  task.format = matrix.format;
  return task;
}

kernels::LinearTask DecodePass::bf16_task(const DecodeMatrix& matrix,
                                          void* y,
                                          kernels::LinearOutput output) const {
  kernels::LinearTask task;
  task.weight = matrix.weight;
  task.x = input_.data();
  task.y = y;
  task.x_stride = matrix.inputs;
  task.y_stride = matrix.outputs;
  task.num_outputs = matrix.outputs;
  task.num_inputs = matrix.inputs;
  task.format = kernels::WeightFormat::kBf16;
  task.output = output;
  return task;
}

void DecodePass::linears(const std::vector<kernels::LinearTask>& tasks,
                         device::StreamHandle stream) {
  kernels::LinearParams params;
  std::copy(tasks.begin(), tasks.end(), params.tasks.begin());
  params.num_tasks = static_cast<int32_t>(tasks.size());
  params.num_tokens = tokens_;
  params.programmatic = limits_.programmatic;
  kernels::launch_linear(params, stream);
  ++num_launches_;
}

void DecodePass::project(const DecodeLayer& layer, device::StreamHandle stream) {
  std::vector<kernels::LinearTask> tasks = {
      fp8_task(layer.wq_a, codes_.data(), scales_.data(), latent_.data()),
      fp8_task(layer.wkv, codes_.data(), scales_.data(), kv_.data())};
  if (layer.spec.kind != LayerKind::kSwa) {
    tasks.push_back(bf16_task(layer.main.rows, main_rows_.data(), kernels::LinearOutput::kFloat32));
  }
  if (layer.spec.kind == LayerKind::kC4) {
    tasks.push_back(
        bf16_task(layer.index.rows, index_rows_.data(), kernels::LinearOutput::kFloat32));
    tasks.push_back(
        bf16_task(layer.index_weights, index_weight_rows_.data(), kernels::LinearOutput::kBf16));
  }
  linears(tasks, stream);
}

void DecodePass::after_projection(const DecodeLayer& layer, device::StreamHandle stream) {
  const ModelConfig& config = model_.config;
  const bool c4 = layer.spec.kind == LayerKind::kC4;
  kernels::AfterProjectionParams params;
  params.num_tokens = tokens_;
  params.eps = static_cast<float>(config.rms_norm_eps);
  params.latent = {.rows = latent_.data(),
                   .stride = config.q_lora_rank,
                   .width = narrow(config.q_lora_rank),
                   .weight = layer.q_norm,
                   .codes = latent_codes_.data(),
                   .scales = latent_scales_.data()};
  params.kv = {.rows = kv_.data(),
               .stride = kernels::kKvDims,
               .weight = layer.kv_norm,
               .frequencies = layer.spec.kind == LayerKind::kSwa ? model_.plain_frequencies
                                                                 : model_.compressed_frequencies,
               .positions = positions_.data(),
               .slots = window_slots_.data(),
               .pool = layer.window};
  const auto compress = [&](const DecodeCompressor& weights,
                            kernels::CompressorKind kind,
                            const device::Buffer<float>& rows,
                            kernels::CompressorPoolParams& pool,
                            kernels::CompressorRingParams& ring) {
    const bool by_four = kind != kernels::CompressorKind::kC128;
    pool.kind = kind;
    pool.rows = rows.data();
    pool.row_stride = 2 * int64_t{kernels::compressor_row_width(kind)};
    pool.num_rows = tokens_;
    pool.ape = weights.ape;
    pool.ring = weights.ring;
    pool.ring_size = weights.ring_size;
    pool.plan = by_four ? c4_plan_.data() : c128_plan_.data();
    pool.num_entries = counts_.data() + (by_four ? 0 : 2);
    pool.max_entries = tokens_;
    pool.norm_weight = weights.norm;
    pool.frequencies = model_.compressed_frequencies;
    pool.eps = params.eps;
    ring.kind = kind;
    ring.rows = pool.rows;
    ring.row_stride = pool.row_stride;
    ring.ape = weights.ape;
    ring.ring = weights.ring;
    ring.writes = by_four ? c4_writes_.data() : c128_writes_.data();
    ring.num_writes = counts_.data() + (by_four ? 1 : 3);
    ring.max_writes = tokens_;
  };
  if (layer.spec.kind != LayerKind::kSwa) {
    compress(layer.main,
             c4 ? kernels::CompressorKind::kC4 : kernels::CompressorKind::kC128,
             main_rows_,
             params.main,
             params.main_ring);
    params.main.kv_pool = layer.entries;
  }
  if (c4) {
    compress(
        layer.index, kernels::CompressorKind::kIndex, index_rows_, params.index, params.index_ring);
    params.index.index_pool = layer.index_keys;
    params.index_weights = {
        .rows = index_weight_rows_.data(),
        .stride = kernels::kIndexHeads,
        .constant = static_cast<float>(1.0 / std::sqrt(static_cast<double>(kernels::kIndexDims)) /
                                       std::sqrt(static_cast<double>(kernels::kIndexHeads))),
        .out = index_weights_.data()};
  }
  params.programmatic = limits_.programmatic;
  kernels::after_projection_sm90(params, stream);
  ++num_launches_;
}

void DecodePass::queries(const DecodeLayer& layer, device::StreamHandle stream) {
  const bool c4 = layer.spec.kind == LayerKind::kC4;
  std::vector<kernels::LinearTask> tasks = {
      fp8_task(layer.wq_b, latent_codes_.data(), latent_scales_.data(), query_.data())};
  if (c4) {
    tasks.push_back(fp8_task(
        layer.index_wq_b, latent_codes_.data(), latent_scales_.data(), index_query_.data()));
  }
  linears(tasks, stream);
  kernels::QueryFinishParams params;
  params.heads = {.rows = query_.data(),
                  .num_heads = heads_,
                  .eps = static_cast<float>(model_.config.rms_norm_eps),
                  .frequencies = layer.spec.kind == LayerKind::kSwa ? model_.plain_frequencies
                                                                    : model_.compressed_frequencies,
                  .out = query_.data()};
  if (c4) {
    params.index = {.rows = index_query_.data(),
                    .num_heads = kernels::kIndexHeads,
                    .frequencies = model_.compressed_frequencies,
                    .weights = index_weights_.data(),
                    .codes = index_codes_.data(),
                    .weights_out = index_weights_.data()};
  }
  params.positions = positions_.data();
  params.num_tokens = tokens_;
  params.programmatic = limits_.programmatic;
  kernels::query_finish(params, stream);
  ++num_launches_;
}

void DecodePass::pick(const DecodeLayer& layer, device::StreamHandle stream) {
  kernels::IndexerScoresParams scores;
  scores.queries = index_codes_.data();
  scores.head_weights = index_weights_.data();
  scores.key_pages = layer.index_keys.base;
  scores.num_pages = model_.num_full_pages;
  scores.page_table = inputs_.row_table;
  scores.page_table_stride = inputs_.table_blocks;
  scores.lengths = c4_entries_.data();
  scores.scores = scores_.data();
  scores.score_stride = score_stride_;
  scores.num_requests = tokens_;
  scores.programmatic = limits_.programmatic;
  kernels::launch_indexer_scores(scores, stream);
  kernels::IndexerTopkParams topk;
  topk.scores = scores_.data();
  topk.score_stride = score_stride_;
  topk.lengths = c4_entries_.data();
  topk.slots = picks_.data();
  topk.list_stride = model_.config.index_topk;
  topk.page_table = inputs_.row_table;
  topk.page_table_stride = inputs_.table_blocks;
  topk.page_entries = kC4PageEntries;
  topk.max_entries = score_stride_;
  topk.num_rows = tokens_;
  topk.k = narrow(model_.config.index_topk);
  topk.programmatic = limits_.programmatic;
  kernels::launch_indexer_topk(topk, stream);
  num_launches_ += 2;
}

void DecodePass::attend(const DecodeLayer& layer, device::StreamHandle stream) {
  kernels::SparseAttentionParams params;
  params.q = query_.data();
  params.first = {.pool = layer.window,
                  .rows = window_rows_.data(),
                  .stride = kernels::kWindowCapacity,
                  .capacity = kernels::kWindowCapacity};
  params.plan = window_plan_;
  const auto third = static_cast<std::size_t>(attention_workspace_.count() / 3);
  uint8_t* workspace = attention_workspace_.data();
  if (layer.spec.kind == LayerKind::kC4) {
    params.second = {.pool = layer.entries,
                     .rows = picks_.data(),
                     .stride = model_.config.index_topk,
                     .capacity = narrow(model_.config.index_topk)};
    params.plan = c4_attention_;
    workspace += third;
  } else if (layer.spec.kind == LayerKind::kC128) {
    params.second = {.pool = layer.entries,
                     .pages = inputs_.row_table,
                     .lengths = c128_entries_.data(),
                     .stride = inputs_.table_blocks,
                     .capacity = narrow(std::max<int64_t>(1, limits_.max_context / kC128Ratio)),
                     .entries_per_page = kC128PageEntries};
    params.plan = c128_attention_;
    workspace += 2 * third;
  }
  params.sink = layer.sink;
  params.o = context_.data();
  params.positions = positions_.data();
  params.frequencies =
      layer.spec.kind == LayerKind::kSwa ? model_.plain_frequencies : model_.compressed_frequencies;
  params.workspace = workspace;
  params.num_queries = tokens_;
  params.heads = heads_;
  params.programmatic = limits_.programmatic;
  kernels::launch_sparse_attention(params, stream);
  ++num_launches_;
}

void DecodePass::project_out(const DecodeLayer& layer, device::StreamHandle stream) {
  const ModelConfig& config = model_.config;
  kernels::GroupedProjectionParams params;
  params.weight = layer.wo_a.weight;
  params.weight_scales = layer.wo_a.scales;
  params.x = context_.data();
  params.y = output_codes_.data();
  params.y_scales = output_scales_.data();
  params.num_tokens = tokens_;
  params.groups = narrow(config.o_groups);
  params.outputs = narrow(config.o_lora_rank);
  params.inputs = layer.wo_a.inputs;
  params.stored = layer.wo_a.format;
  params.output = kernels::LinearOutput::kE4m3;
  params.programmatic = limits_.programmatic;
  kernels::launch_grouped_projection(params, stream);
  ++num_launches_;
  linears({fp8_task(layer.wo_b, output_codes_.data(), output_scales_.data(), part_.data())},
          stream);
}

void DecodePass::experts(const DecodeLayer& layer, device::StreamHandle stream) {
  const ModelConfig& config = model_.config;
  linears({bf16_task(layer.gate, gate_logits_.data(), kernels::LinearOutput::kFloat32)}, stream);
  const kernels::ExpertLists lists{.num_units = num_units_.data(), .units = units_.data()};
  kernels::RouterParams router;
  router.logits = gate_logits_.data();
  router.bias = layer.gate_bias;
  router.table = layer.hash_table;
  router.token_ids = inputs_.ids;
  router.routes = routes_.data();
  router.weights = route_weights_.data();
  router.counter = router_counter_.data();
  router.num_tokens = tokens_;
  router.num_experts = narrow(config.n_routed_experts);
  router.top = narrow(config.num_experts_per_tok);
  router.scale = static_cast<float>(config.routed_scaling_factor);
  router.shared_expert = true;
  router.programmatic = limits_.programmatic;
  router.lists = lists;
  kernels::launch_router(router, stream);
  kernels::ExpertsParams params;
  params.x_codes = codes_.data();
  params.x_scales = scales_.data();
  params.lists = lists;
  params.up = layer.experts.up;
  params.down = layer.experts.down;
  params.shared_up = layer.experts.shared_up;
  params.shared_down = layer.experts.shared_down;
  params.y = part_.data();
  params.workspace = experts_workspace_.data();
  params.num_tokens = tokens_;
  params.hidden = narrow(config.hidden_size);
  params.width = narrow(config.moe_intermediate_size);
  params.slots = router.top + 1;
  params.num_experts = router.num_experts;
  params.leaf_blocks = std::max(1, params.width / kScaleBlock / 8);
  params.limit = static_cast<float>(config.swiglu_limit);
  params.shared_limit = params.limit;
  params.programmatic = limits_.programmatic;
  kernels::launch_experts(params, stream);
  num_launches_ += 2;
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
  kernels::token_rows({.table = model_.embed,
                       .ids = inputs_.ids,
                       .out = part_.data(),
                       .vocab = narrow(model_.config.vocab_size),
                       .width = narrow(model_.config.hidden_size),
                       .num_tokens = tokens_,
                       .programmatic = limits_.programmatic},
                      stream);
  ++num_launches_;
  for (std::size_t i = 0; i < model_.layers.size(); ++i) {
    const DecodeLayer& layer = model_.layers[i];
    const auto number = static_cast<int64_t>(i);
    stage("hyper", number);
    hyper(layer.hc_attn, kernels::kHcRows, part_.data(), i == 0, stream);
    stage("projections", number);
    project(layer, stream);
    stage("after_projection", number);
    after_projection(layer, stream);
    stage("queries", number);
    queries(layer, stream);
    if (layer.spec.kind == LayerKind::kC4) {
      stage("index", number);
      pick(layer, stream);
    }
    stage("attention", number);
    attend(layer, stream);
    stage("output", number);
    project_out(layer, stream);
    stage("hyper", number);
    hyper(layer.hc_ffn, kernels::kHcRows, part_.data(), false, stream);
    stage("experts", number);
    experts(layer, stream);
  }
  stage("head", -1);
  hyper(model_.head_hyper, kernels::kHcHeadRows, part_.data(), false, stream);
  linears({bf16_task(model_.head, logits_.data(), kernels::LinearOutput::kFloat32)}, stream);
  stage("end", -1);
}

}  // namespace baleen::runner
