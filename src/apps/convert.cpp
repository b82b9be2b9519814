#include <cstdio>
#include <memory>

#include "apps/commands.h"
#include "apps/model_source.h"
#include "apps/number_check.h"
#include "apps/progress.h"
#include "weights/quantize_checkpoint.h"

namespace baleen::apps {
namespace {

struct ConvertFlags {
  std::string source;
  std::string target;
  std::string format;
  double max_shard_gb = 5.0;
  bool allow_lossy = false;
  std::string chat_profile;
};

void run(const ConvertFlags& flags) {
  weights::ConvertOptions options;
  options.format = format_from(flags.format);
  options.max_shard_bytes = static_cast<int64_t>(flags.max_shard_gb * 1e9);
  options.allow_lossy = flags.allow_lossy;
  if (!flags.chat_profile.empty()) {
    options.chat_profile = flags.chat_profile;
  }
  Progress progress(flags.target, "converted", true);
  options.progress = [&](uint64_t done, uint64_t total) { progress.update(done, total); };
  const weights::ConvertReport report =
      weights::convert_checkpoint(flags.source, flags.target, options);
  progress.finish();
  std::printf(
      "%s: %.3f GB in %zu file(s); parameters copied %lld, widened without loss %lld, "
      "re-encoded %lld (of these FP4 with loss %lld)\n",
      flags.target.c_str(),
      static_cast<double>(report.total_bytes) / 1e9,
      report.num_shards,
      static_cast<long long>(report.copied),
      static_cast<long long>(report.lossless),
      static_cast<long long>(report.reencoded),
      static_cast<long long>(report.lossy));
}

}  // namespace

void add_convert(CLI::App& app) {
  auto flags = std::make_shared<ConvertFlags>();  // shared with the callback
  CLI::App* command =
      app.add_subcommand("convert", "Rewrite a checkpoint in another weight format");
  command->add_option("source", flags->source, "Checkpoint folder to read")->required();
  command->add_option("target", flags->target, "Folder to write; must hold no model")->required();
  command->add_option("--format", flags->format, "fp4 is the published form: FP8 with FP4 experts")
      ->required()
      ->check(CLI::IsMember(format_names()));
  command->add_option("--max-shard-gb", flags->max_shard_gb, "Largest file, in 10^9 bytes")
      ->check(number_in(1e-6, 1e6));
  command->add_flag("--allow-lossy",
                    flags->allow_lossy,
                    "Requantise FP4 experts whose scales FP8 cannot hold, instead of stopping");
  command->add_option("--chat-profile", flags->chat_profile, "Prompt format to declare")
      ->check(CLI::IsMember({"v4", "v4-0731", "v4.1"}));
  command->callback([flags] { run(*flags); });
}

}  // namespace baleen::apps
