#include "runner/decode/prompt_bench.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <string>

#include "base/error.h"
#include "device/cuda_check.h"
#include "device/stream.h"
#include "runner/decode/bench_rates.h"
#include "runner/decode/decode_floor.h"
#include "runner/decode/decode_synth.h"
#include "runner/decode/prompt_runner.h"

namespace baleen::runner {
namespace {

double prompt_bench_median(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

class PromptBench {
 public:
  PromptBench(const DecodeSynth& synth, int64_t max_context, const PromptBenchOptions& options)
      : synth_(synth),
        replays_(options.replays),
        read_tb_s_(measured_read_tb_s(stream_)),
        fp8_pflop_s_(measured_fp8_pflop_s(stream_)),
        prompts_(synth.model(), tables(synth), max_context, /*records=*/false, options.forms) {}

  void run(int32_t tokens,
           int64_t position,
           const std::function<void(const DecodeBenchRow&)>& on_row) {
    std::vector<int32_t> ids;
    for (int32_t i = 0; i < tokens; ++i) {
      ids.push_back(static_cast<int32_t>((i * 7919LL + 11) % synth_.model().config.vocab_size));
    }
    const PromptPiece piece{
        .ids = ids, .slot = RequestSlot(0), .position = static_cast<int32_t>(position)};
    const std::vector<int32_t> results = {tokens - 1};
    prompts_.run({&piece, 1}, results, stream_);
    stream_.synchronize();
    DecodeBenchRow whole{.part = "prompt", .batch = tokens, .context = position + tokens};
    std::vector<double> times;
    std::vector<double> host_times;
    for (int32_t i = 0; i < replays_; ++i) {
      device::Event begin;
      device::Event end;
      begin.record(stream_);
      const auto host = std::chrono::steady_clock::now();
      prompts_.run({&piece, 1}, results, stream_);
      host_times.push_back(
          std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - host)
              .count());
      end.record(stream_);
      times.push_back(end.microseconds_since(begin));
    }
    whole.median_us = prompt_bench_median(times);
    whole.eager_us = prompt_bench_median(host_times);
    whole.launches = prompts_.num_launches();
    add_floor(whole);
    on_row(whole);
    for (const auto& [part, total] : stages(piece, results)) {
      on_row({.part = part,
              .batch = tokens,
              .context = position + tokens,
              .median_us = total / replays_ / layers_of(part)});
    }
  }

 private:
  static PromptTables tables(const DecodeSynth& synth) {
    const DecodeInputs inputs = synth.inputs();
    return {.full = inputs.slot_table,
            .window_pages = inputs.window_pages,
            .blocks = inputs.table_blocks,
            .slots = 1};
  }

  void add_floor(DecodeBenchRow& row) const {
    const ModelConfig& config = synth_.model().config;
    row.floor_bytes = ends_floor_bytes(config, {.tokens = row.batch});
    double flop = 0.0;
    for (const DecodeLayer& layer : synth_.model().layers) {
      // Rows of the cache are shared by the tokens of a prompt: counted for one token.
      row.floor_bytes += layer_floor_bytes(config, layer.spec, {.tokens = row.batch}) +
                         layer_floor_bytes(config, layer.spec, {.context = row.context}) -
                         layer_floor_bytes(config, layer.spec, {});
      flop += row.batch * layer_token_flop(config, layer.spec);
    }
    row.floor_us = std::max(row.floor_bytes / read_tb_s_ * 1e-6, flop / fp8_pflop_s_ * 1e-9);
  }

  /// Microseconds of all replays and layers, by stage.
  std::map<std::string, double> stages(const PromptPiece& piece,
                                       const std::vector<int32_t>& results) {
    std::map<std::string, double> total_us;
    for (int32_t i = 0; i < replays_; ++i) {
      std::vector<std::unique_ptr<device::Event>> events;
      std::vector<std::string> parts;
      prompts_.run({&piece, 1}, results, stream_, [&](const char* stage, int64_t layer) {
        events.push_back(std::make_unique<device::Event>());
        events.back()->record(stream_);
        parts.push_back("prompt/" + (layer < 0 ? std::string() : kind_of(layer) + "/") + stage);
      });
      stream_.synchronize();
      for (std::size_t e = 0; e + 1 < events.size(); ++e) {
        total_us[parts[e]] += events[e + 1]->microseconds_since(*events[e]);
      }
    }
    return total_us;
  }

  std::string kind_of(int64_t layer) const {
    return layer_kind_name(synth_.model().layers[static_cast<std::size_t>(layer)].spec.kind);
  }
  double layers_of(const std::string& part) const {
    double count = 0;
    for (std::size_t i = 0; i < synth_.model().layers.size(); ++i) {
      count += part.starts_with("prompt/" + kind_of(static_cast<int64_t>(i)) + "/") ? 1 : 0;
    }
    return std::max(count, 1.0);
  }

  const DecodeSynth& synth_;
  int32_t replays_;
  device::Stream stream_;
  double read_tb_s_ = 0.0;
  double fp8_pflop_s_ = 0.0;
  PromptRunner prompts_;
};

}  // namespace

void run_prompt_bench(const PromptBenchOptions& options,
                      const std::function<void(const DecodeBenchRow&)>& on_row) {
  if (options.tokens.empty() || options.positions.empty()) {
    throw ConfigError("prompt bench: no tokens or no position");
  }
  if (device::device_count() == 0) {
    throw ConfigError("prompt bench: no CUDA device");
  }
  if (const std::string reason = decode_unsupported(options.config); !reason.empty()) {
    throw ConfigError("prompt bench: " + reason);
  }
  const int32_t most = *std::max_element(options.tokens.begin(), options.tokens.end());
  const int64_t longest =
      *std::max_element(options.positions.begin(), options.positions.end()) + most;
  if (most > most_pass_tokens(longest)) {
    throw ConfigError("prompt bench: " + std::to_string(most) + " tokens in a pass of at most " +
                      std::to_string(most_pass_tokens(longest)));
  }
  DecodeSynth synth({.config = options.config,
                     .max_requests = 1,
                     .max_context = longest + 1,
                     .window_blocks = most / 256 + 2});
  PromptBench bench(synth, longest, options);
  for (const int64_t position : options.positions) {
    for (const int32_t tokens : options.tokens) {
      synth.set_state(1, position + tokens);
      bench.run(tokens, position, on_row);
    }
  }
}

}  // namespace baleen::runner
