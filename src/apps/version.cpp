#include <cstdio>

#include "apps/commands.h"

namespace baleen::apps {

void add_version(CLI::App& app) {
  app.add_subcommand("version", "Print the version of the program")->callback([] {
    std::printf("baleen %s\n", BALEEN_VERSION);
  });
}

}  // namespace baleen::apps
