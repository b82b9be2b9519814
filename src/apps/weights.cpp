// baleen weights delta | apply
#include <cstdio>
#include <memory>
#include <string>

#include "apps/commands.h"
#include "weights/weight_delta.h"

namespace baleen::apps {
namespace {

struct DeltaFlags {
  std::string base;
  std::string other;  // what comes behind it: a version, or a delta
  std::string target;
};

void write(const DeltaFlags& flags) {
  const weights::DeltaReport report = weights::write_delta(flags.base, flags.other, flags.target);
  std::printf("%s: %lld tensors changed, %.3f MB of %.3f MB\n",
              flags.target.c_str(),
              static_cast<long long>(report.changed_tensors),
              static_cast<double>(report.delta_bytes) / 1e6,
              static_cast<double>(report.full_bytes) / 1e6);
}

void apply(const DeltaFlags& flags) {
  weights::apply_delta(flags.base, flags.other, flags.target);
  std::printf("%s: made from %s\n", flags.target.c_str(), flags.base.c_str());
}

}  // namespace

void add_weights(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "weights", "What changed between two versions of a model, as a file that travels");
  command->require_subcommand(1);
  auto flags = std::make_shared<DeltaFlags>();  // shared with the callbacks
  CLI::App* delta = command->add_subcommand("delta", "Write what changed between two versions");
  delta->add_option("before", flags->base, "Folder of the version that the engine has")->required();
  delta->add_option("after", flags->other, "Folder of the version that it is to have")->required();
  delta->add_option("file", flags->target, "Delta to write")->required();
  delta->callback([flags] { write(*flags); });
  CLI::App* made = command->add_subcommand("apply", "Make the folder of the next version");
  made->add_option("before", flags->base, "Folder of the version that the delta begins at")
      ->required();
  made->add_option("file", flags->other, "Delta")->required();
  made->add_option("after", flags->target, "Folder to make; must not be there")->required();
  made->callback([flags] { apply(*flags); });
}

}  // namespace baleen::apps
