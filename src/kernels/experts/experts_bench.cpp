// Routed experts of a decode step, published widths: up + SwiGLU + down + combine, lists given.
#include <cmath>
#include <cstring>
#include <memory>
#include <set>
#include <string>

#include "kernels/benching/kernel_bench.h"
#include "kernels/experts/expert_forms.h"
#include "kernels/experts/expert_tiles.h"
#include "kernels/experts/testing/expert_scene.h"

namespace baleen::kernels::benching {
namespace {

using testing::RandomValues;

constexpr int32_t kHidden = 4096;
constexpr int32_t kWidth = 2048;  // before sharding
constexpr int32_t kExperts = 256;
constexpr int32_t kTop = 6;

/// Packed experts of random codes and exponents: one random expert at `kExperts` distinct places.
device::Buffer<std::byte> random_experts(
    int64_t rows, int64_t inputs, int64_t count, bool fp8, RandomValues& random) {
  const int64_t bytes = packed_expert_bytes(rows, inputs, fp8);
  const int64_t block_bytes = fp8 ? kFp8BlockBytes : kFp4BlockBytes;
  std::vector<std::byte> one(static_cast<std::size_t>(bytes));
  for (int64_t block = 0; block < bytes; block += block_bytes) {
    for (int64_t i = 0; i < block_bytes; i += 4) {
      uint32_t word = static_cast<uint32_t>(random.integer(0, 0xFFFFFFFF));
      if (i >= block_bytes - kExpertWordBytes) {
        word = static_cast<uint32_t>(random.integer(110, 116)) << 23;
        for (int group = 0; !fp8 && group < 4; ++group) {
          const auto code = static_cast<uint32_t>(random.integer(116, 122));
          word = (word & ~(0xFFU << (8 * group))) | code << (8 * group);
        }
      } else if (fp8) {
        word &= 0xBFBFBFBFU;  // no NaN
      }
      std::memcpy(&one[static_cast<std::size_t>(block + i)], &word, 4);
    }
  }
  device::Buffer<std::byte> all(bytes * count);
  for (int64_t e = 0; e < count; ++e) {
    BALEEN_CUDA_CHECK(cudaMemcpy(all.data() + e * bytes,
                                 e == 0 ? one.data() : all.data(),
                                 static_cast<std::size_t>(bytes),
                                 cudaMemcpyDefault));
  }
  return all;
}

/// `kTop` distinct experts per token, ascending; Zipf with exponent 1 over a fixed shuffle.
std::vector<int32_t> random_routes(int64_t tokens, bool zipf, RandomValues& random) {
  std::vector<double> cumulative;
  double sum = 0;
  for (int32_t e = 0; e < kExperts; ++e) {
    sum += zipf ? 1.0 / (1.0 + (e * 37 + 11) % kExperts) : 1.0;
    cumulative.push_back(sum);
  }
  std::vector<int32_t> all;
  for (int64_t t = 0; t < tokens; ++t) {
    std::set<int32_t> row;
    while (static_cast<int32_t>(row.size()) < kTop) {
      const double at =
          static_cast<double>(random.integer(0, (int64_t{1} << 40) - 1)) * 0x1p-40 * sum;
      row.insert(static_cast<int32_t>(std::upper_bound(cumulative.begin(), cumulative.end(), at) -
                                      cumulative.begin()));
    }
    all.insert(all.end(), row.begin(), row.end());
  }
  return all;
}

struct Weights {
  device::Buffer<std::byte> up, down, shared_up, shared_down;
};

/// One input set: activations, lists and output of a step.
struct Step {
  device::Buffer<uint8_t> x_codes, x_scales;
  device::Buffer<int32_t> routes, num_units;
  device::Buffer<float> weights;
  device::Buffer<ExpertUnit> units;
  device::Buffer<std::byte> y;
  ExpertsParams params;
  int64_t experts = 0;  // distinct
};

Step make_step(const Weights& w,
               int32_t tokens,
               int32_t width,
               bool zipf,
               bool shared,
               RandomValues& random,
               cudaStream_t stream) {
  Step s;
  const int32_t slots = kTop + (shared ? 1 : 0);
  const std::vector<int32_t> routes = random_routes(tokens, zipf, random);
  s.experts = static_cast<int64_t>(std::set<int32_t>(routes.begin(), routes.end()).size());
  s.x_codes =
      device::Buffer<uint8_t>::from_host(random.e4m3_codes(int64_t{tokens} * kHidden, 100.0F));
  s.x_scales =
      device::Buffer<uint8_t>::from_host(random.bytes(int64_t{tokens} * kHidden / 128, 118, 121));
  s.routes = device::Buffer<int32_t>::from_host(routes);
  s.weights = device::Buffer<float>::from_host(
      std::vector<float>(static_cast<std::size_t>(tokens * kTop), 0.25F));
  s.num_units = device::Buffer<int32_t>(1);
  s.units = device::Buffer<ExpertUnit>(max_expert_units(tokens, kTop, kExperts, shared));
  s.y = device::Buffer<std::byte>(int64_t{tokens} * kHidden * 2);
  const ExpertLists lists{s.num_units.data(), s.units.data()};
  build_expert_lists({.routes = s.routes.data(),
                      .weights = s.weights.data(),
                      .num_tokens = tokens,
                      .top = kTop,
                      .num_experts = kExperts,
                      .shared_expert = shared,
                      .lists = lists},
                     stream);
  s.params = {.x_codes = s.x_codes.data(),
              .x_scales = s.x_scales.data(),
              .lists = lists,
              .up = w.up.data(),
              .down = w.down.data(),
              .shared_up = shared ? w.shared_up.data() : nullptr,
              .shared_down = shared ? w.shared_down.data() : nullptr,
              .y = s.y.data(),
              .num_tokens = tokens,
              .hidden = kHidden,
              .width = width,
              .slots = slots,
              .num_experts = kExperts,
              .leaf_blocks = kWidth / 128 / 8,
              .limit = 10.0F,
              .shared_limit = 10.0F};
  return s;
}

void measure_row(
    BenchContext& bench, const Weights& w, int32_t split, int32_t tokens, bool zipf, bool shared) {
  const std::string row = "experts/decode/t:" + std::to_string(split) +
                          "/m:" + std::to_string(tokens) + (zipf ? "/zipf" : "/uniform") +
                          (shared ? "/shared" : "");
  if (!bench.wants(row)) {
    return;
  }
  const int32_t width = kWidth / split;
  const int64_t expert_bytes =
      packed_expert_bytes(2 * width, kHidden, false) + packed_expert_bytes(kHidden, width, false);
  const int64_t shared_bytes = shared ? packed_expert_bytes(2 * width, kHidden, true) +
                                            packed_expert_bytes(kHidden, width, true)
                                      : 0;
  RandomValues random(static_cast<uint64_t>(tokens * 10 + split));
  const int sets = BenchContext::sets_for(expert_bytes * std::min(tokens * kTop, 200));
  std::vector<Step> steps;
  int64_t all_experts = 0;
  for (int i = 0; i < sets; ++i) {
    steps.push_back(make_step(w, tokens, width, zipf, shared, random, bench.stream().get()));
    all_experts += steps.back().experts;
  }
  const ExpertsWorkspace place = experts_workspace(steps[0].params);
  device::Buffer<std::byte> workspace(place.bytes);
  workspace.fill_bytes(0);
  BALEEN_CUDA_CHECK(cudaDeviceSynchronize());
  for (Step& step : steps) {
    step.params.workspace = workspace.data();
  }
  bench.stream().synchronize();
  const BenchRow named{.row = row,
                       .mode = "invariant",
                       .bytes = all_experts * expert_bytes / sets + shared_bytes,
                       .flop = 6.0 * tokens * (kTop + (shared ? 1 : 0)) * kHidden * width,
                       .ceiling = Ceiling::kRead};
  const auto launch_set = [&](cudaStream_t stream, int set) {
    launch_experts(steps[static_cast<std::size_t>(set)].params, stream);
  };
  if (experts::solo_supported(steps[0].params)) {
    BenchRow other = named;
    other.implementation = "sm90-persistent";
    bench.measure_ab(
        named,
        launch_set,
        other,
        [&](cudaStream_t stream, int set) {
          experts::launch_persistent(steps[static_cast<std::size_t>(set)].params, stream);
        },
        sets);
  } else {
    bench.measure(named, sets, launch_set);
  }
}

void run(BenchContext& bench) {
  for (const int32_t split : {4, 2, 1}) {
    const int32_t width = kWidth / split;
    const std::string any = "experts/decode/t:" + std::to_string(split);
    bool wanted = false;
    for (const int32_t tokens : {1, 4, 8, 16, 32, 64, 128, 256}) {
      for (const char* kind : {"/uniform", "/zipf", "/uniform/shared"}) {
        wanted = wanted || bench.wants(any + "/m:" + std::to_string(tokens) + kind);
      }
    }
    if (!wanted) {
      continue;
    }
    RandomValues random(static_cast<uint64_t>(split));
    const Weights w{random_experts(2 * width, kHidden, kExperts, false, random),
                    random_experts(kHidden, width, kExperts, false, random),
                    random_experts(2 * width, kHidden, 1, true, random),
                    random_experts(kHidden, width, 1, true, random)};
    for (const int32_t tokens : {1, 4, 8, 16, 32, 64, 128, 256}) {
      measure_row(bench, w, split, tokens, false, false);
      measure_row(bench, w, split, tokens, true, false);
      if (tokens == 1 || tokens == 4 || tokens == 64) {
        measure_row(bench, w, split, tokens, false, true);
      }
    }
  }
}

}  // namespace

BALEEN_KERNEL_BENCH("experts", run)

}  // namespace baleen::kernels::benching
