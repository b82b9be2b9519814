#include "apps/bench/prefill.h"

#include <cstdint>
#include <cstdio>
#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include "apps/bench/csv_file.h"
#include "apps/model_source.h"
#include "apps/source_commit.h"
#include "runner/decode/prompt_bench.h"
#include "weights/synth.h"

namespace baleen::apps {
namespace {

struct PrefillFlags {
  std::string model = "flash";
  int64_t layers = 12;
  int64_t experts = 0;  // 0: as the model has
  runner::PromptBenchOptions bench;
  std::string csv;
};

void bench_prefill(const PrefillFlags& flags) {
  runner::PromptBenchOptions options = flags.bench;
  options.config = config_from(flags.model);
  if (flags.experts > 0) {
    options.config = weights::with_num_experts(options.config, flags.experts);
  }
  options.config = weights::with_num_layers(options.config, flags.layers);
  const CsvFile csv(flags.csv, runner::decode_bench_header());
  fmt::print("{} of {} layers at {}\n{:<28} {:>7} {:>9} {:>11} {:>10} {:>6} {:>11} {:>9} {:>9}\n",
             flags.model,
             flags.layers,
             kSourceCommit,
             "part",
             "tokens",
             "behind",
             "median us",
             "floor us",
             "%",
             "tokens/s",
             "launches",
             "host us");
  std::vector<runner::DecodeBenchRow> rows;
  runner::run_prompt_bench(options, [&](const runner::DecodeBenchRow& row) {
    const bool whole = row.floor_us > 0;
    fmt::print("{:<28} {:>7} {:>9} {:>11.1f} {:>10} {:>6} {:>11} {:>9} {:>9}\n",
               row.part,
               row.batch,
               row.context - row.batch,
               row.median_us,
               whole ? fmt::format("{:.1f}", row.floor_us) : "",
               whole ? fmt::format("{:.1f}", 100.0 * row.floor_us / row.median_us) : "",
               whole ? fmt::format("{:.0f}", 1e6 * row.batch / row.median_us) : "",
               whole ? fmt::format("{:.0f}", row.launches) : "",
               whole ? fmt::format("{:.0f}", row.eager_us) : "");
    std::fflush(stdout);
    rows.push_back(row);
  });
  const std::string where =
      fmt::format("{:%Y-%m-%d},{},h200", fmt::gmtime(std::time(nullptr)), kSourceCommit);
  for (const runner::DecodeBenchRow& row : rows) {
    csv.append(runner::decode_bench_line(row, where) + "\n");
  }
}

}  // namespace

CLI::App* add_bench_prefill(CLI::App& bench) {
  constexpr int64_t kMost = 1 << 30;
  auto flags = std::make_shared<PrefillFlags>();
  CLI::App* command =
      bench.add_subcommand("prefill", "Measure passes of prompts on kernels, synthetic weights");
  command->add_option("--model", flags->model, "Shape: flash, pro, a config.json or its folder");
  command->add_option("--layers", flags->layers, "Its first layers alone")
      ->check(CLI::Range(int64_t{1}, kMost));
  command->add_option("--experts", flags->experts, "Routed experts of a layer; 0: all")
      ->check(CLI::Range(int64_t{0}, kMost));
  command->add_option("--tokens", flags->bench.tokens, "Tokens of a pass, one set of rows each")
      ->delimiter(',')
      ->check(CLI::Range(int64_t{1}, int64_t{1024}));
  command->add_option("--behind", flags->bench.positions, "Tokens that were there before")
      ->delimiter(',')
      ->check(CLI::Range(int64_t{0}, kMost));
  command->add_option("--replays", flags->bench.replays, "Passes behind each median")
      ->check(CLI::Range(int64_t{1}, int64_t{1 << 20}));
  command
      ->add_option("--grouped-from",
                   flags->bench.forms.fewest_grouped_tokens,
                   "Tokens from which on experts take their form for many")
      ->check(CLI::Range(int64_t{1}, int64_t{4096}));
  command->add_option("--wide-linears",
                      flags->bench.forms.wide_linears,
                      "Whether linears take their form for many tokens");
  command->add_option("--csv", flags->csv, "File to append the rows to");
  command->callback([flags] { bench_prefill(*flags); });
  return command;
}

}  // namespace baleen::apps
