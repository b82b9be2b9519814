#include "abacus/trainer.h"

#include <cstring>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/optim/adamw.h>

#include "base/check.h"
#include "base/error.h"
#include "model/fake_quantized.h"
#include "model/load_parameters.h"
#include "weights/safetensors.h"
#include "weights/safetensors_writer.h"

namespace baleen::abacus {
namespace {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

void write_tensors(const std::filesystem::path& file,
                   const NamedTensors& tensors,
                   const std::map<std::string, std::string>& metadata) {
  std::vector<weights::TensorSpec> specs;
  for (const auto& [name, value] : tensors) {
    specs.push_back({name, weights::DType::kF32, value.sizes().vec()});
  }
  weights::SafetensorsWriter writer(file, std::move(specs), metadata);
  for (const auto& [name, value] : tensors) {
    const at::Tensor host = value.detach().to(at::kCPU).contiguous();
    writer.append(name,
                  std::as_bytes(std::span(host.const_data_ptr<float>(),
                                          static_cast<std::size_t>(host.numel()))));
  }
  writer.finish();
}

void read_tensors(const weights::SafetensorsFile& file, const NamedTensors& tensors) {
  const at::NoGradGuard no_grad;
  for (const auto& [name, value] : tensors) {
    const weights::StoredTensor* stored = file.find(name);
    if (stored == nullptr || stored->shape != value.sizes().vec()) {
      throw CheckpointError(
          fmt::format("{}: {} is missing or of another shape", file.path().string(), name));
    }
    at::Tensor host = at::empty(value.sizes(), at::kFloat);
    const std::span<const std::byte> bytes = file.bytes(*stored);
    std::memcpy(host.mutable_data_ptr<float>(), bytes.data(), bytes.size());
    value.detach().copy_(host);
  }
}

}  // namespace

Trainer::Trainer(const ModelConfig& config, const Recipe& recipe, uint64_t seed, at::Device device)
    : recipe_(recipe), device_(device), seed_(seed), masters_(config, seed, device) {
  int64_t longest = 0;
  for (const BatchShape& shape : recipe_.shapes()) {
    longest = std::max(longest, shape.tokens);
  }
  plain_tables_ =
      model::make_rope_tables(config, longest, masters_.decayed(), ops::Numerics::plain());
  served_tables_ =
      model::make_rope_tables(config, longest, masters_.decayed(), ops::Numerics::reference());

  const auto options = [&](double weight_decay) {
    auto group = std::make_unique<torch::optim::AdamWOptions>(recipe_.peak_learning_rate);
    group->betas({recipe_.beta1, recipe_.beta2}).eps(recipe_.epsilon).weight_decay(weight_decay);
    return group;
  };
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<at::Tensor>{masters_.decayed()}, options(recipe_.weight_decay));
  groups.emplace_back(std::vector<at::Tensor>{masters_.undecayed()}, options(0.0));
  optimizer_ = std::make_unique<torch::optim::AdamW>(
      std::move(groups), torch::optim::AdamWOptions(recipe_.peak_learning_rate));
}

Trainer::~Trainer() = default;

void Trainer::start_from(const std::filesystem::path& folder) {
  masters_.take(model::load_parameters(folder, at::TensorOptions(at::kFloat), /*with_mtp=*/true));
}

ObjectiveSettings Trainer::settings(bool quantized, double mtp_weight) const {
  ObjectiveSettings settings;
  settings.numerics = quantized ? ops::Numerics::reference() : ops::Numerics::plain();
  settings.tables = quantized ? &served_tables_ : &plain_tables_;
  settings.mtp_weight = mtp_weight;
  settings.index_weight = recipe_.index_weight;
  settings.balance_weight = recipe_.balance_weight;
  return settings;
}

model::ModelParameters Trainer::served() const {
  return model::fake_quantized(masters_.views());
}

StepLosses Trainer::step(const Batch& batch) {
  const bool quantized = recipe_.quantized(next_step_);
  for (torch::optim::OptimizerParamGroup& group : optimizer_->param_groups()) {
    group.options().set_lr(recipe_.learning_rate(next_step_));
  }
  optimizer_->zero_grad();
  StepLosses losses = step_losses(quantized ? served() : exact(),
                                  to_device(batch, device_, recipe_.prompt_weight),
                                  settings(quantized, recipe_.mtp_weight(next_step_)));
  losses.total.backward();
  clip_gradients();
  optimizer_->step();
  balance_routers(losses);
  ++next_step_;
  return losses;
}

StepLosses Trainer::probe(const Batch& batch, bool quantized) {
  optimizer_->zero_grad();
  StepLosses losses = step_losses(quantized ? served() : exact(),
                                  to_device(batch, device_, recipe_.prompt_weight),
                                  settings(quantized, recipe_.early_mtp_weight));
  losses.total.backward();
  clip_gradients();
  optimizer_->zero_grad();
  return losses;
}

Report Trainer::judge_rows(const Batch& batch, bool quantized) {
  const at::NoGradGuard no_grad;
  return judge(quantized ? served() : exact(), batch, device_, settings(quantized, 0.0));
}

void Trainer::clip_gradients() {
  const at::NoGradGuard no_grad;
  at::Tensor gradients[2] = {masters_.decayed().mutable_grad(),
                             masters_.undecayed().mutable_grad()};
  gradient_norm_ = (gradients[0].square().sum() + gradients[1].square().sum()).sqrt();
  const at::Tensor factor = (recipe_.clip_norm / gradient_norm_.clamp_min(1e-12)).clamp_max(1.0);
  for (at::Tensor& gradient : gradients) {
    gradient.mul_(factor);
  }
}

void Trainer::balance_routers(const StepLosses& losses) {
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor>& biases = masters_.router_biases();
  BALEEN_CHECK(biases.size() == losses.loads.size(), "{} biases", biases.size());
  for (std::size_t i = 0; i < biases.size(); ++i) {
    const at::Tensor& load = losses.loads[i];
    biases[i].add_((load.mean() - load).sign(), recipe_.bias_rate);
  }
}

void Trainer::save(const std::filesystem::path& folder) const {
  std::filesystem::create_directories(folder);
  at::Tensor leaves[2] = {masters_.decayed(), masters_.undecayed()};
  NamedTensors values = {{"decayed", leaves[0]}, {"undecayed", leaves[1]}};
  const std::vector<at::Tensor>& biases = masters_.router_biases();
  for (std::size_t i = 0; i < biases.size(); ++i) {
    values.emplace_back(fmt::format("router_bias.{}", i), biases[i]);
  }
  NamedTensors first;
  NamedTensors second;
  for (std::size_t i = 0; i < 2; ++i) {
    const auto found = optimizer_->state().find(leaves[i].unsafeGetTensorImpl());
    BALEEN_CHECK(found != optimizer_->state().end(), "saved before the first step");
    const auto& state = static_cast<const torch::optim::AdamWParamState&>(*found->second);
    first.emplace_back(values[i].first, state.exp_avg());
    second.emplace_back(values[i].first, state.exp_avg_sq());
  }
  const std::map<std::string, std::string> metadata = {{"next_step", std::to_string(next_step_)},
                                                       {"seed", std::to_string(seed_)}};
  write_tensors(folder / "first.safetensors", first, metadata);
  write_tensors(folder / "second.safetensors", second, metadata);
  write_tensors(folder / "values.safetensors", values, metadata);
}

bool Trainer::load(const std::filesystem::path& folder) {
  if (!std::filesystem::exists(folder / "values.safetensors")) {
    return false;
  }
  const auto values = weights::SafetensorsFile::open(folder / "values.safetensors");
  const auto first = weights::SafetensorsFile::open(folder / "first.safetensors");
  const auto second = weights::SafetensorsFile::open(folder / "second.safetensors");
  for (const weights::SafetensorsFile* file : {&first, &second}) {
    if (file->metadata() != values.metadata()) {
      throw CheckpointError(
          fmt::format("{}: of another step or seed than its neighbours", file->path().string()));
    }
  }
  if (values.metadata().at("seed") != std::to_string(seed_)) {
    throw CheckpointError(fmt::format("{}: seed {} where {} is wanted",
                                      values.path().string(),
                                      values.metadata().at("seed"),
                                      seed_));
  }
  next_step_ = std::stoll(values.metadata().at("next_step"));
  at::Tensor leaves[2] = {masters_.decayed(), masters_.undecayed()};
  NamedTensors held = {{"decayed", leaves[0]}, {"undecayed", leaves[1]}};
  for (std::size_t i = 0; i < masters_.router_biases().size(); ++i) {
    held.emplace_back(fmt::format("router_bias.{}", i), masters_.router_biases()[i]);
  }
  read_tensors(values, held);
  for (std::size_t i = 0; i < 2; ++i) {
    auto state = std::make_unique<torch::optim::AdamWParamState>();
    state->step(next_step_);
    state->exp_avg(at::zeros_like(leaves[i].detach()));
    state->exp_avg_sq(at::zeros_like(leaves[i].detach()));
    read_tensors(first, {{held[i].first, state->exp_avg()}});
    read_tensors(second, {{held[i].first, state->exp_avg_sq()}});
    optimizer_->state()[leaves[i].unsafeGetTensorImpl()] = std::move(state);
  }
  return true;
}

}  // namespace baleen::abacus
