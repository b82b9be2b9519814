#include "rl/parity_points.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include <ATen/ATen.h>

#include "base/check.h"
#include "kernels/sampling/sampling.h"
#include "model/whole_model.h"
#include "ops/linear.h"
#include "train/packed_forward.h"
#include "train/row_logprobs.h"

namespace baleen::rl {
namespace {

using model::SequenceGroup;
using model::Trace;

enum class PointKind : uint8_t {
  kRows,     // [N, ...] of the step
  kAsking,   // the same, made only where the token sees an entry
  kQueries,  // [B, T, ...] of a group
  kSeen,     // [B, T, E] of a group, entries that each query sees
  kEntries,  // [B, E, ...] of a group
};

struct PointName {
  std::string_view name;
  PointKind kind;
};

constexpr std::array<PointName, 19> kLayerPoints = {{
    {"hc_attn.post", PointKind::kRows},
    {"hc_attn.comb", PointKind::kRows},
    {"attn.input", PointKind::kRows},
    {"attn.q", PointKind::kRows},
    {"attn.kv", PointKind::kRows},
    {"attn.entries", PointKind::kEntries},
    {"attn.index_query", PointKind::kAsking},
    {"attn.index_keys", PointKind::kEntries},
    {"attn.index_scores", PointKind::kSeen},
    {"attn.picks", PointKind::kSeen},
    {"attn.context", PointKind::kQueries},
    {"attn.output", PointKind::kRows},
    {"hc_ffn.post", PointKind::kRows},
    {"hc_ffn.comb", PointKind::kRows},
    {"ffn.input", PointKind::kRows},
    {"ffn.scores", PointKind::kRows},
    {"ffn.experts", PointKind::kRows},
    {"ffn.output", PointKind::kRows},
    {"streams", PointKind::kRows},
}};

/// Where the tokens of one text lie in a step.
struct Span {
  std::size_t group = 0;
  int64_t place = 0;  // in the group
  int64_t row_begin = 0;
  int64_t first_position = 0;
  int64_t num_tokens = 0;  // without padding
};

/// Of tokens from position `first_wanted` on.
void take_rows(const at::Tensor& value,
               const Span& span,
               const std::string& name,
               TokenPoints& out,
               int64_t first_wanted = 0) {
  for (int64_t t = 0; t < span.num_tokens; ++t) {
    if (span.first_position + t >= first_wanted) {
      out.set(name, span.first_position + t, value[span.row_begin + t]);
    }
  }
}

void take_group(const at::Tensor& value,
                PointKind kind,
                int64_t ratio,
                const Span& span,
                const std::string& name,
                TokenPoints& out) {
  const at::Tensor of_text = value[span.place];
  const int64_t end = span.first_position + span.num_tokens;
  if (kind == PointKind::kEntries) {
    for (int64_t entry = span.first_position / ratio; entry < end / ratio; ++entry) {
      out.set(name, (entry + 1) * ratio - 1, of_text[entry]);
    }
    return;
  }
  for (int64_t t = 0; t < span.num_tokens; ++t) {
    const int64_t position = span.first_position + t;
    at::Tensor row = of_text[t];
    if (kind == PointKind::kSeen) {
      const int64_t visible = (position + 1) / ratio;
      if (visible == 0) {
        continue;
      }
      row = row.narrow(0, 0, visible);
    }
    out.set(name, position, row);
  }
}

/// Experts ascending, and the weights in their order: lists of the same experts are equal.
void take_experts(const Trace& trace,
                  const std::string& prefix,
                  const Span& span,
                  TokenPoints& out) {
  const auto [experts, order] = at::sort(trace.at(prefix + "ffn.experts"), -1);
  take_rows(experts, span, prefix + "ffn.experts", out);
  take_rows(trace.at(prefix + "ffn.weights").gather(-1, order), span, prefix + "ffn.weights", out);
}

void take_trace(const Trace& trace, const ModelConfig& config, const Span& span, TokenPoints& out) {
  take_rows(trace.at("embedding"), span, "embedding", out);
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const std::string prefix = "layers." + std::to_string(layer) + ".";
    const LayerSpec& spec = config.layers[static_cast<std::size_t>(layer)];
    for (const PointName& point : kLayerPoints) {
      const std::string name = prefix + std::string(point.name);
      if (point.name == "ffn.experts") {
        take_experts(trace, prefix, span, out);
        continue;
      }
      const bool asking = point.kind == PointKind::kAsking;
      const bool by_group = point.kind != PointKind::kRows && !asking;
      const std::string stored =
          by_group && span.group > 0 ? name + "#" + std::to_string(span.group) : name;
      if (!trace.contains(stored) || !trace.at(stored).defined()) {
        continue;
      }
      if (by_group) {
        take_group(trace.at(stored), point.kind, spec.ratio, span, name, out);
      } else {
        take_rows(trace.at(stored), span, name, out, asking ? spec.ratio - 1 : 0);
      }
    }
  }
}

/// As the engine gives it for a sampled token.
at::Tensor engine_logprob(const at::Tensor& logits, double temperature, int32_t id) {
  const at::Tensor row = (temperature == 1.0 ? logits : logits / temperature).contiguous();
  const auto count = static_cast<std::size_t>(row.numel());
  if (row.scalar_type() == at::kDouble) {
    return at::scalar_tensor(
        kernels::plain_logprob<double>({row.const_data_ptr<double>(), count}, id), row.options());
  }
  return at::scalar_tensor(kernels::plain_logprob<float>({row.const_data_ptr<float>(), count}, id),
                           row.options());
}

}  // namespace

void TokenPoints::set(const std::string& point, int64_t token, const at::Tensor& value) {
  std::vector<at::Tensor>& tokens = points_[point];
  tokens.resize(static_cast<std::size_t>(num_tokens_));
  tokens.at(static_cast<std::size_t>(token)) = value.detach().flatten().clone();
}

const std::vector<at::Tensor>& TokenPoints::at(const std::string& point) const {
  const auto found = points_.find(point);
  BALEEN_CHECK(found != points_.end(), "no point {}", point);
  return found->second;
}

std::vector<TokenPoints> engine_points(const model::ModelParameters& params,
                                       const std::vector<TokenIds>& samples,
                                       const EnginePass& pass) {
  const at::NoGradGuard no_grad;
  std::vector<TokenPoints> all;
  for (const TokenIds& ids : samples) {
    const auto fed = static_cast<int64_t>(ids.size()) - 1;
    BALEEN_CHECK(fed > 0 && pass.prefill > 0 && pass.chunk > 0, "{} tokens", ids.size());
    const model::RopeTables tables =
        model::make_rope_tables(params.config, fed, params.embed, pass.numerics);
    model::SequenceState state(params.config, {}, params.embed.options());
    TokenPoints points(fed);
    for (int64_t begin = 0; begin < fed;) {
      const int64_t count = std::min(begin == 0 ? pass.prefill : pass.chunk, fed - begin);
      if (pass.before_step) {
        pass.before_step(state, begin);
      }
      at::Tensor step_ids = at::empty({count}, at::kLong);
      std::copy_n(ids.begin() + begin, count, step_ids.mutable_data_ptr<int64_t>());
      Trace trace;
      const model::StepOutput out = model::forward_step(
          params,
          tables,
          {{.state = &state, .num_tokens = count, .logits = model::LogitsWanted::kAll}},
          step_ids,
          pass.numerics,
          &trace);
      const Span span{.first_position = begin, .num_tokens = count};
      take_trace(trace, params.config, span, points);
      take_rows(trace.at("hidden"), span, "hidden", points);
      take_rows(out.logits, span, "logits", points);
      for (int64_t t = 0; t < count; ++t) {
        const int32_t next = ids[static_cast<std::size_t>(begin + t + 1)];
        points.set("logprob", begin + t, engine_logprob(out.logits[t], pass.temperature, next));
      }
      begin += count;
    }
    all.push_back(std::move(points));
  }
  return all;
}

std::vector<TokenPoints> trainer_points(const model::ModelParameters& params,
                                        const std::vector<TokenIds>& samples,
                                        const TrainerPass& pass) {
  const at::NoGradGuard no_grad;
  std::vector<train::Sample> texts;
  int64_t longest = 0;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    texts.push_back({.number = static_cast<int64_t>(i),
                     .ids = samples[i],
                     .weights = std::vector<float>(samples[i].size(), 1.0F)});
    longest = std::max(longest, texts.back().fed_tokens() + pass.pad_multiple);
  }
  const train::PackedBatch batch = train::pack(texts,
                                               {.weight = 1.0, .mtp_weight = 1.0},
                                               {.device = params.embed.device(),
                                                .dtype = params.embed.scalar_type(),
                                                .pad_multiple = pass.pad_multiple});
  const model::RopeTables tables =
      model::make_rope_tables(params.config, longest, params.embed, pass.numerics);
  Trace trace;
  const train::PackedForward out = train::packed_forward(
      params,
      batch,
      {.numerics = pass.numerics, .tables = &tables, .trace = &trace, .given = pass.given});
  const at::Tensor targets =
      pass.target_shift == 0 ? batch.main.targets : at::roll(batch.main.targets, pass.target_shift);
  const at::Tensor logprobs =
      train::row_logprobs(out.hidden,
                          params.head,
                          targets,
                          {.numerics = pass.numerics, .temperature = pass.temperature})
          .logprobs;
  const at::Tensor logits = ops::linear_unrounded(out.hidden, params.head, pass.numerics);

  std::vector<TokenPoints> all;
  for (const TokenIds& ids : samples) {
    all.emplace_back(static_cast<int64_t>(ids.size()) - 1);
  }
  std::size_t next = 0;
  for (std::size_t g = 0; g < batch.groups.size(); ++g) {
    for (int64_t b = 0; b < batch.groups[g].batch; ++b) {
      const train::PackedSample& sample = batch.samples[next++];
      const Span span{
          .group = g, .place = b, .row_begin = sample.row_begin, .num_tokens = sample.tokens};
      take_trace(trace, params.config, span, all[static_cast<std::size_t>(sample.number)]);
    }
  }
  for (std::size_t row = 0; row < batch.main.samples.size(); ++row) {
    const auto place = static_cast<std::size_t>(batch.main.samples[row]);
    TokenPoints& points = all[static_cast<std::size_t>(batch.samples[place].number)];
    const auto at = static_cast<int64_t>(row);
    points.set("hidden", batch.main.positions[row], out.hidden[at]);
    points.set("logits", batch.main.positions[row], logits[at]);
    points.set("logprob", batch.main.positions[row], logprobs[at]);
  }
  return all;
}

}  // namespace baleen::rl
