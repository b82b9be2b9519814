// Rows of the after-projection kernel: every request completes a group (the worst step), and none
// does.
#include <memory>
#include <string>
#include <vector>

#include "kernels/after_projection/after_projection.h"
#include "kernels/after_projection/after_projection_scene.h"
#include "kernels/benching/kernel_bench.h"

namespace baleen::kernels::benching {
namespace {

int64_t bytes_of(const testing::CompressorScene& scene, int64_t requests, bool aligned) {
  const int64_t row = 2 * int64_t{scene.width} * 4;
  const int64_t entry = scene.kind == CompressorKind::kIndex ? kIndexDims + 4 : 584;
  const int64_t window =
      scene.kind == CompressorKind::kC128 ? 128 * row : 8 * row / 2;  // half a row per ratio-4 slot
  return requests * (2 * row + (aligned ? window + entry : 0));
}

void measure(BenchContext& bench, CompressorKind kind, int32_t requests, bool aligned, bool chain) {
  const std::string name = kind == CompressorKind::kC4 ? "c4" : "c128";
  const std::string row = "after_projection/" + std::string(chain ? "chain/" : "decode/") + name +
                          (aligned ? "/aligned" : "/unaligned") + "/bs:" + std::to_string(requests);
  if (!bench.wants(row)) {
    return;
  }
  const int32_t start = aligned ? 1023 : 1024;
  const auto make = [&](uint64_t seed) {
    return std::make_unique<testing::AfterProjectionScene>(
        testing::AfterProjectionShape{
            .main = kind,
            .starts = std::vector<int32_t>(static_cast<std::size_t>(requests), start),
            .tokens = 1,
            .ring_size = kind == CompressorKind::kC4 ? 16 : 136},
        seed);
  };
  std::vector<std::unique_ptr<testing::AfterProjectionScene>> scenes;
  scenes.push_back(make(1));
  int64_t bytes = int64_t{requests} * (1024 * 3 + 8 + 512 * 2 + 584);
  bytes += bytes_of(scenes[0]->main, requests, aligned);
  if (kind == CompressorKind::kC4) {
    bytes += bytes_of(scenes[0]->index, requests, aligned) + requests * 64 * 6;
  }
  const int sets = BenchContext::sets_for(bytes) < 64 ? BenchContext::sets_for(bytes) : 64;
  std::vector<AfterProjectionParams> params;
  for (int i = 0; i < sets; ++i) {
    if (i > 0) {
      scenes.push_back(make(static_cast<uint64_t>(i + 1)));
    }
    params.push_back(scenes.back()->params());
    AfterProjectionParams& p = params.back();
    // Plans, positions and slots are made once per step and shared by all layers: they are warm.
    testing::AfterProjectionScene& first = *scenes.front();
    p.main.plan = first.main.plan_buffer.data();
    p.main_ring.writes = first.main.writes_buffer.data();
    p.main.num_entries = first.main.counts.data();
    p.main_ring.num_writes = first.main.counts.data() + 1;
    p.main.pooled = nullptr;
    p.latent.normalised = nullptr;
    if (kind == CompressorKind::kC4) {
      p.index.plan = first.index.plan_buffer.data();
      p.index_ring.writes = first.index.writes_buffer.data();
      p.index.num_entries = first.index.counts.data();
      p.index_ring.num_writes = first.index.counts.data() + 1;
      p.index.pooled = nullptr;
    }
    p.kv.positions = first.positions_buffer.data();
    p.kv.slots = first.slots_buffer.data();
    p.programmatic = chain;
  }
  bench.measure({.row = row, .bytes = bytes, .ceiling = Ceiling::kCopy},
                sets,
                [&](cudaStream_t stream, int set) {
                  after_projection_sm90(params[static_cast<std::size_t>(set)], stream);
                });
}

void run(BenchContext& bench) {
  for (const CompressorKind kind : {CompressorKind::kC4, CompressorKind::kC128}) {
    for (const bool aligned : {true, false}) {
      for (const int32_t requests : {1, 4, 8, 64, 256}) {
        measure(bench, kind, requests, aligned, false);
        measure(bench, kind, requests, aligned, true);
      }
    }
  }
}

}  // namespace

BALEEN_KERNEL_BENCH("after_projection", run)

}  // namespace baleen::kernels::benching
