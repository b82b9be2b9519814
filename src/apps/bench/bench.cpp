#include <chrono>
#include <cstdio>
#include <ctime>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include "apps/bench/csv_file.h"
#include "apps/bench/decode.h"
#include "apps/bench/engine_bench.h"
#include "apps/bench/kernels.h"
#include "apps/bench/load/serve_bench.h"
#include "apps/bench/prefill.h"
#include "apps/bench/stream_timing.h"
#include "apps/commands.h"
#include "apps/model_server.h"
#include "apps/source_commit.h"
#include "base/error.h"
#include "base/log.h"
#include "base/process_figures.h"
#include "engine/engine.h"
#include "http/client.h"

namespace baleen::apps {
namespace {

struct BenchOptions {
  OpenModelOptions model;
  std::vector<int32_t> streams = {1, 4, 16};
  std::string prompt;
  int32_t num_prompt_tokens = 32;
  int32_t num_new_tokens = 128;
  int32_t repeats = 5;
  std::string csv;
};

struct BenchRow {
  int32_t num_streams = 0;
  StreamTiming timing;  // medians over the repeats
};

/// What is measured once, apart from the rows.
struct BenchRun {
  std::string model;
  std::string numerics;
  double load_s = 0.0;
  double start_s = 0.0;  // from the start of the process until the server has answered a request
  double file_mb = 0.0;
  double loaded_mb = 0.0;  // resident after loading
  int32_t max_drafts = 0;
};

constexpr std::string_view kCsvHeader =
    "model,commit,date,numerics,threads,streams,prompt_tokens,new_tokens,repeats,first_token_ms,"
    "stream_tok_per_s,total_tok_per_s,load_s,start_s,resident_mb,peak_mb,prompt,drafts,"
    "accept_length";

BenchRow measure(engine::Engine& engine, StreamLoad load, int32_t repeats, uint64_t& round) {
  std::vector<double> first_token;
  std::vector<double> decode;
  std::vector<double> total;
  std::vector<double> accepted;
  for (int32_t i = 0; i <= repeats; ++i) {
    load.round = round++;
    const StreamTiming timing = time_streams(engine, load);
    if (i == 0) {
      continue;  // warm-up
    }
    first_token.push_back(timing.first_token_s);
    decode.push_back(timing.decode_tokens_per_s);
    total.push_back(timing.total_tokens_per_s);
    accepted.push_back(timing.accept_length);
  }
  return {load.num_streams, {median(first_token), median(decode), median(total), median(accepted)}};
}

void write_csv(const CsvFile& csv,
               const BenchOptions& options,
               const BenchRun& run,
               const std::vector<BenchRow>& rows) {
  const std::time_t now = std::time(nullptr);
  for (const BenchRow& row : rows) {
    csv.append(
        fmt::format("{},{},{:%Y-%m-%d},{},{},{},{},{},{},{:.2f},{:.1f},{:.1f},{:.3f},{:.2f},{:.0f},"
                    "{:.0f},{},{},"
                    "{:.2f}\n",
                    run.model,
                    kSourceCommit,
                    fmt::gmtime(now),
                    run.numerics,
                    options.model.num_threads,
                    row.num_streams,
                    options.num_prompt_tokens,
                    options.num_new_tokens,
                    options.repeats,
                    1e3 * row.timing.first_token_s,
                    row.timing.decode_tokens_per_s,
                    row.timing.total_tokens_per_s,
                    run.load_s,
                    run.start_s,
                    process_memory_bytes("VmRSS") / 1e6,
                    process_memory_bytes("VmHWM") / 1e6,
                    options.prompt.empty() ? "made up" : "text",
                    run.max_drafts,
                    row.timing.accept_length));
  }
}

/// The age of the process when the server has answered for the first time.
double wait_for_answer(const std::string& url) {
  http::Client client(url, {});
  const Result<http::Response> answer = client.get("/health");
  if (!answer.ok() || answer->status != 200) {
    throw Error(
        fmt::format("{}/health: {}", url, answer.ok() ? answer->body : answer.status().message));
  }
  return process_age_s();
}

void bench(BenchOptions options) {
  log::set_level(log::Level::kWarn);
  for (const int32_t streams : options.streams) {
    options.model.max_running = std::max(options.model.max_running, streams);
  }
  const CsvFile csv(options.csv, kCsvHeader);
  BenchRun run;
  OpenedModel model = open_model(options.model);
  run.model = model.name;
  run.load_s = model.load_seconds;
  run.file_mb = static_cast<double>(model.file_bytes) / 1e6;
  run.loaded_mb = process_memory_bytes("VmRSS") / 1e6;
  StreamLoad load;
  load.prompt = model.tokenizer->encode(options.prompt);
  if (!load.prompt.empty()) {
    options.num_prompt_tokens = static_cast<int32_t>(load.prompt.size());
  }
  server::ServerConfig config;
  config.http.port = 0;
  config.drain_timeout = std::chrono::milliseconds(0);
  ModelServer server(std::move(model), options.model.folder.string(), config);
  server.start();
  run.start_s = wait_for_answer(server.url());
  engine::Engine& engine = server.engine();
  run.numerics = engine.executor_info().numerics;
  run.max_drafts = engine.stats().capacity.max_drafts;
  load.num_prompt_tokens = options.num_prompt_tokens;
  load.num_new_tokens = options.num_new_tokens;
  load.vocab_size = engine.stats().capacity.vocab_size;
  fmt::print(
      "{} at {}, numerics {}, {} threads, {} drafts; {} prompt and {} new tokens, median of "
      "{}\n",
      run.model,
      kSourceCommit,
      run.numerics,
      options.model.num_threads,
      run.max_drafts,
      options.num_prompt_tokens,
      options.num_new_tokens,
      options.repeats);
  fmt::print("{:>8} {:>16} {:>18} {:>18} {:>18}\n",
             "streams",
             "first token ms",
             "tok/s per stream",
             "tok/s in all",
             "tokens per verify");
  std::vector<BenchRow> rows;
  uint64_t round = 0;
  for (const int32_t streams : options.streams) {
    load.num_streams = streams;
    rows.push_back(measure(engine, load, options.repeats, round));
    const StreamTiming& timing = rows.back().timing;
    fmt::print("{:>8} {:>16.1f} {:>18.1f} {:>18.1f} {:>18.2f}\n",
               streams,
               1e3 * timing.first_token_s,
               timing.decode_tokens_per_s,
               timing.total_tokens_per_s,
               timing.accept_length);
    std::fflush(stdout);
  }
  server.drain();
  fmt::print(
      "server start {:.2f} s, of it load {:.2f} s ({:.1f} MB); resident {:.0f} MB after load, "
      "{:.0f} MB now, peak {:.0f} MB\n",
      run.start_s,
      run.load_s,
      run.file_mb,
      run.loaded_mb,
      process_memory_bytes("VmRSS") / 1e6,
      process_memory_bytes("VmHWM") / 1e6);
  write_csv(csv, options, run, rows);
}

}  // namespace

void add_bench(CLI::App& app) {
  constexpr int32_t kMost = 1 << 30;
  auto options = std::make_shared<BenchOptions>();
  CLI::App* command =
      app.add_subcommand("bench", "Measure latency, speed, load time and memory of a model");
  add_model_flags(*command, options->model);
  // With a subcommand the folder belongs to that.
  command->get_option("model")->required(false);
  add_engine_bench(*command);
  add_bench_kernels(*command);
  add_bench_decode(*command);
  add_bench_prefill(*command);
  add_serve_bench(*command);
  command->add_option("--streams", options->streams, "Requests at a time, one row each")
      ->delimiter(',')
      ->check(CLI::Range(1, kMost));
  command->add_option(
      "--prompt",
      options->prompt,
      "Text that every request continues; made-up tokens say little about speculation");
  command->add_option("--prompt-tokens", options->num_prompt_tokens, "Tokens of each prompt")
      ->check(CLI::Range(1, kMost));
  command->add_option("--new-tokens", options->num_new_tokens, "Tokens of each answer")
      ->check(CLI::Range(2, kMost));
  command
      ->add_option("--repeats", options->repeats, "Runs behind each median, after one to warm up")
      ->check(CLI::Range(1, kMost));
  command->add_option("--csv", options->csv, "File to append the rows to");
  command->callback([command, options] {
    if (!command->get_subcommands().empty()) {
      return;
    }
    if (options->model.folder.empty()) {
      throw CLI::RequiredError("model");
    }
    bench(*options);
  });
}

}  // namespace baleen::apps
