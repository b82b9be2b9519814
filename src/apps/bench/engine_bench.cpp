#include "apps/bench/engine_bench.h"

#include <cstdio>
#include <ctime>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include "apps/bench/csv_file.h"
#include "apps/bench/traffic.h"
#include "apps/model_source.h"
#include "apps/opened_model.h"
#include "apps/source_commit.h"
#include "base/error.h"
#include "base/log.h"
#include "base/metrics.h"
#include "cache/memory_plan.h"
#include "engine/engine.h"
#include "engine/synthetic_executor.h"
#include "text/tokenizer.h"

namespace baleen::apps {
namespace {

struct EngineBenchOptions {
  OpenModelOptions model;
  std::string synthetic;  // config whose cache shape a run without weights has; empty: the model
  int64_t synthetic_context = 1 << 17;
  std::vector<std::string> scenarios = {"turns", "shared", "giant", "mixed"};
  Traffic traffic{.conversations = 4, .groups = 4, .giants = 2};
  uint64_t seed = 1;
  std::string csv;
};

constexpr std::string_view kEngineCsvHeader =
    "model,commit,date,scenario,seed,requests,prompt_tokens,answer_tokens,hit_rate,known_tokens,"
    "recomputed_tokens,recomputed_rate,steps,preemptions,scheduling_us_per_step,tokens_per_draw,"
    "stood_by_place,first_token_ms,gap_p50_ms,gap_p99_ms,gap_max_ms,wall_s";

/// The kinds of one scenario, the others taken out.
Traffic traffic_of(const std::string& scenario, Traffic traffic) {
  if (scenario != "turns" && scenario != "mixed") {
    traffic.conversations = 0;
  }
  if (scenario != "shared" && scenario != "mixed") {
    traffic.groups = 0;
  }
  if (scenario != "giant" && scenario != "mixed") {
    traffic.giants = 0;
  }
  return traffic;
}

/// Bookkeeping of the real cache, but no weights and no pools.
std::unique_ptr<engine::Executor> synthetic_executor(const EngineBenchOptions& options) {
  const ModelConfig config = config_from(options.synthetic);
  const cache::CacheShape shape = cache::cache_shape(config, {});
  const cache::CacheSizes sizes =
      cache::fit_cache(shape,
                       int64_t{options.model.cache_mib} << 20,
                       {.max_running_requests = options.model.max_running,
                        .chunk_tokens = options.model.max_step_tokens,
                        .drafts = false});
  engine::SyntheticExecutor::Options out;
  out.capacity.num_slots = options.model.max_running;
  out.capacity.max_context = options.synthetic_context;
  out.capacity.max_step_tokens = options.model.max_step_tokens;
  out.capacity.vocab_size = config.vocab_size;
  cache::SequenceCacheOptions& cache = out.capacity.cache.emplace();
  cache.geometry = cache::cache_geometry(shape);
  cache.sizes = {.full_pages = static_cast<int32_t>(sizes.full_pages),
                 .swa_pages = static_cast<int32_t>(sizes.swa_pages),
                 .checkpoint_slots = static_cast<int32_t>(sizes.checkpoint_slots),
                 .open_group_blocks = static_cast<int32_t>(sizes.open_group_blocks),
                 .event_capacity = 0};
  cache.rings = {.c4_rows = static_cast<int32_t>(sizes.c4_ring_rows),
                 .c128_rows = static_cast<int32_t>(sizes.c128_ring_rows)};
  cache.request_slots = options.model.max_running;
  return std::make_unique<engine::SyntheticExecutor>(out);
}

OpenedModel opened(const EngineBenchOptions& options) {
  if (options.synthetic.empty()) {
    return open_model(options.model);
  }
  OpenedModel out;
  out.name = "synthetic-" + options.synthetic;
  out.executor = synthetic_executor(options);
  out.tokenizer = text::Tokenizer::load(options.model.folder / "tokenizer.json");
  apply_schedule(options.model, out.engine_config);
  return out;
}

/// 0.81/0.66/0.52, or a dash without speculation.
std::string places_text(const std::vector<double>& stood_by_place) {
  std::string out;
  for (const double rate : stood_by_place) {
    out += fmt::format("{}{:.2f}", out.empty() ? "" : "/", rate);
  }
  return out.empty() ? "-" : out;
}

std::string csv_line(const std::string& model,
                     const std::string& scenario,
                     uint64_t seed,
                     const TrafficFigures& f) {
  return fmt::format(
      "{},{},{:%Y-%m-%d},{},{},{},{},{},{:.4f},{},{},{:.4f},{},{},{:.1f},{:.3f},{},{:.2f},{:.2f},"
      "{:.2f},{:.2f},{:.2f}\n",
      model,
      kSourceCommit,
      fmt::gmtime(std::time(nullptr)),
      scenario,
      seed,
      f.requests,
      f.prompt_tokens,
      f.answer_tokens,
      f.hit_rate(),
      f.known_tokens,
      f.recomputed_tokens,
      f.recomputed_rate(),
      f.steps,
      f.preemptions,
      f.scheduling_us,
      f.accepted,
      places_text(f.stood_by_place),
      f.first_token_ms,
      f.gap_p50_ms,
      f.gap_p99_ms,
      f.gap_max_ms,
      f.wall_s);
}

void bench_engine(const EngineBenchOptions& options) {
  log::set_level(log::Level::kWarn);
  CsvFile csv(options.csv, kEngineCsvHeader);
  OpenedModel model = opened(options);
  MetricRegistry metrics;
  engine::Engine engine(model.engine_config, std::move(model.executor), model.tokenizer, metrics);
  const engine::ExecutorCapacity& capacity = engine.stats().capacity;
  for (const std::string& scenario : options.scenarios) {
    check_traffic(traffic_of(scenario, options.traffic), capacity.max_context);
  }
  engine.start();
  fmt::print("{} at {}, {} slots, {} step tokens, prefill chunk {}; {}\n",
             model.name,
             kSourceCommit,
             capacity.num_slots,
             capacity.max_step_tokens,
             engine.config().max_prefill_chunk,
             capacity.cache ? fmt::format("cache of {} tokens, resume granularity: {}",
                                          int64_t{capacity.cache->sizes.full_pages} *
                                              capacity.cache->geometry.page_tokens,
                                          cache::resume_granularity(capacity.cache->geometry))
                            : std::string("no cache: nothing is shared"));
  fmt::print("{:<8} {:>8} {:>10} {:>7} {:>11} {:>9} {:>7} {:>8} {:>9} {:>10} {:>9} {:>9} {}\n",
             "traffic",
             "requests",
             "prompt tok",
             "hits %",
             "recomputed",
             "of known",
             "steps",
             "sched us",
             "tok/draw",
             "first ms",
             "gap p99",
             "gap max",
             "drafts that stood, by place");
  for (const std::string& scenario : options.scenarios) {
    const TrafficFigures f =
        run_traffic(engine, traffic_of(scenario, options.traffic), options.seed);
    fmt::print(
        "{:<8} {:>8} {:>10} {:>7.1f} {:>11} {:>8.2f}% {:>7} {:>8.1f} {:>9.2f} {:>10.1f} {:>9.1f} "
        "{:>9.1f} {}\n",
        scenario,
        f.requests,
        f.prompt_tokens,
        100.0 * f.hit_rate(),
        f.recomputed_tokens,
        100.0 * f.recomputed_rate(),
        f.steps,
        f.scheduling_us,
        f.accepted,
        f.first_token_ms,
        f.gap_p99_ms,
        f.gap_max_ms,
        places_text(f.stood_by_place));
    std::fflush(stdout);
    csv.append(csv_line(model.name, scenario, options.seed, f));
  }
  engine.stop();
}

void add_traffic_flags(CLI::App& command, Traffic& t) {
  constexpr int32_t kMost = 1 << 24;
  const auto count = [&](const char* flag, int32_t& value, int32_t least, const char* what) {
    command.add_option(flag, value, what)->check(CLI::Range(least, kMost));
  };
  count("--conversations", t.conversations, 0, "Conversations at a time");
  count("--turns", t.turns, 1, "Requests of a conversation, each continuing the last");
  count("--turn-tokens-min", t.turn_tokens_min, 1, "Least new prompt tokens of a turn");
  count("--turn-tokens-max", t.turn_tokens_max, 1, "Most new prompt tokens of a turn");
  count("--groups", t.groups, 0, "Shared prompts");
  count("--questions", t.questions_per_group, 1, "Requests behind each shared prompt");
  count("--shared-tokens", t.shared_tokens, 1, "Tokens of a shared prompt");
  count("--question-tokens", t.question_tokens, 1, "Tokens of a question behind it");
  count("--giants", t.giants, 0, "Giant prompts, one after the other");
  count("--giant-tokens", t.giant_tokens, 1, "Tokens of a giant prompt");
  count("--answer-tokens", t.answer_tokens, 1, "Tokens of every answer");
}

}  // namespace

void add_engine_bench(CLI::App& bench) {
  auto options = std::make_shared<EngineBenchOptions>();  // shared with the callback
  options->model.show_progress = false;
  CLI::App* command = bench.add_subcommand(
      "engine", "Measure the engine under synthetic traffic: cache hits, scheduling, latency");
  add_model_flags(*command, options->model);
  add_schedule_flags(*command, options->model);
  command->add_option("--synthetic",
                      options->synthetic,
                      "No weights: the cache of this config (flash, pro, tiny, a config.json) and "
                      "made-up tokens; the folder gives the tokenizer");
  command
      ->add_option("--synthetic-context", options->synthetic_context, "Tokens of one sequence then")
      ->check(CLI::Range(1, 1 << 30));
  command->add_option("--traffic", options->scenarios, "Rows: turns, shared, giant, mixed")
      ->delimiter(',')
      ->check(CLI::IsMember({"turns", "shared", "giant", "mixed"}));
  add_traffic_flags(*command, options->traffic);
  command->add_option("--seed", options->seed, "Of prompts and lengths");
  command->add_option("--csv", options->csv, "File to append the rows to");
  command->callback([options] { bench_engine(*options); });
}

}  // namespace baleen::apps
