// What a step costs on the engine's thread beside the executor, as CSV on standard output:
// planning, cache bookkeeping, stop rules and text of 256 running requests at several context
// lengths, with and without drafts, and under a stream of short requests. The executor is
// synthetic: it takes no time and its own is not counted. Processor time, so that a busy machine
// shows as little as may be (its caches are shared all the same).
//
//   build/cpu/bin/engine_bench [tokenizer.json]

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/metrics.h"
#include "engine/engine_core.h"
#include "engine/synthetic_executor.h"
#include "text/tokenizer.h"

namespace baleen::engine {
namespace {

constexpr int32_t kBenchRunning = 256;
constexpr int32_t kBenchChunk = 8192;
constexpr int32_t kBenchSteps = 400;

/// Drops what it gets.
class DroppingSink final : public OutputSink {
 public:
  void on_event(OutputEvent&&) override {}
};

ExecutorCapacity bench_capacity(int32_t context, int32_t max_drafts) {
  const int32_t pages = context / 256;
  ExecutorCapacity capacity;
  capacity.num_slots = kBenchRunning;
  capacity.max_context = context + 2 * kBenchSteps * (max_drafts + 1);
  capacity.max_step_tokens = kBenchChunk + kBenchRunning;
  capacity.max_accepted = max_drafts + 1;
  capacity.max_drafts = max_drafts;
  capacity.vocab_size = 129280;
  cache::SequenceCacheOptions& cache = capacity.cache.emplace();
  cache.verified_tokens = max_drafts + 1;
  cache.sizes = {.full_pages = 2 * pages + 16 * kBenchRunning,
                 .swa_pages = 4 * kBenchRunning + 128,
                 .checkpoint_slots = 2200,
                 .open_group_blocks = 800,
                 .event_capacity = 0};
  cache.rings = {.c4_rows = 16, .c128_rows = 136};
  cache.request_slots = kBenchRunning;
  return capacity;
}

/// An engine without its thread.
class CoreBench {
 public:
  CoreBench(int32_t context, int32_t max_drafts, std::shared_ptr<const text::Tokenizer> tokenizer)
      : tokenizer_(std::move(tokenizer)),
        capacity_(bench_capacity(context, max_drafts)),
        executor_({.capacity = capacity_}),
        metrics_(registry_),
        draft_metrics_(registry_, max_drafts),
        rules_{.end_token_ids = {},
               .max_context = capacity_.max_context,
               .vocab_size = capacity_.vocab_size},
        core_({.num_slots = kBenchRunning,
               .max_step_tokens = capacity_.max_step_tokens,
               .max_prefill_chunk = kBenchChunk},
              capacity_,
              executor_,
              metrics_,
              [] { return std::chrono::steady_clock::now(); },
              {.drafts = {.max_drafts = max_drafts, .adaptive = false},
               .draft_metrics = &draft_metrics_}) {}

  void add(std::vector<int32_t> prompt, int32_t num_new) {
    GenerationRequest request;
    request.id = std::to_string(next_);
    request.prompt = std::move(prompt);
    request.max_new_tokens = num_new;
    request.ignore_eos = true;
    request.output.parse_markup = false;
    const EnginePoint now = std::chrono::steady_clock::now();
    core_.add(std::unique_ptr<LiveRequest>(
        new LiveRequest{SequenceId(next_++),
                        Generation(std::move(request), rules_, tokenizer_, 7),
                        std::make_shared<DroppingSink>(),
                        now,
                        now}));
  }
  /// Processor time of one step, microseconds.
  double step() {
    const double before = core_.scheduling_s();
    core_.turn();
    core_.clear_deliveries();
    return 1e6 * (core_.scheduling_s() - before);
  }
  EngineCore& core() { return core_; }

 private:
  std::shared_ptr<const text::Tokenizer> tokenizer_;
  ExecutorCapacity capacity_;
  SyntheticExecutor executor_;
  MetricRegistry registry_;
  EngineMetrics metrics_;
  DraftMetrics draft_metrics_;
  GenerationRules rules_;
  EngineCore core_;
  int64_t next_ = 0;
};

void print_row(const std::string& name, std::vector<double> micros) {
  std::sort(micros.begin(), micros.end());
  std::printf(
      "%s,%.1f,%.1f\n", name.c_str(), micros[micros.size() / 2], micros[micros.size() * 95 / 100]);
  std::fflush(stdout);
}

std::vector<int32_t> bench_prompt(int32_t length, uint64_t seed) {
  std::vector<int32_t> ids(static_cast<size_t>(length));
  for (int32_t& id : ids) {
    seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
    id = static_cast<int32_t>((seed >> 33) % 129280);
  }
  return ids;
}

void measure_decode(int32_t context,
                    int32_t max_drafts,
                    const std::shared_ptr<const text::Tokenizer>& tokenizer) {
  CoreBench bench(context, max_drafts, tokenizer);
  const std::vector<int32_t> prompt = bench_prompt(context, 1);
  const std::string suffix = "/context:" + std::to_string(context);
  const std::string kind = max_drafts > 0 ? "/drafts:" + std::to_string(max_drafts) : "";
  const int32_t num_new = 2 * kBenchSteps * (max_drafts + 1);
  std::vector<double> first;
  bench.add(prompt, num_new);
  while (bench.core().scheduler().num_used_tokens() < context) {
    first.push_back(bench.step());
  }
  if (max_drafts == 0) {
    print_row("engine/prefill_step/chunk:8192" + suffix, first);
  }
  for (int32_t i = 1; i < kBenchRunning; ++i) {
    bench.add(prompt, num_new);
  }
  std::vector<double> joined;
  while (bench.core().scheduler().num_waiting() > 0) {
    joined.push_back(bench.step());
  }
  // All that joined in these steps were matched with the whole prompt.
  double total = 0.0;
  for (const double micros : joined) {
    total += micros;
  }
  if (max_drafts == 0) {
    print_row("engine/admit_hit" + suffix, {total / (kBenchRunning - 1)});
  }
  std::vector<double> micros;
  for (int32_t i = 0; i < kBenchSteps; ++i) {
    micros.push_back(bench.step());
  }
  BALEEN_CHECK(bench.core().scheduler().num_running() == kBenchRunning, "some have ended");
  print_row("engine/decode_step/running:256" + kind + suffix, std::move(micros));
  bench.core().end_all(FinishReason::kAbort, {});
}

/// Requests of a few tokens come and go: what admission, first tokens and ends cost per step.
void measure_short_requests(const std::shared_ptr<const text::Tokenizer>& tokenizer) {
  constexpr int32_t kRequests = 20'000;
  CoreBench bench(4096, 0, tokenizer);
  std::vector<double> micros;
  for (int32_t done = 0; done < kRequests || bench.core().has_work();) {
    while (done < kRequests && bench.core().scheduler().num_waiting() < 64) {
      bench.add(bench_prompt(16, static_cast<uint64_t>(done)), 4 + done % 29);
      ++done;
    }
    micros.push_back(bench.step());
  }
  print_row("engine/short_requests/slots:256", std::move(micros));
}

}  // namespace
}  // namespace baleen::engine

int main(int argc, char** argv) {
  const auto tokenizer =
      baleen::text::Tokenizer::load(argc > 1 ? argv[1] : "src/text/testdata/tiny_tokenizer.json");
  std::printf("name,median_us,p95_us\n");
  for (const int32_t context : {4096, 65536, 1048576}) {
    baleen::engine::measure_decode(context, 0, tokenizer);
  }
  for (const int32_t context : {4096, 1048576}) {
    baleen::engine::measure_decode(context, 3, tokenizer);
  }
  baleen::engine::measure_short_requests(tokenizer);
  return 0;
}
