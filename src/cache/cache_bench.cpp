// What the cache's bookkeeping costs on the engine's thread, as CSV on standard output: matching
// long prompts, admitting and ending them, and the work of one decode step at 256 running
// sequences. Several prompts take turns, so that their ids come from memory rather than from the L2
// cache.
//
//   build/cpu/bin/cache_bench

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <optional>
#include <vector>

#include "base/check.h"
#include "cache/sequence_cache.h"

namespace baleen::cache {
namespace {

constexpr int32_t kChunk = 8192;
constexpr int32_t kRunning = 256;
constexpr int kRepeats = 60;

std::vector<int32_t> prompt_of(int32_t length, uint64_t seed) {
  std::vector<int32_t> ids(static_cast<size_t>(length));
  for (int32_t& id : ids) {
    seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
    id = static_cast<int32_t>((seed >> 33) % 129280);
  }
  return ids;
}

void report(const char* name, int32_t context, std::vector<double> micros) {
  std::sort(micros.begin(), micros.end());
  std::printf("%s/context:%d,%.1f,%.1f\n",
              name,
              context,
              micros[micros.size() / 2],
              micros[micros.size() * 95 / 100]);
}

std::vector<double> time_each(const std::function<void(int)>& body) {
  std::vector<double> micros;
  for (int i = 0; i < kRepeats + 3; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    body(i);
    const std::chrono::duration<double, std::micro> spent =
        std::chrono::steady_clock::now() - begin;
    if (i >= 3) {
      micros.push_back(spent.count());
    }
  }
  return micros;
}

/// Runs a prompt as an engine does, chunk by chunk, without any payload.
void run(SequenceCache& cache, SequenceLease& lease, const std::vector<int32_t>& ids) {
  std::vector<CaptureJob> jobs;
  while (lease.committed() < static_cast<int32_t>(ids.size())) {
    const int32_t begin = lease.committed();
    const int32_t end = std::min(begin + kChunk, static_cast<int32_t>(ids.size()));
    BALEEN_CHECK(cache.reserve(lease, end), "no room at {}", begin);
    cache.plan_captures(lease, begin, end, jobs);
    for (const CaptureJob& job : jobs) {
      cache.complete(job.ticket);
    }
    jobs.clear();
    cache.commit(
        lease,
        std::span(ids).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)));
  }
}

SequenceLease admitted(SequenceCache& cache, int32_t slot, const std::vector<int32_t>& ids) {
  auto admission = cache.admit(RequestSlot(slot), {.ids = ids}, kChunk);
  BALEEN_CHECK(admission.has_value(), "no room for slot {}", slot);
  if (admission->copy) {
    cache.complete(admission->copy->ticket);
  }
  return std::move(admission->lease);
}

void measure(int32_t context) {
  SequenceCacheOptions options;
  const int32_t pages = context / 256;
  options.sizes = {.full_pages = 4 * pages + 4 * kRunning,
                   .swa_pages = 4 * kRunning + 128,
                   .checkpoint_slots = 2200,
                   .open_group_blocks = 800,
                   .event_capacity = 0};
  options.rings = {.c4_rows = 16, .c128_rows = 136};
  options.verified_tokens = 4;
  options.request_slots = kRunning;
  SequenceCache cache(options);
  std::vector<std::vector<int32_t>> prompts;
  for (uint64_t seed = 0; seed < 4; ++seed) {
    prompts.push_back(prompt_of(context, seed));
    SequenceLease lease = admitted(cache, 0, prompts.back());
    run(cache, lease, prompts.back());
    cache.finish(std::move(lease));
  }
  int64_t hits = 0;
  const auto match = [&](int i) {
    hits += cache.peek({.ids = prompts[static_cast<size_t>(i % 4)]}).hit;
  };
  report("cache/match", context, time_each(match));
  report("cache/admit_abort", context, time_each([&](int i) {
           cache.abort(admitted(cache, 0, prompts[static_cast<size_t>(i % 4)]));
         }));
  // Every window is gone but those at the ends: the match walks back to the nearest resume point.
  BALEEN_CHECK(cache.make_room(0, options.sizes.swa_pages), "windows are in use");
  report("cache/match_windows_gone", context, time_each(match));
  BALEEN_CHECK(hits > 0, "nothing was matched");

  std::vector<SequenceLease> running;
  for (int32_t slot = 0; slot < kRunning; ++slot) {
    running.push_back(admitted(cache, slot, prompts[0]));
    run(cache, running.back(), prompts[0]);
  }
  std::vector<PageChange> changes;
  report("cache/decode_step/running:256", context, time_each([&](int i) {
           const CacheTicket step = cache.open_step();
           for (SequenceLease& lease : running) {
             BALEEN_CHECK(cache.reserve(lease, lease.committed() + 8), "no room");
             cache.join(step, lease, lease.committed() + 4);
           }
           changes.clear();
           cache.take_page_changes(changes);
           cache.complete(step);
           for (size_t row = 0; row < running.size(); ++row) {
             const int32_t ids[3] = {static_cast<int32_t>(row), i, 7};
             cache.commit(running[row], ids, 9);
           }
         }));
  for (SequenceLease& lease : running) {
    cache.abort(std::move(lease));
  }
}

}  // namespace
}  // namespace baleen::cache

int main() {
  std::printf("name,median_us,p95_us\n");
  for (const int32_t context : {4096, 65536, 1048576}) {
    baleen::cache::measure(context);
  }
  return 0;
}
