#include "apps/bench/decode.h"

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
#include "runner/decode/decode_bench.h"
#include "weights/synth.h"

namespace baleen::apps {
namespace {

struct DecodeFlags {
  std::string model = "flash";
  int64_t layers = 12;
  int64_t experts = 0;  // 0: as the model has
  runner::DecodeBenchOptions bench;
  bool no_programmatic = false;
  std::string csv;
};

void bench_decode(const DecodeFlags& flags) {
  runner::DecodeBenchOptions options = flags.bench;
  options.whole = config_from(flags.model);
  if (flags.experts > 0) {
    options.whole = weights::with_num_experts(*options.whole, flags.experts);
  }
  options.config = weights::with_num_layers(*options.whole, flags.layers);
  options.programmatic = !flags.no_programmatic;
  const CsvFile csv(flags.csv, runner::decode_bench_header());
  std::vector<runner::DecodeBenchRow> rows;
  fmt::print(
      "{} of {} layers at {}\n{:<20} {:>5} {:>8} {:>11} {:>10} {:>10} {:>6} {:>9} {:>9} {:>9}\n",
      flags.model,
      flags.layers,
      kSourceCommit,
      "part",
      "batch",
      "context",
      "median us",
      "p95 us",
      "floor us",
      "%",
      "launches",
      "eager us",
      "graph us");
  const runner::DecodeBenchSummary summary =
      runner::run_decode_bench(options, [&](const runner::DecodeBenchRow& row) {
        fmt::print(
            "{:<20} {:>5} {:>8} {:>11.1f} {:>10.1f} {:>10.1f} {:>6.1f} {:>9.1f} {:>9.0f} "
            "{:>9.1f}\n",
            row.part,
            row.batch,
            row.context,
            row.median_us,
            row.p95_us,
            row.floor_us,
            row.median_us > 0 ? 100.0 * row.floor_us / row.median_us : 0.0,
            row.launches,
            row.eager_us,
            row.graph_us);
        std::fflush(stdout);
        rows.push_back(row);
      });
  fmt::print("{}: read {:.2f} TB/s, weights {:.2f} GB, pools {:.2f} GB\n",
             summary.card,
             summary.read_tb_s,
             static_cast<double>(summary.weight_bytes) * 1e-9,
             static_cast<double>(summary.pool_bytes) * 1e-9);
  fmt::print(
      "\"whole\" and \"whole_cycle\" are extrapolated from the layers measured, not measured: all "
      "{} "
      "layers on one card, and a cycle that verifies {} tokens of every request behind {} drafts\n",
      options.whole->num_hidden_layers,
      runner::kCycleTokens,
      runner::kCycleTokens - 1);
  const std::string where = fmt::format(
      "{:%Y-%m-%d},{},{}", fmt::gmtime(std::time(nullptr)), kSourceCommit, summary.card);
  for (const runner::DecodeBenchRow& row : rows) {
    csv.append(runner::decode_bench_line(row, where) + "\n");
  }
}

}  // namespace

CLI::App* add_bench_decode(CLI::App& bench) {
  constexpr int64_t kMost = 1 << 30;
  auto flags = std::make_shared<DecodeFlags>();
  CLI::App* command =
      bench.add_subcommand("decode", "Measure decode steps on kernels, synthetic weights");
  command->add_option("--model", flags->model, "Shape: flash, pro, a config.json or its folder");
  command->add_option("--layers", flags->layers, "Its first layers alone")
      ->check(CLI::Range(int64_t{1}, kMost));
  command->add_option("--experts", flags->experts, "Routed experts of a layer; 0: all")
      ->check(CLI::Range(int64_t{0}, kMost));
  command->add_option("--batch", flags->bench.batches, "Sequences of a step, one set of rows each")
      ->delimiter(',')
      ->check(CLI::Range(int64_t{1}, int64_t{1024}));
  command->add_option("--context", flags->bench.contexts, "Tokens that each sequence has")
      ->delimiter(',')
      ->check(CLI::Range(int64_t{1}, kMost));
  command->add_option("--replays", flags->bench.replays, "Graph replays behind each median")
      ->check(CLI::Range(int64_t{1}, int64_t{1 << 20}));
  command->add_flag("--stages", flags->bench.stages, "Time every stage of a layer as well");
  command->add_flag(
      "--choices", flags->bench.choices, "Steps that record experts and picks as well");
  command->add_flag(
      "--plain-edges", flags->no_programmatic, "Kernels wait for the end of those before them");
  command->add_option("--csv", flags->csv, "File to append the rows to");
  command->callback([flags] { bench_decode(*flags); });
  return command;
}

}  // namespace baleen::apps
