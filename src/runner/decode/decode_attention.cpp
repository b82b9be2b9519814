// The stages of a layer's attention, from the rows of the hyper-connection to the rows it gets
// back.

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <utility>

#include "kernels/after_projection/after_projection.h"
#include "kernels/grouped_projection/grouped_projection.h"
#include "kernels/grouped_prompt/grouped_prompt.h"
#include "kernels/indexer_scores/indexer_scores.h"
#include "kernels/indexer_topk/indexer_topk.h"
#include "kernels/query_finish/query_finish.h"
#include "runner/decode/decode_pass.h"

namespace baleen::runner {

void DecodePass::project(const DecodeLayer& layer, device::StreamHandle stream) {
  std::array<kernels::LinearTask, 5> tasks = {
      fp8_task(layer.wq_a, work_.codes.data(), work_.scales.data(), work_.latent.data()),
      fp8_task(layer.wkv, work_.codes.data(), work_.scales.data(), work_.kv.data())};
  std::size_t count = 2;
  const auto add = [&](const DecodeMatrix& matrix, void* y, kernels::LinearOutput output) {
    tasks[count++] = bf16_task(matrix, work_.input.data(), y, output);
  };
  if (layer.spec.kind != LayerKind::kSwa) {
    add(layer.main.rows, work_.main_rows.data(), kernels::LinearOutput::kFloat32);
  }
  if (layer.spec.kind == LayerKind::kC4) {
    add(layer.index.rows, work_.index_rows.data(), kernels::LinearOutput::kFloat32);
    add(layer.index_weights, work_.index_weight_rows.data(), kernels::LinearOutput::kBf16);
  }
  linears(std::span(tasks).first(count), tokens_, stream);
}

void DecodePass::after_projection(const DecodeLayer& layer, device::StreamHandle stream) {
  const ModelConfig& config = model_.config;
  const bool c4 = layer.spec.kind == LayerKind::kC4;
  kernels::AfterProjectionParams params;
  params.num_tokens = tokens_;
  params.eps = static_cast<float>(config.rms_norm_eps);
  params.latent = {.rows = work_.latent.data(),
                   .stride = config.q_lora_rank,
                   .width = narrow(config.q_lora_rank),
                   .weight = layer.q_norm,
                   .codes = work_.latent_codes.data(),
                   .scales = work_.latent_scales.data()};
  params.kv = {.rows = work_.kv.data(),
               .stride = kernels::kKvDims,
               .weight = layer.kv_norm,
               .frequencies = layer.spec.kind == LayerKind::kSwa ? model_.plain_frequencies
                                                                 : model_.compressed_frequencies,
               .positions = work_.positions.data(),
               .slots = work_.window_slots.data(),
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
    pool.plan = by_four ? work_.c4_plan.data() : work_.c128_plan.data();
    pool.num_entries = work_.counts.data() + (by_four ? 0 : 2);
    pool.max_entries = tokens_;
    pool.norm_weight = weights.norm;
    pool.frequencies = model_.compressed_frequencies;
    pool.eps = params.eps;
    ring.kind = kind;
    ring.rows = pool.rows;
    ring.row_stride = pool.row_stride;
    ring.ape = weights.ape;
    ring.ring = weights.ring;
    ring.writes = by_four ? work_.c4_writes.data() : work_.c128_writes.data();
    ring.num_writes = work_.counts.data() + (by_four ? 1 : 3);
    ring.max_writes = tokens_;
  };
  if (layer.spec.kind != LayerKind::kSwa) {
    compress(layer.main,
             c4 ? kernels::CompressorKind::kC4 : kernels::CompressorKind::kC128,
             work_.main_rows,
             params.main,
             params.main_ring);
    params.main.kv_pool = layer.entries;
  }
  if (c4) {
    compress(layer.index,
             kernels::CompressorKind::kIndex,
             work_.index_rows,
             params.index,
             params.index_ring);
    params.index.index_pool = layer.index_keys;
    params.index_weights = {
        .rows = work_.index_weight_rows.data(),
        .stride = kernels::kIndexHeads,
        .constant = static_cast<float>(1.0 / std::sqrt(static_cast<double>(kernels::kIndexDims)) /
                                       std::sqrt(static_cast<double>(kernels::kIndexHeads))),
        .out = work_.index_weights.data()};
  }
  params.programmatic = limits_.programmatic;
  if (!limits_.prompts || layer.spec.kind == LayerKind::kSwa) {
    kernels::after_projection_sm90(params, stream);
    ++num_launches_;
    return;
  }
  // A prompt may write ring rows that its own groups still read: it writes when all are pooled.
  kernels::AfterProjectionParams rings;
  rings.num_tokens = tokens_;
  rings.main.kind = params.main.kind;
  rings.main_ring = std::exchange(params.main_ring, {.kind = params.main.kind});
  rings.index_ring = std::exchange(params.index_ring, {});
  kernels::after_projection_sm90(params, stream);
  kernels::after_projection_sm90(rings, stream);
  num_launches_ += 2;
}

void DecodePass::queries(const DecodeLayer& layer, device::StreamHandle stream) {
  const bool c4 = layer.spec.kind == LayerKind::kC4;
  std::array<kernels::LinearTask, 2> tasks = {fp8_task(
      layer.wq_b, work_.latent_codes.data(), work_.latent_scales.data(), work_.query.data())};
  if (c4) {
    tasks[1] = fp8_task(layer.index_wq_b,
                        work_.latent_codes.data(),
                        work_.latent_scales.data(),
                        work_.index_query.data());
  }
  linears(std::span(tasks).first(c4 ? 2 : 1), tokens_, stream);
  kernels::QueryFinishParams params;
  params.heads = {.rows = work_.query.data(),
                  .num_heads = heads_,
                  .eps = static_cast<float>(model_.config.rms_norm_eps),
                  .frequencies = layer.spec.kind == LayerKind::kSwa ? model_.plain_frequencies
                                                                    : model_.compressed_frequencies,
                  .out = work_.query.data()};
  if (c4) {
    params.index = {.rows = work_.index_query.data(),
                    .num_heads = kernels::kIndexHeads,
                    .frequencies = model_.compressed_frequencies,
                    .weights = work_.index_weights.data(),
                    .codes = work_.index_codes.data(),
                    .weights_out = work_.index_weights.data()};
  }
  params.positions = work_.positions.data();
  params.num_tokens = tokens_;
  params.programmatic = limits_.programmatic;
  kernels::query_finish(params, stream);
  ++num_launches_;
}

/// `picking`: number of the layer among those that pick, which its record goes by.
void DecodePass::pick(const DecodeLayer& layer, int32_t picking, device::StreamHandle stream) {
  kernels::IndexerScoresParams scores;
  scores.queries = work_.index_codes.data();
  scores.head_weights = work_.index_weights.data();
  scores.key_pages = layer.index_keys.base;
  scores.num_pages = model_.num_full_pages;
  scores.page_table = inputs_.row_table;
  scores.page_table_stride = inputs_.table_blocks;
  scores.lengths = work_.c4_entries.data();
  scores.scores = work_.scores.data();
  scores.score_stride = score_stride_;
  scores.num_requests = tokens_;
  scores.programmatic = limits_.programmatic;
  kernels::launch_indexer_scores(scores, stream);
  kernels::IndexerTopkParams topk;
  topk.scores = work_.scores.data();
  topk.score_stride = score_stride_;
  topk.lengths = work_.c4_entries.data();
  topk.slots = work_.picks.data();
  topk.list_stride = model_.config.index_topk;
  if (work_.pick_record.count() > 0) {
    topk.indices =
        work_.pick_record.data() + int64_t{picking} * work_.max_requests * model_.config.index_topk;
  }
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
  params.q = work_.query.data();
  params.first = {.pool = layer.window,
                  .rows = work_.window_rows.data(),
                  .stride = kernels::kWindowCapacity,
                  .capacity = kernels::kWindowCapacity};
  params.plan = attention_.window;
  const auto third = static_cast<std::size_t>(attention_.stretch);
  uint8_t* workspace = attention_workspace_.data();
  if (layer.spec.kind == LayerKind::kC4) {
    params.second = {.pool = layer.entries,
                     .rows = work_.picks.data(),
                     .stride = model_.config.index_topk,
                     .capacity = narrow(model_.config.index_topk)};
    params.plan = attention_.c4;
    workspace += third;
  } else if (layer.spec.kind == LayerKind::kC128) {
    params.second = {.pool = layer.entries,
                     .pages = inputs_.row_table,
                     .lengths = work_.c128_entries.data(),
                     .stride = inputs_.table_blocks,
                     .capacity = narrow(std::max<int64_t>(1, context_ / kC128Ratio)),
                     .entries_per_page = kC128PageEntries};
    params.plan = attention_.c128;
    workspace += 2 * third;
  }
  params.sink = layer.sink;
  params.o = work_.context.data();
  params.positions = work_.positions.data();
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
  params.x = work_.context.data();
  params.y = work_.output_codes.data();
  params.y_scales = work_.output_scales.data();
  params.num_tokens = tokens_;
  params.groups = narrow(config.o_groups);
  params.outputs = narrow(config.o_lora_rank);
  params.inputs = layer.wo_a.inputs;
  params.stored = layer.wo_a.format;
  params.output = kernels::LinearOutput::kE4m3;
  params.programmatic = limits_.programmatic;
  if (limits_.prompts && limits_.forms.wide_linears &&
      kernels::grouped_prompt_serves(params)) {  // of the same bits
    kernels::launch_grouped_prompt(params, stream);
  } else {
    kernels::launch_grouped_projection(params, stream);
  }
  ++num_launches_;
  const kernels::LinearTask task = fp8_task(
      layer.wo_b, work_.output_codes.data(), work_.output_scales.data(), work_.part.data());
  linears({&task, 1}, tokens_, stream);
}

}  // namespace baleen::runner
