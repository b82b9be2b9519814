#pragma once
// The commands of the program. Each lives in its own file, adds one subcommand with its flags to
// the parser and runs from the parser's callback. A command that fails throws an Error; main prints
// it and exits with code 1.

#include <CLI/CLI.hpp>

namespace baleen::apps {

void add_bench(CLI::App& app);
void add_chat(CLI::App& app);
void add_convert(CLI::App& app);
void add_doctor(CLI::App& app);
void add_generate(CLI::App& app);
void add_plan(CLI::App& app);
void add_rl(CLI::App& app);
/// Subcommands of `baleen rl`.
void add_rl_drift(CLI::App& rl);
void add_rl_parity(CLI::App& rl);
void add_score(CLI::App& app);
void add_serve(CLI::App& app);
void add_synth(CLI::App& app);
void add_train(CLI::App& app);
void add_version(CLI::App& app);
void add_weights(CLI::App& app);

}  // namespace baleen::apps
