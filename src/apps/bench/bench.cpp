#include <chrono>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include "apps/bench/stream_timing.h"
#include "apps/commands.h"
#include "apps/opened_model.h"
#include "apps/source_commit.h"
#include "base/error.h"
#include "base/log.h"
#include "base/metrics.h"
#include "engine/engine.h"

namespace baleen::apps {
namespace {

struct BenchOptions {
  OpenModelOptions model;
  std::vector<int32_t> streams = {1, 4, 16};
  int32_t num_prompt_tokens = 32;
  int32_t num_new_tokens = 128;
  int32_t repeats = 5;
  std::string csv;
};

struct BenchRow {
  int32_t num_streams = 0;
  StreamTiming timing;  // medians over the repeats
};

/// Megabytes of a field of /proc/self/status, 0 where there is none.
double memory_mb(const std::string& field) {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line)) {
    if (line.starts_with(field + ":")) {
      return std::stod(line.substr(field.size() + 1)) * 1024.0 / 1e6;
    }
  }
  return 0.0;
}

BenchRow measure(engine::Engine& engine, StreamLoad load, int32_t repeats, uint64_t& round) {
  std::vector<double> first_token;
  std::vector<double> decode;
  std::vector<double> total;
  for (int32_t i = 0; i <= repeats; ++i) {
    load.round = round++;
    const StreamTiming timing = time_streams(engine, load);
    if (i == 0) {
      continue;  // warm-up
    }
    first_token.push_back(timing.first_token_s);
    decode.push_back(timing.decode_tokens_per_s);
    total.push_back(timing.total_tokens_per_s);
  }
  return {load.num_streams, {median(first_token), median(decode), median(total)}};
}

void write_csv(const BenchOptions& options,
               const OpenedModel& model,
               const std::string& numerics,
               const std::vector<BenchRow>& rows) {
  const bool is_new = !std::filesystem::exists(options.csv);
  std::ofstream file(options.csv, std::ios::app);
  if (is_new) {
    file << "model,commit,date,numerics,threads,streams,prompt_tokens,new_tokens,repeats,"
            "first_token_ms,stream_tok_per_s,total_tok_per_s,load_s,resident_mb,peak_mb\n";
  }
  const std::time_t now = std::time(nullptr);
  for (const BenchRow& row : rows) {
    file << fmt::format(
        "{},{},{:%Y-%m-%d},{},{},{},{},{},{},{:.2f},{:.1f},{:.1f},{:.3f},{:.0f},{:.0f}\n",
        model.name,
        kSourceCommit,
        fmt::gmtime(now),
        numerics,
        options.model.num_threads,
        row.num_streams,
        options.num_prompt_tokens,
        options.num_new_tokens,
        options.repeats,
        1e3 * row.timing.first_token_s,
        row.timing.decode_tokens_per_s,
        row.timing.total_tokens_per_s,
        model.load_seconds,
        memory_mb("VmRSS"),
        memory_mb("VmHWM"));
  }
  if (!file) {
    throw SystemError(fmt::format("cannot write {}", options.csv));
  }
}

void bench(BenchOptions options) {
  if (options.repeats < 1 || options.num_new_tokens < 2 || options.num_prompt_tokens < 1) {
    throw ConfigError("--repeats and --prompt-tokens are at least 1, --new-tokens at least 2");
  }
  log::set_level(log::Level::kWarn);
  for (const int32_t streams : options.streams) {
    if (streams < 1) {
      throw ConfigError("--streams are at least 1");
    }
    options.model.max_running = std::max(options.model.max_running, streams);
  }
  OpenedModel model = open_model(options.model);
  const double loaded_mb = memory_mb("VmRSS");
  MetricRegistry metrics;
  engine::Engine engine(model.engine_config, std::move(model.executor), model.tokenizer, metrics);
  engine.start();
  StreamLoad load;
  load.num_prompt_tokens = options.num_prompt_tokens;
  load.num_new_tokens = options.num_new_tokens;
  load.vocab_size = engine.stats().capacity.vocab_size;
  fmt::print("{} at {}, numerics {}, {} threads; {} prompt and {} new tokens, median of {}\n",
             model.name,
             kSourceCommit,
             engine.executor_info().numerics,
             options.model.num_threads,
             options.num_prompt_tokens,
             options.num_new_tokens,
             options.repeats);
  fmt::print("{:>8} {:>16} {:>18} {:>18}\n",
             "streams",
             "first token ms",
             "tok/s per stream",
             "tok/s in all");
  std::vector<BenchRow> rows;
  uint64_t round = 0;
  for (const int32_t streams : options.streams) {
    load.num_streams = streams;
    rows.push_back(measure(engine, load, options.repeats, round));
    const StreamTiming& timing = rows.back().timing;
    fmt::print("{:>8} {:>16.1f} {:>18.1f} {:>18.1f}\n",
               streams,
               1e3 * timing.first_token_s,
               timing.decode_tokens_per_s,
               timing.total_tokens_per_s);
    std::fflush(stdout);
  }
  const std::string numerics = engine.executor_info().numerics;
  engine.stop();
  fmt::print(
      "load {:.2f} s ({:.1f} MB), resident {:.0f} MB after load, {:.0f} MB now, peak {:.0f} MB\n",
      model.load_seconds,
      static_cast<double>(model.file_bytes) / 1e6,
      loaded_mb,
      memory_mb("VmRSS"),
      memory_mb("VmHWM"));
  if (!options.csv.empty()) {
    write_csv(options, model, numerics, rows);
  }
}

}  // namespace

void add_bench(CLI::App& app) {
  auto options = std::make_shared<BenchOptions>();
  CLI::App* command =
      app.add_subcommand("bench", "Measure latency, speed, load time and memory of a model");
  add_model_flags(*command, options->model);
  command->add_option("--streams", options->streams, "Requests at a time, one row each")
      ->delimiter(',');
  command->add_option("--prompt-tokens", options->num_prompt_tokens, "Tokens of each prompt");
  command->add_option("--new-tokens", options->num_new_tokens, "Tokens of each answer");
  command->add_option(
      "--repeats", options->repeats, "Runs behind each median, after one to warm up");
  command->add_option("--csv", options->csv, "File to append the rows to");
  command->callback([options] { bench(*options); });
}

}  // namespace baleen::apps
