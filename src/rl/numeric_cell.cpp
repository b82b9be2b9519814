#include "rl/numeric_cell.h"

#include <algorithm>
#include <map>
#include <span>
#include <utility>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "base/error.h"
#include "kernels/sampling/sampling.h"
#include "model/fake_quantized.h"
#include "model/forward.h"
#include "numerics/float8.h"
#include "ops/rounding.h"
#include "train/row_logprobs.h"

namespace baleen::rl {
namespace {

/// Every matrix that a matrix product reads; norms, biases and mixing stay.
template <class Change>
model::ModelParameters with_matrices(const model::ModelParameters& params, const Change& change) {
  model::ModelParameters changed = params;
  model::for_each_parameter(changed, [&](const model::ParameterInfo& info, at::Tensor& value) {
    switch (info.role) {
      case model::ParameterRole::kEmbedding:
      case model::ParameterRole::kOutputHead:
      case model::ParameterRole::kDenseMatrix:
      case model::ParameterRole::kOutputLatent:
      case model::ParameterRole::kExpertMatrix:
      case model::ParameterRole::kUnquantizedMatrix:
        value = change(value.detach());
        break;
      default:
        value = value.detach();
    }
  });
  return changed;
}

/// One scale per tensor, as it comes.
at::Tensor e4m3_by_tensor(const at::Tensor& matrix) {
  at::Tensor out = matrix.clone();
  const float scale = std::max(matrix.abs().max().item<float>(), 1e-30F) / 448.0F;
  float* value = out.mutable_data_ptr<float>();
  for (int64_t i = 0; i < out.numel(); ++i) {
    value[i] = numerics::e4m3_to_float(numerics::e4m3_from_float(value[i] / scale)) * scale;
  }
  return out;
}

std::vector<train::Sample> as_samples(const std::vector<TokenIds>& texts) {
  std::vector<train::Sample> samples;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    samples.push_back({.number = static_cast<int64_t>(i),
                       .ids = texts[i],
                       .weights = std::vector<float>(texts[i].size(), 1.0F)});
  }
  return samples;
}

model::RopeTables tables_for(const NumericSide& side, const std::vector<TokenIds>& texts) {
  int64_t longest = 1;
  for (const TokenIds& text : texts) {
    longest = std::max(longest, static_cast<int64_t>(text.size()));
  }
  return model::make_rope_tables(side.params.config, longest, side.params.embed, side.numerics);
}

/// Runs the texts in forwards of the side's size; `use` gets the packed batch, the forward and the
/// log-probabilities of its target rows.
template <class Use>
void run_side(const NumericSide& side,
              const std::vector<TokenIds>& texts,
              train::ChoiceReplay& replay,
              train::ReplayMode mode,
              train::ReplayAgreement* agreement,
              const Use& use) {
  const std::vector<train::Sample> samples = as_samples(texts);
  const model::RopeTables tables = tables_for(side, texts);
  const auto step =
      static_cast<std::size_t>(side.samples_per_forward > 0 ? side.samples_per_forward
                                                            : static_cast<int64_t>(samples.size()));
  for (std::size_t begin = 0; begin < samples.size(); begin += step) {
    const std::size_t count = std::min(step, samples.size() - begin);
    const train::PackedBatch batch = train::pack(std::span(samples).subspan(begin, count),
                                                 {.weight = 1.0, .mtp_weight = 1.0},
                                                 {.dtype = side.params.embed.scalar_type()});
    const train::PackedForward out = train::replayed_forward(side.params,
                                                             batch,
                                                             {.numerics = side.numerics,
                                                              .tables = &tables,
                                                              .routing = agreement != nullptr,
                                                              .index_scores = agreement != nullptr},
                                                             replay,
                                                             mode,
                                                             agreement);
    const at::Tensor logprobs =
        train::row_logprobs(
            out.hidden, side.params.head, batch.main.targets, {.numerics = side.numerics})
            .logprobs;
    use(batch, logprobs);
  }
}

ScoredTexts score(const NumericSide& side,
                  const std::vector<TokenIds>& texts,
                  train::ChoiceReplay& replay,
                  train::ReplayMode mode) {
  const at::NoGradGuard no_grad;
  ScoredTexts scored;
  scored.logprobs.resize(texts.size());
  run_side(side,
           texts,
           replay,
           mode,
           mode == train::ReplayMode::kPlay && replay.parts().any() ? &scored.agreement : nullptr,
           [&](const train::PackedBatch& batch, const at::Tensor& logprobs) {
             const at::Tensor host = logprobs.to(at::kFloat).contiguous();
             const float* value = host.const_data_ptr<float>();
             for (const int64_t place : batch.main.samples) {
               const auto number = batch.samples[static_cast<std::size_t>(place)].number;
               scored.logprobs[static_cast<std::size_t>(number)].push_back(*value++);
             }
           });
  for (std::size_t i = 0; i < texts.size() && mode == train::ReplayMode::kRecord; ++i) {
    scored.choices.push_back(replay.records_of(static_cast<int64_t>(i)));
  }
  return scored;
}

train::ChoiceReplay filled(const NumericSide& side,
                           const std::vector<TokenIds>& texts,
                           const std::vector<cache::ChoiceRecords>& choices,
                           train::ReplayParts parts) {
  train::ChoiceReplay replay(side.params.config, parts);
  if (parts.any()) {
    const std::vector<train::Sample> samples = as_samples(texts);
    for (std::size_t i = 0; i < samples.size(); ++i) {
      replay.add(samples[i], choices.at(i));
    }
  }
  return replay;
}

}  // namespace

NumericSide numeric_side(const model::ModelParameters& params, std::string_view formats) {
  NumericSide side;
  side.params = with_matrices(params, [](const at::Tensor& value) { return value; });
  side.numerics = ops::Numerics::by_name("plain+invariant");
  while (!formats.empty()) {
    const std::size_t plus = formats.find('+');
    const std::string_view format = formats.substr(0, plus);
    formats = plus == std::string_view::npos ? std::string_view() : formats.substr(plus + 1);
    if (format == "bf16") {
      side.params = with_matrices(side.params, ops::round_bf16);
    } else if (format == "bf16act") {
      side.numerics.round_activations = true;
      side.numerics.summation = ops::Summation::kFast;
    } else if (format == "fp8kv") {
      side.numerics.kv_s8 = true;
    } else if (format == "fp8") {
      side.params = with_matrices(side.params, e4m3_by_tensor);
    } else if (format == "fp8block") {
      model::set_formats(side.params, {ops::LinearFormat::kFp8, ops::LinearFormat::kFp8});
      side.params = model::fake_quantized(side.params);
      side.numerics.linear_activation = ops::LinearActivation::kFp8;
    } else if (format == "fp4") {
      model::set_formats(side.params, {ops::LinearFormat::kFp8, ops::LinearFormat::kFp4});
      side.params = model::fake_quantized(side.params);
      model::set_formats(side.params, {});
    } else if (format != "f32") {
      throw ConfigError(
          fmt::format("format \"{}\" is not known; accepted: f32, bf16, bf16act, fp8kv, fp8, fp4, "
                      "fp8block",
                      format));
    }
  }
  return side;
}

ScoredTexts score_recording(const NumericSide& side, const std::vector<TokenIds>& texts) {
  train::ChoiceReplay replay(side.params.config, {});
  return score(side, texts, replay, train::ReplayMode::kRecord);
}

ScoredTexts score_replaying(const NumericSide& side,
                            const std::vector<TokenIds>& texts,
                            const std::vector<cache::ChoiceRecords>& choices,
                            train::ReplayParts parts) {
  train::ChoiceReplay replay = filled(side, texts, choices, parts);
  return score(side, texts, replay, train::ReplayMode::kPlay);
}

std::vector<std::pair<std::string, at::Tensor>> policy_gradient(
    const NumericSide& side,
    const std::vector<TokenIds>& texts,
    const std::vector<double>& advantages,
    const std::vector<cache::ChoiceRecords>& choices,
    train::ReplayParts parts) {
  NumericSide own = side;
  std::vector<std::pair<std::string, at::Tensor>> leaves;
  model::for_each_parameter(own.params, [&](const model::ParameterInfo& info, at::Tensor& value) {
    if (info.trainable()) {
      value = value.detach().clone().requires_grad_(true);
      leaves.emplace_back(info.name, value);
    }
  });
  train::ChoiceReplay replay = filled(own, texts, choices, parts);
  double tokens = 0.0;
  for (const TokenIds& text : texts) {
    tokens += static_cast<double>(text.size()) - 1.0;
  }
  run_side(own,
           texts,
           replay,
           train::ReplayMode::kPlay,
           nullptr,
           [&](const train::PackedBatch& batch, const at::Tensor& logprobs) {
             at::Tensor weights = at::empty({logprobs.size(0)}, at::kDouble);
             for (std::size_t row = 0; row < batch.main.samples.size(); ++row) {
               const auto place = static_cast<std::size_t>(batch.main.samples[row]);
               weights.mutable_data_ptr<double>()[row] =
                   advantages[static_cast<std::size_t>(batch.samples[place].number)] / tokens;
             }
             (logprobs * weights.to(logprobs.scalar_type())).sum().backward();
           });
  std::map<std::string, std::vector<at::Tensor>> classes;
  for (const auto& [name, leaf] : leaves) {
    if (!leaf.grad().defined()) {
      continue;
    }
    const bool is_layer = name.starts_with("layers.");
    const std::size_t begin = is_layer ? name.find('.', 7) + 1 : 0;
    classes[name.substr(begin)].push_back(leaf.grad().flatten().to(at::kDouble));
  }
  std::vector<std::pair<std::string, at::Tensor>> out;
  for (const auto& [name, parts_of] : classes) {
    out.emplace_back(name, at::cat(parts_of, 0));
  }
  return out;
}

std::vector<TokenIds> sampled_texts(const NumericSide& side,
                                    const std::vector<TokenIds>& prompts,
                                    int64_t length,
                                    std::span<const int32_t> forbidden,
                                    uint64_t seed) {
  model::ForwardConfig config;
  config.numerics = "plain+invariant";
  model::Model model(side.params, config);
  std::vector<TokenIds> texts = prompts;
  std::vector<model::Sequence> sequences;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    sequences.push_back(model.new_sequence());
  }
  model::ForwardOutput output;
  kernels::SamplingWorkspace workspace;
  std::vector<std::size_t> done(texts.size(), 0);
  while (true) {
    std::vector<model::RowInput> rows;
    std::vector<std::size_t> of_row;
    for (std::size_t i = 0; i < texts.size(); ++i) {
      if (static_cast<int64_t>(texts[i].size()) < length) {
        rows.push_back({.sequence = &sequences[i],
                        .first_position = static_cast<int64_t>(done[i]),
                        .ids = std::span(texts[i]).subspan(done[i])});
        of_row.push_back(i);
      }
    }
    if (rows.empty()) {
      return texts;
    }
    model.forward(rows, output);
    for (std::size_t row = 0; row < rows.size(); ++row) {
      const std::size_t i = of_row[row];
      const std::span<const float> logits = output.row(static_cast<int64_t>(row));
      done[i] = texts[i].size();
      const kernels::SampledToken drawn =
          kernels::sample_token(logits,
                                {.seed = seed,
                                 .sample_index = static_cast<int32_t>(i),
                                 .position = static_cast<int64_t>(texts[i].size()),
                                 .forbidden_ids = forbidden},
                                {},
                                workspace,
                                nullptr);
      if (drawn.status != kernels::SamplingStatus::kDrawn) {
        throw Error(fmt::format("text {}, token {}: no token can be drawn", i, texts[i].size()));
      }
      texts[i].push_back(drawn.id);
    }
  }
}

}  // namespace baleen::rl
