#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/compressor_pool/compressor_case.h"
#include "kernels/compressor_pool/compressor_pool.h"
#include "kernels/compressor_pool/compressor_pool_oracle.h"
#include "kernels/hadamard/hadamard_oracle.h"
#include "kernels/rms_norm/rms_norm_oracle.h"
#include "kernels/rope/rope_oracle.h"
#include "kernels/testing/gpu_test.h"
#include "numerics/block_scale.h"

namespace baleen::kernels {
namespace {

using testing::Chunk;
using testing::CompressorCase;
using CompressorPoolGpu = testing::GpuTest;
using CompressorPoolGpuSmall = testing::GpuTest;

constexpr CompressorKind kKinds[] = {
    CompressorKind::kC4, CompressorKind::kIndex, CompressorKind::kC128};

const char* name_of(CompressorKind kind) {
  return kind == CompressorKind::kC4 ? "c4" : kind == CompressorKind::kIndex ? "index" : "c128";
}

void run_sm90(const CompressorPoolParams& params, cudaStream_t stream) {
  compressor_pool_sm90(params, stream);
}
testing::PoolFunction with_blocks(int blocks) {
  return [blocks](const CompressorPoolParams& params, cudaStream_t stream) {
    compressor_pool_sm90(params, stream, blocks);
  };
}

/// Every way in which a kind can be computed: blocks per entry.
std::vector<int> forms_of(CompressorKind kind) {
  return kind == CompressorKind::kC128 ? std::vector<int>{1, 8} : std::vector<int>{0};
}

struct KindAndForm {
  CompressorKind kind;
  int form;
};
std::vector<KindAndForm> kinds_and_forms() {
  std::vector<KindAndForm> all;
  for (const CompressorKind kind : kKinds) {
    for (const int form : forms_of(kind)) {
      all.push_back({kind, form});
    }
  }
  return all;
}

/// The pooled channels of one entry by the oracle: scores get the position bias in FP32, as stored.
std::vector<double> oracle_entry(const CompressorCase& c, int request, int entry) {
  const auto r = static_cast<size_t>(request);
  std::vector<double> u(c.values[r].begin(), c.values[r].end());
  std::vector<double> z(c.scores[r].size());
  const auto bias_floats = c.ape.size();
  for (size_t i = 0; i < z.size(); ++i) {
    z[i] = c.scores[r][i] + c.ape[i % bias_floats];
  }
  return compressor_entry_oracle(u,
                                 z,
                                 static_cast<size_t>(c.dims),
                                 static_cast<size_t>(c.ratio),
                                 c.kind != CompressorKind::kC128,
                                 static_cast<size_t>(entry));
}

/// FP32 sums of up to 128 terms of one sign pattern, ex2.approx 2^-22 per weight: 1e-5 relative.
void expect_pooled(const CompressorCase& c, double floor = 1e-6) {
  for (size_t e = 0; e < c.entries.size(); ++e) {
    const std::vector<double> exact = oracle_entry(c, c.entries[e].request, c.entries[e].entry);
    // Cancelling terms: the bound is relative to the largest value of the window, below 6.
    for (int i = 0; i < c.dims; ++i) {
      const double got = c.pooled[e * static_cast<size_t>(c.dims) + static_cast<size_t>(i)];
      const double want = exact[static_cast<size_t>(i)];
      ASSERT_NEAR(got, want, 1e-5 * std::max(1.0, std::fabs(want)) + floor)
          << name_of(c.kind) << " plan place " << e << " entry " << c.entries[e].entry
          << " channel " << i;
    }
  }
}

double code_distance(uint8_t a, uint8_t b) {
  const auto order = [](uint8_t code) {
    return (code & 0x80U) != 0 ? -static_cast<int>(code & 0x7FU) : static_cast<int>(code);
  };
  return std::abs(order(a) - order(b));
}

/// The stored bytes of the last pass against norm, rotation and quantisation in double of the
/// pooled values. A rounding of FP32 against double may fall on the other side of a tie:
/// neighbours, rare.
void expect_stored(const CompressorCase& c) {
  const std::vector<uint8_t> pool = c.pool_bytes();
  const std::vector<float> table = testing::compressed_frequencies();
  const std::vector<double> frequencies(table.begin(), table.end());
  const std::vector<double> weight(c.norm_weight.begin(), c.norm_weight.end());
  int64_t differing = 0;
  int64_t elements = 0;
  for (size_t e = 0; e < c.entries.size(); ++e) {
    std::vector<double> v(static_cast<size_t>(c.dims));
    const auto round = [&v] {
      for (double& x : v) {
        x = numerics::round_to_bf16(x);
      }
    };
    for (size_t i = 0; i < v.size(); ++i) {
      v[i] = c.pooled[e * v.size() + i];
    }
    round();
    v = rms_norm_oracle(v, weight, 1e-6);
    round();
    rope_oracle(v, frequencies, int64_t{c.entries[e].entry} * c.ratio, false);
    round();
    const std::vector<uint8_t> got = c.entry_bytes(pool, c.entries[e].request, c.entries[e].entry);
    if (c.kind == CompressorKind::kIndex) {
      v = hadamard_oracle(v);
      round();
      numerics::simulate_s4(std::span<double>(v), 32);
      float scale = 0.0F;
      std::memcpy(&scale, got.data() + kIndexDims, sizeof(scale));
      for (int i = 0; i < kIndexDims; ++i) {
        const double stored = numerics::e4m3_to_float(got[static_cast<size_t>(i)]) * scale;
        const double want = v[static_cast<size_t>(i)];
        differing += stored != want ? 1 : 0;
        // Neighbouring E2M1 values: half of the larger apart, or one step of the group from zero.
        ASSERT_NEAR(stored, want, 0.51 * std::max(std::fabs(want), std::fabs(stored)) + 64 * scale)
            << "entry " << e << " dim " << i;
        ++elements;
      }
      continue;
    }
    std::vector<uint8_t> codes(kKvNopeDims);
    std::vector<uint8_t> scales(kKvScales);
    numerics::quantize_q8(
        std::span<const double>(v.data(), kKvNopeDims), kKvScaleDims, codes, scales);
    for (int b = 0; b < kKvScales; ++b) {
      ASSERT_EQ(got[static_cast<size_t>(kKvValueBytes + b)], scales[static_cast<size_t>(b)])
          << name_of(c.kind) << " entry " << e << " block " << b;
    }
    EXPECT_EQ(got[kKvValueBytes + kKvScales], 0);
    for (int i = 0; i < kKvNopeDims; ++i) {
      const double distance =
          code_distance(got[static_cast<size_t>(i)], codes[static_cast<size_t>(i)]);
      ASSERT_LE(distance, 1) << name_of(c.kind) << " entry " << e << " dim " << i;
      differing += distance != 0 ? 1 : 0;
    }
    for (int i = 0; i < kKvRopeDims; ++i) {
      uint16_t code = 0;
      std::memcpy(&code, got.data() + kKvNopeDims + 2 * i, sizeof(code));
      const double want = v[static_cast<size_t>(kKvNopeDims + i)];
      const double got_value = numerics::bf16_to_float(code);
      // A bf16 step of either partner before the rotation, and one after it.
      const size_t first = static_cast<size_t>(kKvNopeDims + i / 2 * 2);
      const double larger = std::hypot(v[first], v[first + 1]);
      ASSERT_NEAR(got_value, want, 3 * 0x1p-8 * std::max(larger, 0x1p-6))
          << name_of(c.kind) << " entry " << e << " rotated dim " << i;
      differing += got_value != want ? 1 : 0;
    }
    elements += kKvDims;
  }
  EXPECT_LE(differing, 1 + elements / 500) << name_of(c.kind) << " of " << elements;
}

TEST_F(CompressorPoolGpuSmall, PoolsEveryLengthAsTheOracle) {
  for (const CompressorKind kind : kKinds) {
    for (const int tokens : {1, 3, 4, 5, 7, 8, 9, 127, 128, 129}) {
      for (const int form : forms_of(kind)) {
        CompressorCase c(kind, 1, tokens, compressor_window(kind), 3);
        c.pass({{0, 0, tokens}}, with_blocks(form), stream());
        ASSERT_EQ(static_cast<int>(c.entries.size()), tokens / c.ratio);
        expect_pooled(c);
        expect_stored(c);
      }
    }
  }
}

TEST_F(CompressorPoolGpu, PoolsLongPassesAsTheOracle) {
  for (const CompressorKind kind : kKinds) {
    // 8,191 and 8,320: the last length of ratio 128 in clusters and the first without.
    for (const int tokens : {255, 256, 257, 8191, 8320}) {
      CompressorCase c(kind, 1, tokens, compressor_window(kind), 5);
      c.pass({{0, 0, tokens}}, run_sm90, stream());
      if (tokens < 1000) {
        expect_pooled(c);
      }
      expect_stored(c);
      const std::vector<uint8_t> expected = c.pool_bytes();
      for (const int form : forms_of(kind)) {
        CompressorCase other(kind, 1, tokens, compressor_window(kind), 5);
        other.pass({{0, 0, tokens}}, with_blocks(form), stream());
        EXPECT_EQ(other.pool_bytes(), expected) << name_of(kind) << " form " << form;
      }
    }
  }
}

TEST_F(CompressorPoolGpuSmall, WritesNothingBesideItsEntries) {
  for (const CompressorKind kind : kKinds) {
    CompressorCase c(kind, 1, 300, compressor_window(kind), 7);
    const std::vector<uint8_t> before = c.pool_bytes();
    c.pass({{0, 0, 300}}, run_sm90, stream());
    std::vector<uint8_t> after = c.pool_bytes();
    int64_t changed = 0;
    for (size_t i = 0; i < after.size(); ++i) {
      changed += after[i] != before[i] ? 1 : 0;
    }
    const int64_t entry_bytes = kind == CompressorKind::kIndex ? 132 : 584;
    EXPECT_LE(changed, static_cast<int64_t>(c.entries.size()) * entry_bytes) << name_of(kind);
    EXPECT_GE(changed, static_cast<int64_t>(c.entries.size()) * entry_bytes * 9 / 10);
  }
}

TEST_F(CompressorPoolGpu, EverySplitEqualsOnePass) {
  for (const CompressorKind kind : kKinds) {
    const bool dense = kind == CompressorKind::kC128;
    const int tokens = dense ? 400 : 41;
    const std::vector<int> rings =
        dense ? std::vector<int>{128, 136, 256} : std::vector<int>{8, 16};
    for (const int ring : rings) {
      CompressorCase whole(kind, 1, tokens, ring, 11);
      whole.pass({{0, 0, tokens}}, run_sm90, stream());
      const std::vector<uint8_t> expected = whole.pool_bytes();
      for (const int form : forms_of(kind)) {
        for (int cut = 1; cut < tokens; cut += dense ? 37 : 1) {
          CompressorCase split(kind, 1, tokens, ring, 11);
          split.pass({{0, 0, cut}}, with_blocks(form), stream());
          if (ring > split.window) {  // drafts that are rejected and rewritten
            const int drafts = std::min(3, tokens - cut);
            std::swap(split.values, split.scores);
            split.pass({{0, cut, drafts}}, with_blocks(form), stream());
            std::swap(split.values, split.scores);
          }
          const int second = std::min(cut + 5, tokens);
          split.pass({{0, cut, second - cut}}, with_blocks(form), stream());
          for (int token = second; token < tokens && token < second + 9; ++token) {
            split.pass({{0, token, 1}}, with_blocks(form), stream());
          }
          const int rest = std::min(second + 9, tokens);
          split.pass({{0, rest, tokens - rest}}, with_blocks(form), stream());
          ASSERT_EQ(split.pool_bytes(), expected)
              << name_of(kind) << " form " << form << " ring " << ring << " cut " << cut;
        }
      }
    }
  }
}

TEST_F(CompressorPoolGpu, RaggedBatchEqualsEachRequestAlone) {
  for (const CompressorKind kind : kKinds) {
    const int ring = kind == CompressorKind::kC128 ? 136 : 16;
    CompressorCase alone(kind, 3, 530, ring, 13);
    CompressorCase mixed(kind, 3, 530, ring, 13);
    for (int r = 0; r < 3; ++r) {
      alone.pass({{r, 0, 530}}, run_sm90, stream());
    }
    mixed.pass({{2, 0, 131}, {0, 0, 257}}, run_sm90, stream());
    mixed.pass({{1, 0, 3}, {2, 131, 126}, {0, 257, 1}}, run_sm90, stream());
    mixed.pass({{0, 258, 272}, {1, 3, 527}, {2, 257, 273}}, run_sm90, stream());
    EXPECT_EQ(mixed.pool_bytes(), alone.pool_bytes()) << name_of(kind);
  }
}

TEST_F(CompressorPoolGpuSmall, PortableAndEveryClusterGiveTheSameBits) {
  for (const CompressorKind kind : kKinds) {
    CompressorCase a(kind, 1, 650, compressor_window(kind), 17);
    a.pass({{0, 0, 650}}, compressor_pool_portable, stream());
    const std::vector<uint8_t> expected = a.pool_bytes();
    const std::vector<int> clusters =
        kind == CompressorKind::kC128 ? std::vector<int>{0, 1, 8} : std::vector<int>{0};
    for (const int blocks : clusters) {
      CompressorCase b(kind, 1, 650, compressor_window(kind), 17);
      b.pass({{0, 0, 650}}, with_blocks(blocks), stream());
      EXPECT_EQ(b.pool_bytes(), expected) << name_of(kind) << " blocks " << blocks;
      EXPECT_EQ(a.pooled, b.pooled) << name_of(kind) << " blocks " << blocks;
    }
  }
}

TEST_F(CompressorPoolGpuSmall, SpikesSaturateTheSoftmax) {
  for (const CompressorKind kind : kKinds) {
    CompressorCase c(kind, 1, 256, compressor_window(kind), 19);
    for (size_t i = 0; i < c.scores[0].size(); i += 7) {
      c.scores[0][i] = i % 2 == 0 ? 1e4F : -1e4F;
    }
    c.pass({{0, 0, 256}}, run_sm90, stream());
    expect_pooled(c, 1e-5);
    expect_stored(c);
  }
}

TEST_F(CompressorPoolGpuSmall, ReadsTheCountOnTheDevice) {
  for (const auto& [kind, form] : kinds_and_forms()) {
    CompressorCase exact(kind, 1, 256, compressor_window(kind), 23);
    CompressorCase captured(kind, 1, 256, compressor_window(kind), 23);
    exact.pass({{0, 0, 256}}, with_blocks(form), stream());
    captured.pass({{0, 0, 256}}, with_blocks(form), stream(), 300);
    EXPECT_EQ(exact.pool_bytes(), captured.pool_bytes()) << name_of(kind);
    CompressorCase none(kind, 1, 256, compressor_window(kind), 23);
    const std::vector<uint8_t> before = none.pool_bytes();
    none.pass({{0, 0, 3}}, with_blocks(form), stream(), 300);
    EXPECT_EQ(none.pool_bytes(), before) << name_of(kind);
  }
}

TEST_F(CompressorPoolGpuSmall, PaddingEntriesAreSkippedAmongRealOnes) {
  for (const auto& [kind, form] : kinds_and_forms()) {
    const testing::PoolFunction pool = with_blocks(form);
    CompressorCase exact(kind, 1, 512, compressor_window(kind), 29);
    CompressorCase holed(kind, 1, 512, compressor_window(kind), 29);
    exact.pass({{0, 0, 512}}, pool, stream());
    const std::vector<uint8_t> painted = holed.pool_bytes();
    const auto with_holes = [&pool](CompressorPoolParams params, cudaStream_t s) {
      std::vector<CompressorPlanEntry> plan(static_cast<size_t>(params.max_entries));
      BALEEN_CUDA_CHECK(cudaMemcpy(
          plan.data(), params.plan, plan.size() * sizeof(plan[0]), cudaMemcpyDeviceToHost));
      for (size_t i = 0; i < plan.size(); i += 2) {
        plan[i] = CompressorPlanEntry{};
      }
      auto buffer = device::Buffer<CompressorPlanEntry>::from_host(plan);
      params.plan = buffer.data();
      pool(params, s);
      BALEEN_CUDA_CHECK(cudaStreamSynchronize(s));
    };
    holed.pass({{0, 0, 512}}, with_holes, stream());
    const std::vector<uint8_t> full = exact.pool_bytes();
    const std::vector<uint8_t> half = holed.pool_bytes();
    for (size_t e = 0; e < holed.entries.size(); ++e) {
      const int entry = holed.entries[e].entry;
      const auto& from = e % 2 == 0 ? painted : full;
      EXPECT_EQ(holed.entry_bytes(half, 0, entry), holed.entry_bytes(from, 0, entry))
          << name_of(kind) << " entry " << entry;
    }
  }
}

TEST_F(CompressorPoolGpuSmall, NanStaysInItsEntries) {
  for (const auto& [kind, form] : kinds_and_forms()) {
    CompressorCase clean(kind, 1, 512, compressor_window(kind), 31);
    CompressorCase dirty(kind, 1, 512, compressor_window(kind), 31);
    clean.pass({{0, 0, 512}}, with_blocks(form), stream());
    const int position = 200;
    for (int i = 0; i < dirty.width; ++i) {
      dirty.values[0][static_cast<size_t>(position * dirty.width + i)] =
          std::numeric_limits<float>::quiet_NaN();
    }
    dirty.pass({{0, 0, 512}}, with_blocks(form), stream());
    const std::vector<uint8_t> a = clean.pool_bytes();
    const std::vector<uint8_t> b = dirty.pool_bytes();
    for (int entry = 0; entry < 512 / clean.ratio; ++entry) {
      const int own = position / clean.ratio;
      const bool reads = entry == own || (kind != CompressorKind::kC128 && entry == own + 1);
      EXPECT_EQ(clean.entry_bytes(a, 0, entry) != dirty.entry_bytes(b, 0, entry), reads)
          << name_of(kind) << " entry " << entry;
    }
  }
}

TEST_F(CompressorPoolGpu, ThousandLaunchesGiveEqualBits) {
  for (const auto& [kind, form] : kinds_and_forms()) {
    const testing::PoolFunction pool = with_blocks(form);
    CompressorCase c(kind, 1, 2048, compressor_window(kind), 37);
    std::vector<float> first;
    int differing = 0;
    const auto repeat = [&](const CompressorPoolParams& params, cudaStream_t s) {
      const auto count = static_cast<size_t>(params.max_entries * c.dims);
      std::vector<float> got(count);
      for (int i = 0; i < 1000; ++i) {
        BALEEN_CUDA_CHECK(cudaMemsetAsync(params.pooled, 0xFF, count * sizeof(float), s));
        pool(params, s);
        if (i % 50 == 0 || i == 999) {
          BALEEN_CUDA_CHECK(cudaMemcpyAsync(
              got.data(), params.pooled, count * sizeof(float), cudaMemcpyDeviceToHost, s));
          BALEEN_CUDA_CHECK(cudaStreamSynchronize(s));
          if (first.empty()) {
            first = got;
          }
          differing += std::memcmp(first.data(), got.data(), count * sizeof(float)) != 0 ? 1 : 0;
        }
      }
    };
    c.pass({{0, 0, 2048}}, repeat, stream());
    EXPECT_EQ(differing, 0) << name_of(kind);
  }
}

TEST_F(CompressorPoolGpuSmall, NoEntriesIsLegal) {
  for (const CompressorKind kind : kKinds) {
    CompressorCase c(kind, 1, 4, compressor_window(kind), 41);
    CompressorPoolParams params = c.base_params();
    params.max_entries = 0;
    compressor_pool_sm90(params, stream());
    compressor_pool_portable(params, stream());
    compressor_ring_write({.kind = kind, .max_writes = 0}, stream());
    synchronize();
  }
}

}  // namespace
}  // namespace baleen::kernels
