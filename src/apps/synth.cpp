#include "weights/synth.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <thread>

#include "apps/commands.h"
#include "apps/model_source.h"
#include "apps/number_check.h"
#include "apps/progress.h"
#include "runner/decode/device_synth.h"

namespace baleen::apps {
namespace {

struct SynthFlags {
  std::string folder;
  std::string config = "tiny";
  int64_t num_layers = 0;   // 0: as the config says
  int64_t num_experts = 0;  // 0: as the config says
  std::string format = "fp4";
  std::string fill = "random";
  double max_shard_gb = 5.0;
  std::string tokenizer;
  std::string device = "cpu";
  int32_t requests = 1;
  int64_t context = 4096;
  weights::SynthOptions options;
};

ModelConfig wanted_config(const SynthFlags& flags) {
  ModelConfig config = config_from(flags.config);
  if (flags.num_layers > 0) {
    config = weights::with_num_layers(config, flags.num_layers);
  }
  if (flags.num_experts > 0) {
    config = weights::with_num_experts(config, flags.num_experts);
  }
  return config;
}

/// In device memory, where nothing is left of it afterwards: shows what fits and that it runs.
void run_on_device(const SynthFlags& flags) {
  const ModelConfig config = wanted_config(flags);
  const runner::DeviceSynthReport report = runner::make_device_synth({.config = config,
                                                                      .requests = flags.requests,
                                                                      .context = flags.context,
                                                                      .seed = flags.options.seed});
  constexpr double kGb = 1e9;
  std::printf(
      "%s: %lld layers, %lld experts: weights %.2f GB, pools %.2f GB of %d sequences of %lld "
      "tokens, made in %.1f s\nstep of %d tokens: %.0f us, rms of logits %.3f\n",
      report.card.c_str(),
      static_cast<long long>(config.num_hidden_layers),
      static_cast<long long>(config.n_routed_experts),
      static_cast<double>(report.weight_bytes) / kGb,
      static_cast<double>(report.pool_bytes) / kGb,
      flags.requests,
      static_cast<long long>(flags.context),
      report.fill_s,
      flags.requests,
      report.step_us,
      report.logits_rms);
}

void run(const SynthFlags& flags) {
  if (flags.device == "cuda") {
    run_on_device(flags);
    return;
  }
  if (flags.folder.empty()) {
    throw CLI::RequiredError("folder");
  }
  const ModelConfig config = wanted_config(flags);
  weights::SynthOptions options = flags.options;
  options.format = format_from(flags.format);
  options.fill = flags.fill == "toy" ? weights::SynthFill::kToy : weights::SynthFill::kRandom;
  options.max_shard_bytes = static_cast<int64_t>(flags.max_shard_gb * 1e9);
  if (!flags.tokenizer.empty()) {
    options.tokenizer = flags.tokenizer;
  }
  options.num_threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  Progress progress(flags.folder, "wrote", true);
  options.progress = [&](uint64_t done, uint64_t total) { progress.update(done, total); };
  weights::write_synthetic(flags.folder, config, options);
  progress.finish();
  std::printf("%s: %lld layers, %lld experts, %s\n",
              flags.folder.c_str(),
              static_cast<long long>(config.num_hidden_layers),
              static_cast<long long>(config.n_routed_experts),
              flags.format.c_str());
}

}  // namespace

void add_synth(CLI::App& app) {
  auto flags = std::make_shared<SynthFlags>();  // shared with the callback
  CLI::App* command = app.add_subcommand(
      "synth", "Write a checkpoint of any shape with random, well-scaled weights");
  command->add_option("folder", flags->folder, "Folder to write; must hold no model");
  command->add_option("--config",
                      flags->config,
                      "flash, pro, flash-4layer, tiny, toy, or a config.json or its folder");
  command->add_option("--layers", flags->num_layers, "Keep only the first layers (0: all)")
      ->check(CLI::NonNegativeNumber);
  command->add_option("--experts", flags->num_experts, "Routed experts per layer (0: as config)")
      ->check(CLI::NonNegativeNumber);
  command->add_option("--format", flags->format, "fp4 is the published form: FP8 with FP4 experts")
      ->check(CLI::IsMember(format_names()));
  command->add_option("--fill", flags->fill, "random, or the toy values of the golden tests")
      ->check(CLI::IsMember({"random", "toy"}));
  command->add_option("--seed", flags->options.seed, "Seed of the random fill");
  command->add_option("--max-shard-gb", flags->max_shard_gb, "Largest file, in 10^9 bytes")
      ->check(number_in(1e-6, 1e6));
  command->add_option("--tokenizer", flags->tokenizer, "tokenizer.json (or its folder) to copy");
  command
      ->add_option("--device",
                   flags->device,
                   "cuda: make the weights and filled pools in device memory instead, as bench "
                   "decode does, and run one step")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  command->add_option("--requests", flags->requests, "With --device cuda: sequences of the pools")
      ->check(CLI::Range(1, 1024));
  command->add_option("--context", flags->context, "With --device cuda: tokens of each sequence")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30));
  command->add_option("--chat-profile", flags->options.chat_profile, "Prompt format it declares")
      ->check(CLI::IsMember({"v4", "v4-0731", "v4.1"}));
  command->callback([flags] { run(*flags); });
}

}  // namespace baleen::apps
