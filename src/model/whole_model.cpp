#include "model/whole_model.h"

#include <string>
#include <utility>

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>

#include "base/check.h"
#include "model/choices.h"
#include "model/head.h"
#include "model/mtp.h"
#include "model/stages.h"
#include "ops/linear.h"

namespace baleen::model {
namespace {

/// Streams [N, n, H] after the last main block.
at::Tensor run_main_blocks(const ModelParameters& params, const StepContext& step) {
  at::Tensor streams = embed_stage(params, step);
  step.capture("", "embedding", streams);
  return run_blocks(params, std::move(streams), 0, params.blocks.size(), step);
}

/// head_logits() with its points in the trace.
at::Tensor traced_logits(const at::Tensor& streams,
                         const HeadParameters& head,
                         const at::Tensor& output_matrix,
                         const std::string& prefix,
                         const StepContext& step) {
  const at::Tensor hidden = head_hidden(streams, head, step.config, step.numerics);
  step.capture(prefix, "hidden", hidden);
  const at::Tensor logits = ops::linear_unrounded(hidden, output_matrix, step.numerics);
  step.capture(prefix, "logits", logits);
  return logits;
}

at::Tensor gather_rows(const at::Tensor& flat, const std::vector<LogitsSpan>& spans) {
  std::vector<at::Tensor> parts;
  int64_t total = 0;
  for (const LogitsSpan& span : spans) {
    if (span.count > 0) {
      parts.push_back(flat.narrow(0, span.begin, span.count));
      total += span.count;
    }
  }
  if (parts.empty()) {
    return {};
  }
  if (total == flat.size(0)) {
    return flat;
  }
  return parts.size() == 1 ? parts[0] : at::cat(parts, 0);
}

/// Where the gathered rows lie in the result.
std::vector<LogitsSpan> packed(const std::vector<LogitsSpan>& spans) {
  std::vector<LogitsSpan> result;
  int64_t begin = 0;
  for (const LogitsSpan& span : spans) {
    result.push_back({begin, span.count});
    begin += span.count;
  }
  return result;
}

/// MTP rows that the new tokens complete, one group per sequence that has any.
struct MtpStep {
  std::vector<SequenceGroup> groups;
  std::vector<at::Tensor> streams;
  std::vector<at::Tensor> next_ids;
  std::vector<LogitsSpan> wanted;  // per StepRow, into the rows of this step
  int64_t num_rows = 0;
};

MtpStep plan_mtp(const StepContext& main,
                 const std::vector<StepRow>& rows,
                 const at::Tensor& streams) {
  MtpStep plan;
  for (std::size_t g = 0; g < main.groups.size(); ++g) {
    const SequenceGroup& group = main.groups[g];
    plan.wanted.push_back({plan.num_rows, 0});
    if (!group.state->options().with_mtp || rows[g].mtp == MtpRows::kNone) {
      BALEEN_CHECK(!rows[g].mtp_logits, "MTP logits of row {}, which runs without MTP", g);
      continue;
    }
    RowStore& history = group.state->streams();
    history.append(streams.narrow(0, group.row_begin, group.tokens).flatten(1));
    // The last token of the sequence waits for its successor.
    const int64_t first = group.state->mtp_layer(0).raw->end();
    const int64_t known = group.first_position + group.tokens - 1 - first;
    const int64_t count = known + (rows[g].next_id >= 0 ? 1 : 0);
    if (count <= 0 || rows[g].mtp == MtpRows::kKeepStreams) {
      continue;
    }
    plan.groups.push_back({.tokens = count, .first_position = first, .state = group.state});
    plan.streams.push_back(
        history.view(first, first + count).reshape({count, streams.size(1), streams.size(2)}));
    if (known > 0) {
      plan.next_ids.push_back(
          main.ids.narrow(0, group.row_begin + first + 1 - group.first_position, known));
    }
    if (rows[g].next_id >= 0) {
      plan.next_ids.push_back(at::full({1}, rows[g].next_id, main.ids.options()));
    }
    if (rows[g].mtp_logits) {
      plan.wanted.back().count = count;
    }
    plan.num_rows += count;
  }
  return plan;
}

}  // namespace

TrainingOutput forward_training(const ModelParameters& params,
                                const at::Tensor& ids,
                                const ForwardOptions& options) {
  const ModelConfig& config = params.config;
  BALEEN_CHECK(ids.dim() == 2 && ids.numel() > 0, "ids must be [B, T]");
  const int64_t batch = ids.size(0);
  const int64_t tokens = ids.size(1);
  RopeTables own_tables;
  if (options.tables == nullptr) {
    own_tables = make_rope_tables(config, tokens, params.embed, options.numerics);
  }
  const RopeTables& tables = options.tables == nullptr ? own_tables : *options.tables;
  if (options.taps != nullptr) {
    options.taps->layers.assign(config.layers.size(), {});
  }

  StepContext step(config,
                   options.numerics,
                   tables,
                   ids.reshape({-1}),
                   {{.batch = batch, .tokens = tokens, .first_position = 0}});
  step.trace = options.trace;
  step.taps = options.taps;
  const at::Tensor streams = run_main_blocks(params, step);
  TrainingOutput output;
  output.logits = traced_logits(streams, params.final_head, params.head, "", step)
                      .view({batch, tokens, config.vocab_size});
  if (!options.with_mtp || tokens < 2) {
    return output;
  }

  BALEEN_CHECK(params.mtp.size() == 1, "{} MTP blocks", params.mtp.size());
  const int64_t pairs = tokens - 1;
  StepContext mtp_step(config,
                       options.numerics,
                       tables,
                       ids.narrow(1, 1, pairs).reshape({-1}),
                       {{.batch = batch, .tokens = pairs, .first_position = 0}});
  mtp_step.trace = options.trace;
  mtp_step.taps = options.taps;
  const at::Tensor main_streams = streams.view({batch, tokens, config.hc_mult, config.hidden_size})
                                      .narrow(1, 0, pairs)
                                      .reshape({batch * pairs, config.hc_mult, config.hidden_size});
  const at::Tensor mtp_streams = run_mtp_block(main_streams, params, 0, mtp_step);
  output.mtp_logits =
      traced_logits(mtp_streams, params.mtp[0].head, params.head, "mtp.0.", mtp_step)
          .view({batch, pairs, config.vocab_size});
  return output;
}

StepOutput forward_step(const ModelParameters& params,
                        const RopeTables& tables,
                        const std::vector<StepRow>& rows,
                        const at::Tensor& ids,
                        const ops::Numerics& numerics,
                        Trace* trace,
                        StepChoices* choices,
                        const RunMainBlocks& main_blocks) {
  const ModelConfig& config = params.config;
  std::vector<SequenceGroup> groups;
  groups.reserve(rows.size());
  for (const StepRow& row : rows) {
    groups.push_back(
        {.tokens = row.num_tokens, .first_position = row.state->num_tokens(), .state = row.state});
  }
  StepContext step(config, numerics, tables, ids, std::move(groups));
  step.trace = trace;
  if (choices != nullptr) {
    *choices = {.groups = step.groups, .experts = {}, .picks = {}};
    step.choices = choices;
  }
  const at::Tensor streams =
      main_blocks ? main_blocks(embed_stage(params, step), step) : run_main_blocks(params, step);

  StepOutput output;
  std::vector<LogitsSpan> wanted;
  for (std::size_t g = 0; g < rows.size(); ++g) {
    const SequenceGroup& group = step.groups[g];
    const int64_t count = rows[g].logits == LogitsWanted::kAll    ? group.tokens
                          : rows[g].logits == LogitsWanted::kLast ? 1
                                                                  : 0;
    wanted.push_back({group.row_begin + group.tokens - count, count});
  }
  const at::Tensor chosen = gather_rows(streams, wanted);
  if (chosen.defined()) {
    output.logits = traced_logits(chosen, params.final_head, params.head, "", step);
  }
  output.spans = packed(wanted);

  const MtpStep mtp = plan_mtp(step, rows, streams);
  if (!mtp.groups.empty()) {
    StepContext mtp_step(config, numerics, tables, at::cat(mtp.next_ids, 0), mtp.groups);
    mtp_step.trace = trace;
    const at::Tensor mtp_streams = run_mtp_block(at::cat(mtp.streams, 0), params, 0, mtp_step);
    const at::Tensor mtp_chosen = gather_rows(mtp_streams, mtp.wanted);
    if (mtp_chosen.defined()) {
      output.mtp_logits =
          traced_logits(mtp_chosen, params.mtp[0].head, params.head, "mtp.0.", mtp_step);
    }
  }
  output.mtp_spans = packed(mtp.wanted);
  for (const StepRow& row : rows) {
    row.state->advance(row.num_tokens);
  }
  return output;
}

}  // namespace baleen::model
