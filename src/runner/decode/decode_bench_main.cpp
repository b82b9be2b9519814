// decode_bench [--layers N] [--batch 1,8,64] [--context 4096,...] [--out FILE] ...: decode steps of
// a synthetic model of Flash's shape on this machine's GPU; with --prompts 64,512 [--context
// 0,4096] passes of so many prompt tokens instead, behind so many. Without a GPU it says so and
// does nothing.

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "device/cuda_check.h"
#include "runner/decode/decode_bench.h"
#include "runner/decode/prompt_bench.h"
#include "weights/model_presets.h"
#include "weights/synth.h"

namespace {

std::vector<int64_t> numbers(const char* text, int64_t least = 1) {
  std::vector<int64_t> values;
  for (const char* at = text; *at != '\0';) {
    char* end = nullptr;
    values.push_back(std::strtoll(at, &end, 10));
    if (end == at || values.back() < least) {
      std::fprintf(stderr,
                   "decode_bench: \"%s\" is no list of numbers from %lld\n",
                   text,
                   static_cast<long long>(least));
      std::exit(2);
    }
    at = *end == ',' ? end + 1 : end;
  }
  return values;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace baleen;
  int64_t layers = 12;
  int64_t experts = 0;
  std::string out;
  std::string commit = "unknown";
  std::string date = "unknown";
  runner::DecodeBenchOptions options;
  std::vector<int32_t> prompt_tokens;
  for (int i = 1; i < argc; i += 2) {
    const std::string_view flag = argv[i];
    if (i + 1 == argc) {
      std::fprintf(stderr, "decode_bench: %s wants a value\n", argv[i]);
      return 2;
    }
    const char* value = argv[i + 1];
    if (flag == "--layers") {
      layers = numbers(value).at(0);
    } else if (flag == "--experts") {
      experts = numbers(value).at(0);
    } else if (flag == "--batch") {
      options.batches.clear();
      for (const int64_t batch : numbers(value)) {
        options.batches.push_back(static_cast<int32_t>(batch));
      }
    } else if (flag == "--prompts") {
      for (const int64_t tokens : numbers(value)) {
        prompt_tokens.push_back(static_cast<int32_t>(tokens));
      }
    } else if (flag == "--context") {
      options.contexts = numbers(value, 0);
    } else if (flag == "--replays") {
      options.replays = static_cast<int32_t>(numbers(value).at(0));
    } else if (flag == "--programmatic") {
      options.programmatic = std::string_view(value) == "on";
    } else if (flag == "--stages") {
      options.stages = std::string_view(value) == "on";
    } else if (flag == "--choices") {
      options.choices = std::string_view(value) == "on";
    } else if (flag == "--out") {
      out = value;
    } else if (flag == "--commit") {
      commit = value;
    } else if (flag == "--date") {
      date = value;
    } else {
      std::fprintf(stderr, "decode_bench: unknown flag %s\n", argv[i]);
      return 2;
    }
  }
  if (device::device_count() == 0) {
    std::printf("decode_bench: SKIPPED, no CUDA device\n");
    return 0;
  }
  try {
    options.config = weights::with_num_layers(weights::flash_config(), layers);
    options.whole = weights::flash_config();
    if (experts > 0) {
      options.config.n_routed_experts = experts;
      options.whole->n_routed_experts = experts;
    }
    std::ofstream file;
    if (!out.empty()) {
      file.open(out);
      file << runner::decode_bench_header() << '\n';
    }
    std::printf("%s\n", runner::decode_bench_header().c_str());
    const std::string where = date + "," + commit + ",h200";
    const auto on_row = [&](const runner::DecodeBenchRow& row) {
      const std::string line = runner::decode_bench_line(row, where);
      std::printf("%s\n", line.c_str());
      std::fflush(stdout);
      file << line << '\n' << std::flush;
    };
    if (!prompt_tokens.empty()) {
      runner::run_prompt_bench({.config = options.config,
                                .tokens = prompt_tokens,
                                .positions = options.contexts,
                                .replays = options.replays},
                               on_row);
      return 0;
    }
    const runner::DecodeBenchSummary summary = runner::run_decode_bench(options, on_row);
    std::printf("read %.2f TB/s, weights %.2f GB, pools %.2f GB\n",
                summary.read_tb_s,
                static_cast<double>(summary.weight_bytes) * 1e-9,
                static_cast<double>(summary.pool_bytes) * 1e-9);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "decode_bench: %s\n", error.what());
    return 1;
  }
  return 0;
}
