#include <cstdio>
#include <exception>

#include "apps/commands.h"
#include "base/log.h"

int main(int argc, char** argv) {
  using namespace baleen;
  CLI::App app("Baleen: DeepSeek-V4 inference and verified RL", "baleen");
  app.require_subcommand(1);
  app.option_defaults()->always_capture_default();
  apps::add_serve(app);
  apps::add_chat(app);
  apps::add_generate(app);
  apps::add_synth(app);
  apps::add_convert(app);
  apps::add_plan(app);
  apps::add_bench(app);
  apps::add_score(app);
  apps::add_train(app);
  apps::add_rl(app);
  apps::add_weights(app);
  apps::add_doctor(app);
  apps::add_version(app);
  int exit_code = 0;
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // Help ends with 0; every refused command line with 1, like all other errors of start-up.
    if (error.get_exit_code() == 0) {
      app.exit(error);
    } else {
      std::fprintf(stderr, "baleen: %s (--help shows what is accepted)\n", error.what());
      exit_code = 1;
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "baleen: %s\n", error.what());
    exit_code = 1;
  }
  log::flush();
  return exit_code;
}
