#pragma once
// What every training command can be told about its optimizer: one list of names, defaults, checks
// and one translation, for supervised runs and for RL. Plain data; filled once at start.
//
//   struct SftConfig : OptimizerOptions { ... };
//   for_each_optimizer_option(config, visit);
//   check(config, steps);
//   check_on_mesh(config, shape);
//   apply(config, steps, trainer_config);

#include <cstdint>
#include <string>

namespace baleen::comm {
struct MeshShape;
}  // namespace baleen::comm

namespace baleen::train {

struct TrainerConfig;

struct OptimizerOptions {
  std::string optimizer = "adamw";
  double lr = 1e-5;
  double min_lr = 0.0;
  int64_t lr_warmup_steps = 0;
  std::string lr_decay_style = "constant";
  int64_t wsd_decay_steps = 0;
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.98;
  double adam_epsilon = 1e-8;
  double weight_decay = 0.1;
  double muon_momentum = 0.95;
  double muon_scale = 0.18;
  double clip_grad = 1.0;
};

/// visit(name, field, help), in the order of the help.
template <class Options, class Visit>
void for_each_optimizer_option(Options& o, Visit&& visit) {
  visit("optimizer", o.optimizer, "adamw or muon (hidden matrices; the rest by adamw)");
  visit("lr", o.lr, "peak learning rate");
  visit("min_lr", o.min_lr, "where the decay ends");
  visit("lr_warmup_steps", o.lr_warmup_steps, "linear warm-up, optimizer steps");
  visit("lr_decay_style", o.lr_decay_style, "constant, cosine, linear or wsd");
  visit("wsd_decay_steps", o.wsd_decay_steps, "length of the decay of wsd, steps");
  visit("adam_beta1", o.adam_beta1, "");
  visit("adam_beta2", o.adam_beta2, "");
  visit("adam_epsilon", o.adam_epsilon, "");
  visit("weight_decay", o.weight_decay, "of matrices");
  visit("muon_momentum", o.muon_momentum, "");
  visit("muon_scale", o.muon_scale, "times sqrt(max(rows, cols))");
  visit("clip_grad", o.clip_grad, "largest norm of the gradient; 0: no limit");
}

/// Throws ConfigError: one sentence with the option, what came and what to do. `steps`: of the run.
void check(const OptimizerOptions& options, int64_t steps);

/// Whether ranks of this shape can step so. Throws ConfigError naming the option.
void check_on_mesh(const OptimizerOptions& options, const comm::MeshShape& shape);

/// Sets optimizer, schedule and clipping.
void apply(const OptimizerOptions& options, int64_t steps, TrainerConfig& config);

}  // namespace baleen::train
