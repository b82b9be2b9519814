#include "apps/bench/load/serve_bench.h"

#include <cstdio>
#include <ctime>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <boost/json.hpp>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include "apps/bench/csv_file.h"
#include "apps/bench/load/dataset.h"
#include "apps/bench/load/load_plot.h"
#include "apps/bench/load/load_report.h"
#include "apps/number_check.h"
#include "base/error.h"

namespace baleen::apps {
namespace {

struct ServeBenchOptions {
  std::vector<std::string> urls = {"http://127.0.0.1:30000"};
  std::vector<std::string> labels;
  LoadTargetOptions target;
  std::string endpoint = "chat";
  std::string extra_body;
  std::vector<int32_t> concurrency = {8};
  std::vector<double> rates;
  int32_t max_running = 256;
  int32_t requests = 100;
  int32_t warm_up = 8;
  std::string prompt_tokens = "256";
  std::string answer_tokens = "64";
  std::string dataset;
  LoadMix mix;
  uint64_t seed = 1;
  std::string json;
  std::string csv;
  std::string plot;
};

std::vector<LoadLevel> levels_of(const ServeBenchOptions& options) {
  std::vector<LoadLevel> levels;
  for (const double rate : options.rates) {
    levels.push_back({.rate = rate, .concurrency = options.max_running});
  }
  for (size_t i = 0; options.rates.empty() && i < options.concurrency.size(); ++i) {
    levels.push_back({.rate = 0.0, .concurrency = options.concurrency[i]});
  }
  return levels;
}

std::string mix_words(const ServeBenchOptions& options) {
  const LoadMix& mix = options.mix;
  std::string text = options.dataset.empty()
                         ? fmt::format("prompts of {} tokens", mix.prompt_tokens.text())
                         : fmt::format("prompts of {}", options.dataset);
  text += fmt::format(", answers of {}", mix.answer_tokens.text());
  if (mix.groups > 0) {
    text += fmt::format(", {} shared prefixes of {}", mix.groups, mix.shared_tokens);
  }
  if (mix.turns > 1) {
    text += fmt::format(", {} turns", mix.turns);
  }
  return text;
}

/// One line that is written over on a terminal; a line every ten seconds elsewhere.
class ProgressLine {
 public:
  explicit ProgressLine(std::string name) : name_(std::move(name)) {}
  void show(const LoadProgress& p) {
    constexpr int kQuietSeconds = 10;
    if (!terminal_ && ++num_calls_ % kQuietSeconds != 0) {
      return;
    }
    const double speed = p.wall_s > 0.0 ? static_cast<double>(p.answer_tokens) / p.wall_s : 0.0;
    fmt::print(stderr,
               "{}{}: {} of {} done, {} under way, {} failed, {:.0f} tokens/s, {:.0f} s{}",
               terminal_ ? "\r\x1b[K" : "",
               name_,
               p.done,
               p.total,
               p.running,
               p.failed,
               speed,
               p.wall_s,
               terminal_ ? "" : "\n");
    std::fflush(stderr);
  }
  void clear() const {
    if (terminal_) {
      fmt::print(stderr, "\r\x1b[K");
    }
  }

 private:
  const std::string name_;
  const bool terminal_ = ::isatty(STDERR_FILENO) == 1;
  int num_calls_ = 0;
};

void write_file(const std::string& file, const std::string& text) {
  if (file.empty()) {
    return;
  }
  std::ofstream stream(file, std::ios::binary);
  stream << text;
  stream.flush();
  if (!stream) {
    throw SystemError("cannot write " + file);
  }
}

void warm_up(const LoadTarget& target, const ServeBenchOptions& options) {
  if (options.warm_up == 0) {
    return;
  }
  const LoadLevel level{.rate = 0.0, .concurrency = options.warm_up};
  // Other texts than those measured: what is warmed is the server, not its cache.
  const LoadPlan plan =
      make_load_plan(options.mix, options.warm_up, level, options.seed + 0x9e3779b97f4a7c15ULL);
  const LoadRun run = run_load(target, options.mix, plan, level, {});
  for (const LoadRecord& record : run.records) {
    if (!record.ok) {
      throw Error(fmt::format("{}: the warm-up failed: {}", target.base, record.error));
    }
  }
}

void print_target(const std::string& label, const LoadTarget& target) {
  fmt::print("{}: {} serves {}", label, target.base, target.model);
  if (target.reports_usage) {
    fmt::print("; {:.2f} tokens a word", target.tokens_per_word);
  }
  fmt::print("\n");
  for (const std::string& note : target.notes) {
    fmt::print("  not measured: {}\n", note);
  }
}

boost::json::object target_json(const std::string& label, const LoadTarget& target) {
  boost::json::array notes;
  for (const std::string& note : target.notes) {
    notes.push_back(boost::json::value(note));
  }
  return {{"server", label},
          {"url", target.base},
          {"model", target.model},
          {"tokens_per_word", target.tokens_per_word},
          {"fixed_lengths", target.fixed_lengths},
          {"not_measured", std::move(notes)}};
}

void bench_serve(ServeBenchOptions options) {
  options.mix.prompt_tokens = LengthLaw::parse(options.prompt_tokens, "--prompt-tokens");
  options.mix.answer_tokens = LengthLaw::parse(options.answer_tokens, "--answer-tokens");
  options.target.chat = options.endpoint == "chat";
  if (!options.labels.empty() && options.labels.size() != options.urls.size()) {
    throw ConfigError(fmt::format(
        "--label: {} labels for {} servers", options.labels.size(), options.urls.size()));
  }
  if (!options.dataset.empty()) {
    options.mix.dataset = read_dataset(options.dataset);
  }
  if (!options.extra_body.empty()) {
    boost::system::error_code error;
    const boost::json::value body = boost::json::parse(options.extra_body, error);
    if (error || !body.is_object()) {
      throw ConfigError("--extra-body must be a JSON object");
    }
    options.target.extra_body = body.as_object();
  }
  const CsvFile csv(options.csv, load_csv_header());
  std::vector<LoadRow> rows;
  boost::json::array targets;
  int64_t num_done = 0;
  for (size_t i = 0; i < options.urls.size(); ++i) {
    options.target.url = options.urls[i];
    const LoadTarget target = probe_target(options.target);
    const std::string label =
        options.labels.empty()
            ? (options.urls.size() == 1 ? target.model : fmt::format("server {}", i + 1))
            : options.labels[i];
    print_target(label, target);
    targets.push_back(target_json(label, target));
    warm_up(target, options);
    if (i == 0) {
      fmt::print("{}", load_head_text());
    }
    for (const LoadLevel& level : levels_of(options)) {
      // Each pace has texts of its own: none finds the prompts of the one before in the cache.
      const uint64_t seed = options.seed + 1000003 * rows.size();
      const LoadPlan plan = make_load_plan(options.mix, options.requests, level, seed);
      ProgressLine line(fmt::format("{}, {}", label, level.name()));
      LoadRow row;
      row.server = label;
      row.url = target.base;
      row.model = target.model;
      row.date = fmt::format("{:%Y-%m-%d}", fmt::gmtime(std::time(nullptr)));
      row.mix = mix_words(options);
      row.seed = options.seed;
      row.run =
          run_load(target, options.mix, plan, level, [&](const LoadProgress& p) { line.show(p); });
      line.clear();
      row.figures = summarize(row.run);
      num_done += row.figures.requests;
      fmt::print("{}", load_row_text(row));
      std::fflush(stdout);
      csv.append(load_csv_line(row));
      rows.push_back(std::move(row));
    }
  }
  boost::json::array runs;
  for (const LoadRow& row : rows) {
    runs.push_back(load_row_json(row));
  }
  if (!options.json.empty()) {
    write_file(options.json,
               boost::json::serialize(boost::json::object{{"servers", std::move(targets)},
                                                          {"runs", std::move(runs)}}) +
                   "\n");
  }
  if (!options.plot.empty()) {
    write_file(options.plot, load_plot(rows));
  }
  if (num_done == 0) {
    throw Error("no request was answered");
  }
}

}  // namespace

void add_serve_bench(CLI::App& bench) {
  constexpr int32_t kMost = 1 << 24;
  auto options = std::make_shared<ServeBenchOptions>();  // shared with the callback
  ServeBenchOptions& o = *options;
  CLI::App* command = bench.add_subcommand(
      "serve", "Measure running servers from outside: any with OpenAI's paths, over HTTP");
  command->add_option("--url", o.urls, "Server, again for more: measured one after the other");
  command->add_option("--label", o.labels, "Name of each server in the tables");
  command->add_option("--model", o.target.model, "Model (default: the first that is served)");
  command->add_option("--api-key", o.target.api_key, "Bearer key");
  command->add_option("--endpoint", o.endpoint, "What is asked")
      ->check(CLI::IsMember({"chat", "completions"}));
  command->add_option("--temperature", o.target.temperature, "Of every request")
      ->check(number_in(0.0, 100.0));
  command->add_option("--extra-body", o.extra_body, "JSON object: fields added to every request");
  command->add_option("--timeout", o.target.timeout_s, "Seconds between two pieces of an answer")
      ->check(number_in(0.001, 86400.0));
  command->add_option("--concurrency", o.concurrency, "Conversations at a time, a row for each")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 14));
  command
      ->add_option("--rate",
                   o.rates,
                   "Instead: conversations per second that arrive by chance (Poisson), a row each")
      ->delimiter(',')
      ->check(number_in(1e-6, 1e6));
  command->add_option("--max-running", o.max_running, "With --rate: most conversations at a time")
      ->check(CLI::Range(1, 1 << 14));
  command->add_option("--requests", o.requests, "Requests of a row; whole conversations")
      ->check(CLI::Range(1, kMost));
  command->add_option("--warm-up", o.warm_up, "Requests before, not counted")
      ->check(CLI::Range(0, 1 << 14));
  command->add_option("--prompt-tokens",
                      o.prompt_tokens,
                      std::string("Length of a user's turn: ") + LengthLaw::kForms);
  command->add_option(
      "--answer-tokens", o.answer_tokens, std::string("Length of an answer: ") + LengthLaw::kForms);
  command
      ->add_option("--turns", o.mix.turns, "Requests of a conversation, each continuing the last")
      ->check(CLI::Range(1, 1 << 14));
  command->add_option("--groups", o.mix.groups, "Shared prefixes, dealt out in turn; 0: none")
      ->check(CLI::Range(0, kMost));
  command->add_option("--shared-tokens", o.mix.shared_tokens, "Length of a shared prefix")
      ->check(CLI::Range(1, kMost));
  command->add_option("--dataset",
                      o.dataset,
                      "File of prompts or conversations instead of made-up words: JSON lines or "
                      "array with prompt, messages or conversations");
  command->add_option("--seed", o.seed, "Of texts, lengths and arrivals");
  command->add_option("--json", o.json, "File for everything that was measured, each request too");
  command->add_option("--csv", o.csv, "File to append the rows to");
  command->add_option("--plot", o.plot, "File for a picture (SVG)");
  command->callback([options] { bench_serve(*options); });
}

}  // namespace baleen::apps
