#include "abacus/objective.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "model/taps.h"
#include "model/whole_model.h"
#include "ops/token_loss.h"
#include "train/auxiliary_losses.h"

namespace baleen::abacus {
namespace {

using model::LayerTaps;
using model::ModelParameters;

at::Tensor weighted_loss(const at::Tensor& logits,
                         const at::Tensor& targets,
                         const at::Tensor& weights) {
  return (ops::cross_entropy(logits, targets) * weights).sum() / weights.sum().clamp_min(1e-6);
}

at::Tensor without_first(const at::Tensor& rows, int64_t count) {
  return rows.narrow(1, count, rows.size(1) - count);
}

/// The mean over the real tokens that see at least two entries.
at::Tensor index_loss(const LayerTaps& taps, int64_t ratio, const at::Tensor& real) {
  const at::Tensor counted = without_first(real, std::min(2 * ratio - 1, real.size(1))).sum();
  return train::index_divergence(
             taps.index_scores.front(), taps.entry_attention.front(), ratio, real) /
         counted.clamp_min(1.0);
}

struct Routing {
  at::Tensor balance;  // sequence-wise balance loss
  at::Tensor load;     // [E]
};

/// real [B, T] of the rows that the layer routed.
Routing routing_of(const LayerTaps& taps, const at::Tensor& real) {
  const int64_t rows = real.size(0);
  const at::Tensor row_sample = at::arange(rows, at::TensorOptions(at::kLong).device(real.device()))
                                    .repeat_interleave(real.size(1));
  const train::LayerBalance balance =
      train::layer_balance(taps, row_sample, rows, real.reshape({-1}));
  return {balance.loss / static_cast<double>(rows), balance.load / real.sum()};
}

model::TrainingOutput run(const ModelParameters& params,
                          const at::Tensor& ids,
                          const ObjectiveSettings& settings,
                          model::Taps* taps) {
  model::ForwardOptions options;
  options.numerics = settings.numerics;
  options.with_mtp = true;
  options.tables = settings.tables;
  options.taps = taps;
  return model::forward_training(params, ids, options);
}

at::Tensor without_last(const at::Tensor& rows) {
  return rows.narrow(1, 0, rows.size(1) - 1);
}

void note(Score& score, bool right) {
  score.right += right ? 1 : 0;
  ++score.total;
}

std::string share(const Score& score) {
  return score.total == 0
             ? "-"
             : fmt::format("{:.4f}",
                           static_cast<double>(score.right) / static_cast<double>(score.total));
}

}  // namespace

DeviceBatch to_device(const Batch& batch, at::Device device, double prompt_weight) {
  const std::vector<int64_t> shape = {batch.rows, batch.tokens};
  std::vector<float> weights(batch.kinds.size());
  std::vector<float> real(batch.kinds.size());
  for (std::size_t i = 0; i < batch.kinds.size(); ++i) {
    const uint8_t kind = batch.kinds[i];
    real[i] = kind == static_cast<uint8_t>(TokenKind::kPad) ? 0.0F : 1.0F;
    weights[i] = kind >= static_cast<uint8_t>(TokenKind::kAnswer)
                     ? 1.0F
                     : real[i] * static_cast<float>(prompt_weight);
  }
  const auto upload = [&](const auto& values, at::ScalarType type) {
    // from_blob does not own: to() or clone() copies before `values` goes away.
    const at::Tensor host =
        at::from_blob(const_cast<void*>(static_cast<const void*>(values.data())),
                      shape,
                      at::TensorOptions().dtype(type));
    return device.is_cpu() ? host.clone() : host.to(device);
  };
  return {upload(batch.ids, at::kLong), upload(weights, at::kFloat), upload(real, at::kFloat)};
}

StepLosses step_losses(const ModelParameters& params,
                       const DeviceBatch& batch,
                       const ObjectiveSettings& settings) {
  model::Taps taps;
  taps.routing = true;
  taps.index_scores = settings.index_weight > 0.0;
  taps.entry_attention = taps.index_scores;
  const model::TrainingOutput out = run(params, batch.ids, settings, &taps);

  StepLosses losses;
  losses.main = weighted_loss(
      without_last(out.logits), without_first(batch.ids, 1), without_first(batch.weights, 1));
  losses.mtp = weighted_loss(
      without_last(out.mtp_logits), without_first(batch.ids, 2), without_first(batch.weights, 2));
  losses.index = at::zeros({}, batch.weights.options());
  losses.balance = at::zeros({}, batch.weights.options());
  const ModelConfig& config = params.config;
  for (std::size_t i = 0; i < taps.layers.size(); ++i) {
    const LayerTaps& layer = taps.layers[i];
    const LayerSpec& spec = config.layers[i];
    if (layer.index_scores.front().defined() && layer.entry_attention.front().defined()) {
      losses.index = losses.index + index_loss(layer, spec.ratio, batch.real);
    }
    if (!spec.hash_routed) {
      const bool is_mtp = static_cast<int64_t>(i) >= config.num_hidden_layers;
      const Routing routing = routing_of(layer, is_mtp ? without_first(batch.real, 1) : batch.real);
      losses.balance = losses.balance + routing.balance;
      losses.loads.push_back(routing.load.detach());
    }
  }
  losses.balance = losses.balance / static_cast<double>(losses.loads.size());
  losses.total = losses.main + settings.mtp_weight * losses.mtp +
                 settings.index_weight * losses.index + settings.balance_weight * losses.balance;
  return losses;
}

void Report::add(const Report& other) {
  const auto sum = [](Score& into, const Score& from) {
    into.right += from.right;
    into.total += from.total;
  };
  for (std::size_t topic = 0; topic < direct.size(); ++topic) {
    sum(direct[topic], other.direct[topic]);
    sum(reasoned[topic], other.reasoned[topic]);
  }
  sum(drafts, other.drafts);
}

std::string Report::text() const {
  constexpr std::array<const char*, 4> kNames = {"question", "follow_up", "recall", "small_talk"};
  std::string line = fmt::format("drafts={}", share(drafts));
  for (std::size_t topic = 0; topic < direct.size(); ++topic) {
    line += fmt::format(" {}={}/{} reasoned_{}={}/{}",
                        kNames[topic],
                        share(direct[topic]),
                        direct[topic].total,
                        kNames[topic],
                        share(reasoned[topic]),
                        reasoned[topic].total);
  }
  return line;
}

Report judge(const ModelParameters& params,
             const Batch& batch,
             at::Device device,
             const ObjectiveSettings& settings) {
  const at::NoGradGuard no_grad;
  const DeviceBatch on_device = to_device(batch, device, 0.0);
  const model::TrainingOutput out = run(params, on_device.ids, settings, nullptr);
  const at::Tensor likeliest = out.logits.argmax(-1).to(at::kCPU).contiguous();
  const at::Tensor drafted = out.mtp_logits.argmax(-1).to(at::kCPU).contiguous();
  const int64_t* next = likeliest.const_data_ptr<int64_t>();
  const int64_t* draft = drafted.const_data_ptr<int64_t>();

  Report report;
  const int64_t tokens = batch.tokens;
  for (int64_t row = 0; row < batch.rows; ++row) {
    const int64_t* ids = batch.ids.data() + row * tokens;
    const uint8_t* kinds = batch.kinds.data() + row * tokens;
    const auto is_answer = [&](int64_t t) {
      return t < tokens && kinds[t] >= static_cast<uint8_t>(TokenKind::kAnswer);
    };
    int64_t end = tokens;  // of the last answer
    while (end > 0 && !is_answer(end - 1)) {
      --end;
    }
    for (int64_t t = 1; t < end; ++t) {
      if (!is_answer(t)) {
        continue;
      }
      const auto topic =
          static_cast<std::size_t>(kinds[t] - static_cast<uint8_t>(TokenKind::kAnswer));
      bool right = true;
      for (; is_answer(t); ++t) {
        right = right && next[row * tokens + t - 1] == ids[t];
        if (t >= 2) {
          note(report.drafts, draft[row * (tokens - 1) + t - 2] == ids[t]);
        }
      }
      const bool reasoned = t == end && batch.thinks[static_cast<std::size_t>(row)] != 0;
      note(reasoned ? report.reasoned[topic] : report.direct[topic], right);
    }
  }
  return report;
}

}  // namespace baleen::abacus
