// Prefill of one request: every row comes from the pass. Bytes: each projected element read once,
// one entry of 584 (index key: 132) bytes written per group. Public kernels, which only pool,
// beside.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "device/buffer.h"
#include "kernels/benching/kernel_bench.h"
#include "kernels/compressor_pool/compressor_case.h"
#include "kernels/compressor_pool/compressor_pool.h"
#include "numerics/bfloat16.h"

namespace baleen::kernels {
namespace {

using benching::BenchContext;
using benching::BenchRow;
using benching::Ceiling;

/// Buffers of one length; `sets` different regions of rows, plans over each.
struct PrefillInputs {
  PrefillInputs(CompressorKind kind, int tokens, int num_sets)
      : width(compressor_row_width(kind)), ratio(compressor_ratio(kind)) {
    testing::RandomValues random(17);
    const int64_t floats = int64_t{tokens} * 2 * width;
    rows = device::Buffer<float>(floats * num_sets);
    // A prime-sized block of normals repeated over the buffer: random data, quickly made.
    const std::vector<float> block = random.normals(1'000'003);
    for (int64_t at = 0; at < rows.count(); at += static_cast<int64_t>(block.size())) {
      const auto count = std::min<int64_t>(static_cast<int64_t>(block.size()), rows.count() - at);
      BALEEN_CUDA_CHECK(cudaMemcpy(rows.data() + at,
                                   block.data(),
                                   static_cast<size_t>(count) * sizeof(float),
                                   cudaMemcpyHostToDevice));
    }
    const int entries = tokens / ratio;
    std::vector<CompressorPlanEntry> records;
    for (int e = 0; e < entries; ++e) {
      const int end = (e + 1) * ratio - 1;
      records.push_back({.end_row = end,
                         .rows_from_pass = std::min(end + 1, compressor_window(kind)),
                         .end_position = end,
                         .destination = kFirstRow + e});
    }
    plan = device::Buffer<CompressorPlanEntry>::from_host(records);
    ape = device::Buffer<float>::from_host(random.normals(int64_t{ratio} * width));
    norm = device::Buffer<float>::from_host(random.normals(compressor_dims(kind)));
    frequencies = device::Buffer<float>::from_host(testing::compressed_frequencies());
    const int64_t pool_rows = kFirstRow + entries + 128;
    const int32_t per_page = kind == CompressorKind::kC128 ? 128 : 64;
    const int64_t page_bytes = kind == CompressorKind::kIndex
                                   ? index_page_bytes(IndexKeyFormat::kFp4InFp8, per_page)
                                   : kv_page_bytes(per_page);
    pool = device::Buffer<uint8_t>((pool_rows + per_page - 1) / per_page * page_bytes);
    params.kind = kind;
    params.row_stride = 2 * width;
    params.num_rows = tokens;
    params.ape = ape.data();
    params.plan = plan.data();
    params.max_entries = entries;
    params.norm_weight = norm.data();
    params.frequencies = frequencies.data();
    params.eps = 1e-6F;
    params.kv_pool = {pool.data(), page_bytes, per_page};
    params.index_pool = {pool.data(), page_bytes, per_page, IndexKeyFormat::kFp4InFp8};
    set_floats = floats;
  }
  CompressorPoolParams of_set(int set) const {
    CompressorPoolParams out = params;
    out.rows = rows.data() + set_floats * set;
    return out;
  }
  int64_t bytes() const {
    const int64_t entry = params.kind == CompressorKind::kIndex ? 132 : 584;
    return set_floats * 4 + params.max_entries * entry;
  }

  static constexpr int kFirstRow = 64;
  int width;
  int ratio;
  int64_t set_floats = 0;
  device::Buffer<float> rows;
  device::Buffer<float> ape;
  device::Buffer<float> norm;
  device::Buffer<float> frequencies;
  device::Buffer<CompressorPlanEntry> plan;
  device::Buffer<uint8_t> pool;
  CompressorPoolParams params;
};

/// Both within what bf16 and a quick exponential leave.
bool same_pooled(const std::vector<float>& ours, const std::vector<uint16_t>& theirs) {
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const float other = numerics::bf16_to_float(theirs[i]);
    if (!(std::abs(ours[i] - other) <= 0x1p-8F * std::abs(ours[i]) + 1e-4F)) {
      return false;
    }
  }
  return true;
}

/// Public kernels on the same rows. They pool and round to bf16, no more: their rows say so.
void measure_peers(BenchContext& bench, const PrefillInputs& inputs, BenchRow row, int sets) {
  const CompressorPoolParams& params = inputs.params;
  const int64_t values = int64_t{params.max_entries} * compressor_dims(params.kind);
  row.row += "/pool_alone";
  row.bytes = inputs.set_floats * 4 + values * 2;
  cudaStream_t stream = bench.stream().get();
  for (const benching::Peer<benching::PeerPoolCall>& peer :
       bench.peers().of<benching::PeerPoolCall>()) {
    device::Buffer<uint16_t> pooled(values);
    pooled.fill_bytes(0xFF);
    benching::PeerPoolCall call{.rows = inputs.of_set(0).rows,
                                .position_bias = params.ape,
                                .pooled = pooled.data(),
                                .tokens = params.num_rows,
                                .ratio = compressor_ratio(params.kind),
                                .dims = compressor_dims(params.kind)};
    device::Buffer<uint8_t> workspace(std::max<int64_t>(1, peer.workspace(&call)));
    call.workspace = workspace.data();
    call.workspace_bytes = workspace.count();
    if (peer.launch_planned(call, stream) != 0) {
      continue;  // not this kind
    }
    device::Buffer<float> wanted(values);
    CompressorPoolParams own = inputs.of_set(0);
    own.pooled = wanted.data();
    compressor_pool_sm90(own, stream);
    bench.stream().synchronize();
    if (!same_pooled(wanted.to_host(), pooled.to_host())) {
      std::printf("%s: another result for %s\n", peer.name.c_str(), row.row.c_str());
      continue;
    }
    row.implementation = peer.name;
    bench.measure(row, sets, [&](cudaStream_t on, int set) {
      call.rows = inputs.of_set(set).rows;
      peer.launch(&call, on);
    });
  }
}

void run(BenchContext& bench) {
  struct Kind {
    CompressorKind kind;
    const char* name;
  };
  const std::vector<Kind> kinds = {{CompressorKind::kC4, "c4"},
                                   {CompressorKind::kIndex, "index"},
                                   {CompressorKind::kC128, "c128"}};
  for (const auto& [kind, name] : kinds) {
    for (const int tokens : {128, 1024, 8192, 65536}) {
      const std::string row =
          std::string("compressor/prefill/") + name + "/t:" + std::to_string(tokens);
      if (!bench.wants(row)) {
        continue;
      }
      const int64_t set_bytes = int64_t{tokens} * 2 * compressor_row_width(kind) * 4;
      const int sets = BenchContext::sets_for(set_bytes);
      const PrefillInputs inputs(kind, tokens, sets);
      const BenchRow ours{.row = row,
                          .implementation = "sm90",
                          .mode = "invariant",
                          .bytes = inputs.bytes(),
                          .ceiling = tokens < 8192 ? Ceiling::kLatency : Ceiling::kRead};
      measure_peers(bench, inputs, ours, sets);
      bench.measure(ours, sets, [&](cudaStream_t stream, int set) {
        compressor_pool_sm90(inputs.of_set(set), stream);
      });
      if (tokens == 8192) {
        bench.measure({.row = row,
                       .implementation = "portable",
                       .mode = "invariant",
                       .bytes = inputs.bytes(),
                       .ceiling = Ceiling::kRead},
                      sets,
                      [&](cudaStream_t stream, int set) {
                        compressor_pool_portable(inputs.of_set(set), stream);
                      });
      }
    }
  }
}

BALEEN_KERNEL_BENCH("compressor", run)

}  // namespace
}  // namespace baleen::kernels
