#include "weights/synth.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <thread>

#include "apps/commands.h"
#include "apps/model_source.h"
#include "apps/number_check.h"
#include "apps/progress.h"

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
  weights::SynthOptions options;
};

void run(const SynthFlags& flags) {
  ModelConfig config = config_from(flags.config);
  if (flags.num_layers > 0) {
    config = weights::with_num_layers(config, flags.num_layers);
  }
  if (flags.num_experts > 0) {
    config = weights::with_num_experts(config, flags.num_experts);
  }
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
  command->add_option("folder", flags->folder, "Folder to write; must hold no model")->required();
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
  command->add_option("--chat-profile", flags->options.chat_profile, "Prompt format it declares")
      ->check(CLI::IsMember({"v4", "v4-0731", "v4.1"}));
  command->callback([flags] { run(*flags); });
}

}  // namespace baleen::apps
