// Decode linears of the model, cold, each beside a plain stream of the same bytes, alternating.
#include <cstdio>
#include <string>
#include <vector>

#include "kernels/benching/kernel_bench.h"
#include "kernels/ceilings/ceilings.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/linear_bench_data.h"

namespace baleen::kernels::benching {
namespace {

struct Part {
  int32_t outputs;
  int32_t inputs;
  WeightFormat format;
  bool row_parallel;  // sharded along its inputs
};

struct Row {
  std::string name;
  std::vector<Part> parts;      // one launch, already sharded
  std::vector<int32_t> leaves;  // of invariant mode, from the unsharded shape
  bool float_output = false;
};

constexpr WeightFormat kE4m3 = WeightFormat::kE4m3;
constexpr WeightFormat kBf16 = WeightFormat::kBf16;

Row make_row(const std::string& name, int32_t t, const std::vector<Part>& whole, bool sharded) {
  Row row{name + "/t:" + std::to_string(t), {}, {}, false};
  for (Part part : whole) {
    const int32_t leaves = invariant_leaves(part.outputs, part.inputs, part.row_parallel);
    const int32_t divisor = sharded ? t : 1;
    (part.row_parallel ? part.inputs : part.outputs) /= divisor;
    row.parts.push_back(part);
    row.leaves.push_back(part.row_parallel ? leaves / divisor : leaves);
  }
  return row;
}

std::vector<Row> rows() {
  std::vector<Row> rows;
  rows.push_back(make_row("wq_a+wkv:1536x4096", 1, {{1536, 4096, kE4m3, false}}, false));
  rows.push_back(make_row("index_wq_b:8192x1024", 1, {{8192, 1024, kE4m3, false}}, false));
  rows.push_back(make_row("mtp_proj:4096x4096", 1, {{4096, 4096, kE4m3, false}}, false));
  for (const int32_t t : {1, 2, 4}) {
    rows.push_back(make_row("wq_b:32768x1024", t, {{32768, 1024, kE4m3, false}}, true));
    rows.push_back(make_row("wo_b:4096x8192", t, {{4096, 8192, kE4m3, true}}, true));
    rows.push_back(make_row("shared_up:4096x4096", t, {{4096, 4096, kE4m3, false}}, true));
    rows.push_back(make_row("shared_down:4096x2048", t, {{4096, 2048, kE4m3, true}}, true));
  }
  rows.push_back(
      make_row("compressor_c4:2624x4096",
               1,
               {{2048, 4096, kBf16, false}, {512, 4096, kBf16, false}, {64, 4096, kBf16, false}},
               false));
  rows.push_back(make_row("compressor_c128:1024x4096", 1, {{1024, 4096, kBf16, false}}, false));
  rows.push_back(make_row("router:256x4096", 1, {{256, 4096, kBf16, false}}, false));
  rows.push_back(make_row("projections_c4:1536+2624x4096",
                          1,
                          {{1024, 4096, kE4m3, false},
                           {512, 4096, kE4m3, false},
                           {2048, 4096, kBf16, false},
                           {512, 4096, kBf16, false},
                           {64, 4096, kBf16, false}},
                          false));
  for (const int32_t t : {1, 4}) {
    rows.push_back(make_row("head:129280x4096", t, {{129280, 4096, kBf16, false}}, true));
    rows.back().float_output = true;
  }
  return rows;
}

LinearParams params_of(const Row& row,
                       const BenchActivations& shared,
                       BenchActivations& out,
                       int32_t tokens) {
  LinearParams params;
  params.num_tokens = tokens;
  float* y = out.y.data();
  for (const Part& part : row.parts) {
    LinearTask& task = params.tasks[static_cast<std::size_t>(params.num_tasks)];
    task = bench_task(shared, part.outputs, part.inputs, part.format, y);
    task.output = row.float_output ? LinearOutput::kFloat32 : LinearOutput::kBf16;
    task.leaves = row.leaves[static_cast<std::size_t>(params.num_tasks)];
    y += int64_t{kBenchTokens} * part.outputs;
    ++params.num_tasks;
  }
  return params;
}

/// Public kernels for a row of one FP8 matrix, with float scales of the same number.
void add_peers(const BenchContext& bench,
               const LinearParams& params,
               const BenchRow& ours,
               const BenchPool& codes,
               const device::Buffer<float>& scales,
               std::vector<BenchContext::Contender>& contenders) {
  const LinearTask& task = params.tasks[0];
  if (params.num_tasks != 1 || task.format != kE4m3 || !bench.wants(ours.row)) {
    return;
  }
  const int64_t bytes = weight_bytes(task);
  for (const Peer<PeerLinearCall>& peer : bench.peers().of<PeerLinearCall>()) {
    PeerLinearCall call{.weight = codes.take(0, bytes),
                        .weight_scales = scales.data(),
                        .x = task.x,
                        .x_scales = scales.data(),
                        .y = task.y,
                        .tokens = params.num_tokens,
                        .outputs = task.num_outputs,
                        .inputs = task.num_inputs};
    const int refused = peer.launch(&call, bench.stream().get());
    bench.stream().synchronize();
    if (refused != 0) {
      std::printf("%s: no row for %s\n", peer.name.c_str(), ours.row.c_str());
      continue;
    }
    BenchRow row = ours;
    row.implementation = peer.name;
    row.mode = "-";
    contenders.push_back({row, [&codes, bytes, call, peer](cudaStream_t stream, int set) {
                            PeerLinearCall now = call;
                            now.weight = codes.take(set, bytes);
                            peer.launch(&now, stream);
                          }});
  }
}

void run(BenchContext& bench) {
  const std::vector<Row> all = rows();
  BenchActivations shared;
  const auto float_scales = device::Buffer<float>::from_host(
      testing::RandomValues(93).normals(int64_t{kBenchTokens} * 4096, 0.01F));
  const BenchPool codes(kE4m3, 170'000'000);
  const BenchPool bf16(kBf16, 1'060'000'000);
  device::Buffer<uint32_t> sink(1);
  for (const Row& row : all) {
    for (const int32_t tokens : {1, 4, 16, 64}) {
      LinearParams params = params_of(row, shared, shared, tokens);
      int64_t bytes = 0;
      int64_t code_bytes = 0;
      for (int32_t t = 0; t < params.num_tasks; ++t) {
        const LinearTask& task = params.tasks[static_cast<std::size_t>(t)];
        bytes += weight_bytes(task);
        code_bytes += task.format == kE4m3 ? weight_bytes(task) : 0;
      }
      const auto launch = [&](LinearMode mode) {
        return [&, mode](cudaStream_t stream, int set) {
          LinearParams now = params;
          now.mode = mode;
          const uint8_t* code = code_bytes > 0 ? codes.take(set, code_bytes) : nullptr;
          const uint8_t* value = bf16.take(set, std::max<int64_t>(bytes - code_bytes, 1));
          for (int32_t t = 0; t < now.num_tasks; ++t) {
            LinearTask& task = now.tasks[static_cast<std::size_t>(t)];
            const uint8_t*& next = task.format == kE4m3 ? code : value;
            task.weight = next;
            next += weight_bytes(task);
          }
          launch_linear(now, stream);
        };
      };
      const std::string name = "linear/decode/" + row.name + "/m:" + std::to_string(tokens);
      const int sets = BenchContext::sets_for(bytes);
      const BenchRow ours{.row = name,
                          .implementation = "sm90",
                          .mode = "fast",
                          .bytes = moved_bytes(params),
                          .flop = linear_flop(params),
                          .ceiling = Ceiling::kRead};
      BenchRow invariant = ours;
      invariant.mode = "invariant";
      const auto stream_launch = [&](cudaStream_t stream, int set) {
        const BenchPool& pool = code_bytes > 0 && bytes < 170'000'000 ? codes : bf16;
        launch_read_stream(
            {.source = pool.take(set, bytes), .bytes = bytes, .sink = sink.data(), .blocks = 264},
            stream);
      };
      std::vector<BenchContext::Contender> contenders = {{ours, launch(LinearMode::kFast)}};
      if (tokens == 1) {
        BenchRow plain = ours;
        plain.implementation = "plain_stream";
        plain.mode = "-";
        plain.flop = 0;
        plain.bytes = bytes;
        contenders.push_back({plain, stream_launch});
      }
      add_peers(bench, params, ours, codes, float_scales, contenders);
      bench.measure_in_turns(contenders, sets);
      if (tokens != 4) {
        bench.measure(invariant, sets, launch(LinearMode::kInvariant));
      }
    }
  }
}

BALEEN_KERNEL_BENCH("linear", run)

}  // namespace
}  // namespace baleen::kernels::benching
