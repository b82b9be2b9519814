#include "rl/policy_passes.h"

#include <algorithm>
#include <map>

#include <ATen/ATen.h>

#include "rl/policy_pass.h"

namespace baleen::rl {
namespace {

std::vector<train::SampleValues> empty_values(const std::vector<train::Sample>& samples) {
  std::vector<train::SampleValues> out;
  for (const train::Sample& sample : samples) {
    const auto fed = static_cast<std::size_t>(sample.fed_tokens());
    out.push_back({.number = sample.number,
                   .logprobs = std::vector<double>(fed, 0.0),
                   .entropy = std::vector<double>(fed, 0.0)});
  }
  return out;
}

/// Threads of one process that share out the micro-batches.
class SinglePasses final : public PolicyPasses {
 public:
  explicit SinglePasses(train::Trainer& trainer) : trainer_(trainer) {}

  std::vector<train::SampleValues> forward(const std::vector<train::Sample>& samples,
                                           const train::MeshPassOptions& options) override {
    return run(samples, options, {});
  }

  std::vector<train::SampleValues> step(const std::vector<train::Sample>& samples,
                                        const train::MeshPassOptions& options,
                                        const train::PartLoss& loss,
                                        train::StepReport& report) override {
    trainer_.begin_step();
    std::vector<train::SampleValues> values = run(samples, options, loss);
    trainer_.finish_step(report);
    return values;
  }

  train::Trainer& trainer() override { return trainer_; }
  bool has_whole_model() const override { return true; }

 private:
  /// Without a loss there are no gradients.
  std::vector<train::SampleValues> run(const std::vector<train::Sample>& samples,
                                       const train::MeshPassOptions& options,
                                       const train::PartLoss& loss) {
    std::vector<train::SampleValues> values = empty_values(samples);
    std::map<int64_t, train::SampleValues*> by_number;
    for (train::SampleValues& one : values) {
      by_number[one.number] = &one;
    }
    const std::vector<std::vector<train::Sample>> parts = train::cut_for_shards(
        samples, trainer_.config().micro_batch_tokens, trainer_.config().shards);
    const PassOptions pass = pass_options(trainer_, parts, options.temperature, options.replay);
    trainer_.run_parts(parts.size(), [&](const model::ModelParameters& leaves, std::size_t part) {
      const at::AutoGradMode gradients(static_cast<bool>(loss));  // of this thread
      const PackedStep packed =
          packed_step(pass, options.params == nullptr ? leaves : *options.params, parts[part]);
      take(packed, by_number);
      if (loss) {
        const train::TokenGradients d = loss(packed.batch, packed.values);
        at::Tensor total = (packed.values.logprobs * d.logprobs).sum();
        if (d.entropy.defined()) {
          total = total + (packed.values.entropy * d.entropy).sum();
        }
        total.backward();
      }
    });
    return values;
  }

  /// Called by several threads, for different samples.
  static void take(const PackedStep& packed,
                   const std::map<int64_t, train::SampleValues*>& by_number) {
    const at::Tensor logprobs = packed.values.logprobs.detach().to(at::kDouble);
    const at::Tensor entropy = packed.values.entropy.detach().to(at::kDouble);
    for (std::size_t i = 0; i < packed.batch.main.samples.size(); ++i) {
      const TargetPlace place = place_of(packed.batch, i);
      train::SampleValues& own = *by_number.at(place.number);
      const auto fed = static_cast<std::size_t>(place.position - 1);
      own.logprobs[fed] = logprobs.const_data_ptr<double>()[i];
      own.entropy[fed] = entropy.const_data_ptr<double>()[i];
    }
  }

  train::Trainer& trainer_;
};

class MeshPasses final : public PolicyPasses {
 public:
  explicit MeshPasses(train::MeshTrainer& trainer) : trainer_(trainer) {}

  std::vector<train::SampleValues> forward(const std::vector<train::Sample>& samples,
                                           const train::MeshPassOptions& options) override {
    return trainer_.forward(trainer_.cut(samples, kOnes), options);
  }

  std::vector<train::SampleValues> step(const std::vector<train::Sample>& samples,
                                        const train::MeshPassOptions& options,
                                        const train::PartLoss& loss,
                                        train::StepReport& report) override {
    trainer_.begin_step();
    std::vector<train::SampleValues> values =
        trainer_.run(trainer_.cut(samples, kOnes), options, loss);
    trainer_.finish_step(report);
    return values;
  }

  train::Trainer& trainer() override { return trainer_.trainer(); }
  bool has_whole_model() const override { return false; }

 private:
  static constexpr train::LossDenominators kOnes{.weight = 1.0, .mtp_weight = 1.0};

  train::MeshTrainer& trainer_;
};

}  // namespace

std::unique_ptr<PolicyPasses> passes_of(train::Trainer& trainer) {
  return std::make_unique<SinglePasses>(trainer);
}

std::unique_ptr<PolicyPasses> passes_of(train::MeshTrainer& trainer) {
  return std::make_unique<MeshPasses>(trainer);
}

}  // namespace baleen::rl
