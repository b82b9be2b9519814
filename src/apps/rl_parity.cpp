// baleen rl parity [--model DIR]
#include <cstdio>
#include <memory>
#include <utility>

#include "apps/commands.h"
#include "apps/model_source.h"
#include "model/forward.h"
#include "rl/parity_run.h"
#include "runner/model_executor.h"

namespace baleen::apps {
namespace {

constexpr int32_t kParityStepTokens = 512;

std::unique_ptr<engine::Executor> make_parity_executor(model::ModelParameters params,
                                                       const rl::ParityExecutor& wanted) {
  model::ForwardConfig forward;
  forward.numerics = wanted.numerics;
  forward.max_context = wanted.max_context;
  return std::make_unique<runner::ModelExecutor>(
      model::Model(std::move(params), forward),
      runner::RunnerConfig{.num_slots = wanted.num_slots, .max_step_tokens = kParityStepTokens},
      "parity");
}

}  // namespace

void add_rl_parity(CLI::App& rl) {
  auto options = std::make_shared<rl::ParityOptions>();  // shared with the callback
  CLI::App* command = rl.add_subcommand(
      "parity",
      "Find the first layer and operator at which engine and trainer part, with usual causes");
  command->add_option("--model", options->model, "Model folder; empty: a fresh nano model")
      ->check(CLI::ExistingDirectory);
  command->add_option("--numerics", options->numerics, kNumericsHelp)
      ->capture_default_str()
      ->check(CLI::IsMember(numerics_names()));
  command
      ->add_option("--trainer-numerics",
                   options->trainer_numerics,
                   "The same for the trainer; empty: as the engine")
      ->check(CLI::IsMember(numerics_names()));
  command->add_option("--texts", options->num_texts, "Texts that the engine draws")
      ->capture_default_str()
      ->check(CLI::Range(1, 64));
  command->add_option("--prompt-tokens", options->prompt_tokens, "Random tokens before each")
      ->capture_default_str()
      ->check(CLI::Range(2, 4096));
  command->add_option("--new-tokens", options->new_tokens, "Tokens that the engine draws")
      ->capture_default_str()
      ->check(CLI::Range(1, 4096));
  command->add_option("--prefill", options->prefill, "Tokens of the first step of the second pass")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command->add_option("--temperature", options->temperature, "Of draws and log-probabilities")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  command->add_option("--seed", options->seed, "Of prompts, draws and the nano model")
      ->capture_default_str();
  command->callback(
      [options] { std::printf("%s", rl::run_parity(*options, make_parity_executor).c_str()); });
}

}  // namespace baleen::apps
