#include "train/optimizer_options.h"

#include <utility>

#include <fmt/format.h>

#include "comm/mesh_shape.h"
#include "train/option_list.h"
#include "train/trainer.h"

namespace baleen::train {

void check(const OptimizerOptions& o, int64_t steps) {
  check_one_of("optimizer", o.optimizer, {"adamw", "muon"});
  parse_decay_style(o.lr_decay_style);
  const std::pair<const char*, double> not_negative[] = {
      {"lr", o.lr},
      {"min_lr", o.min_lr},
      {"lr_warmup_steps", static_cast<double>(o.lr_warmup_steps)},
      {"wsd_decay_steps", static_cast<double>(o.wsd_decay_steps)},
      {"adam_epsilon", o.adam_epsilon},
      {"weight_decay", o.weight_decay},
      {"muon_scale", o.muon_scale},
      {"clip_grad", o.clip_grad}};
  for (const auto& [option, value] : not_negative) {
    check_at_least(option, value, 0.0);
  }
  const std::pair<const char*, double> shares[] = {{"adam_beta1", o.adam_beta1},
                                                   {"adam_beta2", o.adam_beta2},
                                                   {"muon_momentum", o.muon_momentum}};
  for (const auto& [option, value] : shares) {
    if (!(value >= 0.0 && value < 1.0)) {
      reject_option(option, fmt::format("{} is outside of [0, 1)", value));
    }
  }
  if (o.lr_decay_style == "wsd" && o.wsd_decay_steps > steps) {
    reject_option("wsd_decay_steps",
                  fmt::format("{} is longer than the run of {} steps", o.wsd_decay_steps, steps));
  }
}

void check_on_mesh(const OptimizerOptions& o, const comm::MeshShape& shape) {
  if (shape.tp > 1 && o.optimizer == "muon") {
    reject_option("optimizer", "muon needs whole matrices, which tp cuts; set tp to 1");
  }
}

void apply(const OptimizerOptions& o, int64_t steps, TrainerConfig& config) {
  config.optimizer.kind = o.optimizer == "muon" ? OptimizerKind::kMuon : OptimizerKind::kAdamW;
  config.optimizer.beta1 = o.adam_beta1;
  config.optimizer.beta2 = o.adam_beta2;
  config.optimizer.epsilon = o.adam_epsilon;
  config.optimizer.weight_decay = o.weight_decay;
  config.optimizer.muon_momentum = o.muon_momentum;
  config.optimizer.muon_scale = o.muon_scale;
  config.schedule.peak = o.lr;
  config.schedule.min = o.min_lr;
  config.schedule.warmup_steps = o.lr_warmup_steps;
  config.schedule.num_steps = steps;
  config.schedule.decay_steps = o.wsd_decay_steps;
  config.schedule.style = parse_decay_style(o.lr_decay_style);
  config.clip_norm = o.clip_grad;
}

}  // namespace baleen::train
