#include "runner/decode/decode_bench.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "base/error.h"
#include "cache/choice_table.h"
#include "device/stream.h"
#include "runner/decode/bench_rates.h"
#include "runner/decode/choice_copy.h"
#include "runner/decode/decode_floor.h"
#include "runner/decode/decode_pass.h"
#include "runner/decode/decode_synth.h"

namespace baleen::runner {
namespace {

/// A pass with its buffers that has run once: its kernels are loaded, which a capture must not do.
class WarmPass {
 public:
  WarmPass(const DecodeModel& model,
           const DecodeSynth& synth,
           const DecodeLimits& limits,
           const device::Stream& stream,
           bool records = false)
      : buffers(model.config, limits.max_requests, limits.max_context, 0, records),
        pass(model, limits, synth.inputs(), buffers, device::multiprocessor_count()),
        stream_(stream) {
    pass.record(stream_.get());
    stream_.synchronize();
  }

  device::Graph graph() {
    return device::Graph::capture(stream_,
                                  [&](device::StreamHandle stream) { pass.record(stream); });
  }

  DecodeBuffers buffers;
  DecodePass pass;

 private:
  const device::Stream& stream_;
};

class Bench {
 public:
  Bench(const DecodeBenchOptions& options, const DecodeSynth& synth, double read_tb_s)
      : options_(options), synth_(synth), read_tb_s_(read_tb_s) {}

  /// The step of a model with those of the synthetic layers that `keep` takes.
  DecodeBenchRow step(const std::function<bool(const DecodeLayer&)>& keep,
                      int32_t batch,
                      int64_t context) const {
    DecodeModel model = synth_.model();
    std::erase_if(model.layers, [&](const DecodeLayer& layer) { return !keep(layer); });
    const DecodeLoad load{.tokens = batch, .context = context};
    DecodeBenchRow row{.part = "step", .batch = batch, .context = context};
    row.floor_bytes = ends_floor_bytes(model.config, load);
    for (const DecodeLayer& layer : model.layers) {
      row.floor_bytes += layer_floor_bytes(model.config, layer.spec, load);
    }
    WarmPass warm(model, synth_, limits(batch, context), stream_);
    const auto begin = std::chrono::steady_clock::now();
    warm.pass.record(stream_.get());
    row.eager_us =
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
    stream_.synchronize();
    row.launches = warm.pass.num_launches();
    const device::Graph graph = warm.graph();
    const GraphTimes times = graph_times(graph, stream_, options_.replays);
    row.graph_us = launch_us(graph);
    row.median_us = times.median_us;
    row.p95_us = times.p95_us;
    row.floor_us = floor_us(row.floor_bytes);
    return row;
  }

  /// The whole step with its choices recorded and copied to the host; graph_us: host time to put
  /// them into records, and these into the table beside the pools.
  DecodeBenchRow recorded_step(int32_t batch, int64_t context) const {
    const DecodeModel& model = synth_.model();
    DecodeBenchRow row{.part = "step_recorded", .batch = batch, .context = context};
    WarmPass warm(model, synth_, limits(batch, context), stream_, /*records=*/true);
    row.launches = warm.pass.num_launches();
    const device::Graph graph = warm.graph();
    ChoiceCopy choices(model.config,
                       {.part_tokens = batch, .run_tokens = batch, .max_context = context + 1});
    cache::ChoiceTable table(cache::choice_layout(model.config), batch);
    const auto position = static_cast<int32_t>(context);
    std::vector<double> times;
    std::vector<double> host_times;
    device::Event begin;
    device::Event end;
    for (int32_t i = 0; i <= options_.replays; ++i) {
      begin.record(stream_);
      graph.launch(stream_);
      choices.copy(warm.buffers, batch, context, stream_);
      end.record(stream_);
      const double time = end.microseconds_since(begin);
      const auto host = std::chrono::steady_clock::now();
      choices.clear();
      for (int32_t token = 0; token < batch; ++token) {
        choices.add(token, position);
      }
      for (int32_t token = 0; token < batch; ++token) {
        const auto at = static_cast<std::size_t>(token);
        table.write(cache::FullPage(1 + token),
                    position,
                    choices.choices().routes_of(at),
                    choices.choices().picks_of(at));
      }
      if (i > 0) {
        times.push_back(time);
        host_times.push_back(
            std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - host)
                .count());
      }
    }
    std::sort(times.begin(), times.end());
    std::sort(host_times.begin(), host_times.end());
    row.median_us = times[times.size() / 2];
    row.p95_us = times[times.size() * 95 / 100];
    row.graph_us = host_times[host_times.size() / 2];
    return row;
  }

  /// The stages of a whole step, each summed over its layers and divided by their number.
  std::vector<DecodeBenchRow> stages(int32_t batch, int64_t context) const {
    const DecodeModel& model = synth_.model();
    DecodeLimits apart = limits(batch, context);
    apart.programmatic = false;
    WarmPass warm(model, synth_, apart, stream_);
    std::vector<std::unique_ptr<device::Event>> events;
    std::vector<std::string> parts;  // between an event and the next
    const device::Graph graph = device::Graph::capture(stream_, [&](device::StreamHandle stream) {
      warm.pass.record(stream, [&](const char* stage, int64_t layer) {
        events.push_back(std::make_unique<device::Event>());
        events.back()->record_in_graph(stream);
        const auto index = static_cast<std::size_t>(layer);
        parts.push_back(layer < 0 ? std::string(stage)
                                  : layer_kind_name(model.layers[index].spec.kind) +
                                        std::string("/") + stage);
      });
    });
    std::map<std::string, double> total_us;
    for (int32_t i = 0; i <= options_.replays; ++i) {
      graph.launch(stream_);
      stream_.synchronize();
      for (std::size_t e = 0; i > 0 && e + 1 < events.size(); ++e) {  // the first one warms up
        total_us[parts[e]] += events[e + 1]->microseconds_since(*events[e]);
      }
    }
    std::vector<DecodeBenchRow> rows;
    for (const auto& [part, total] : total_us) {
      DecodeBenchRow& row = rows.emplace_back();
      row.part = part;
      row.batch = batch;
      row.context = context;
      const auto layers =
          std::count_if(model.layers.begin(), model.layers.end(), [&](const DecodeLayer& layer) {
            return part.starts_with(layer_kind_name(layer.spec.kind) + std::string("/"));
          });
      row.median_us = total / options_.replays / static_cast<double>(std::max<int64_t>(1, layers));
    }
    return rows;
  }

  /// Median host time of a launch while the device is idle.
  double launch_us(const device::Graph& graph) const {
    std::vector<double> times;
    for (int32_t i = 0; i < options_.replays; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      graph.launch(stream_);
      times.push_back(
          std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
              .count());
      stream_.synchronize();
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }

  double floor_us(double bytes) const { return bytes / read_tb_s_ * 1e-6; }

 private:
  DecodeLimits limits(int32_t batch, int64_t context) const {
    return {
        .max_requests = batch, .max_context = context + 1, .programmatic = options_.programmatic};
  }

  const DecodeBenchOptions& options_;
  const DecodeSynth& synth_;
  double read_tb_s_;
  device::Stream stream_;
};

/// Steps of the whole model, from measured layers: its time is the ends' and each layer's of its
/// kind.
class WholeModel {
 public:
  WholeModel(const ModelConfig& config, std::function<double(double)> floor_us)
      : config_(config), floor_us_(std::move(floor_us)) {}

  void add_ends(const DecodeBenchRow& ends) {
    DecodeBenchRow& row = rows_[{ends.batch, ends.context}];
    row = ends;
    row.part = "whole";
    row.p95_us = row.eager_us = row.graph_us = 0.0;
    drafts_[{ends.batch, ends.context}] = row;
  }
  void add_layer(const DecodeBenchRow& layer, LayerKind kind) {
    const auto add = [&layer](DecodeBenchRow& row, double count) {
      row.median_us += count * layer.median_us;
      row.floor_bytes += count * layer.floor_bytes;
      row.launches += count * layer.launches;
    };
    add(rows_[{layer.batch, layer.context}], static_cast<double>(config_.count_layers(kind)));
    if (kind == LayerKind::kSwa) {
      add(drafts_[{layer.batch, layer.context}], 1.0);
    }
  }
  DecodeBenchRow step(int32_t batch, int64_t context) const {
    return with_floor(rows_.at({batch, context}));
  }
  /// A cycle with drafts: all tokens of every request are verified in one step, as many sequences
  /// as tokens; then a pass of the draft layer (a window layer and the head) for each draft.
  std::optional<DecodeBenchRow> cycle(int32_t batch, int64_t context) const {
    const auto verified = rows_.find({kCycleTokens * batch, context});
    if (verified == rows_.end()) {
      return std::nullopt;
    }
    DecodeBenchRow row = verified->second;
    const DecodeBenchRow& draft = drafts_.at({batch, context});
    row.part = "whole_cycle";
    row.batch = batch;
    row.median_us += (kCycleTokens - 1) * draft.median_us;
    row.floor_bytes += (kCycleTokens - 1) * draft.floor_bytes;
    row.launches += (kCycleTokens - 1) * draft.launches;
    return with_floor(row);
  }

 private:
  using Place = std::pair<int32_t, int64_t>;  // batch, context
  DecodeBenchRow with_floor(DecodeBenchRow row) const {
    row.floor_us = floor_us_(row.floor_bytes);
    return row;
  }

  const ModelConfig& config_;
  std::function<double(double)> floor_us_;
  std::map<Place, DecodeBenchRow> rows_;
  std::map<Place, DecodeBenchRow> drafts_;
};

}  // namespace

DecodeBenchSummary run_decode_bench(const DecodeBenchOptions& options,
                                    const std::function<void(const DecodeBenchRow&)>& on_row) {
  if (options.batches.empty() || options.contexts.empty()) {
    throw ConfigError("decode bench: no batch or no context");
  }
  if (device::device_count() == 0) {
    throw ConfigError("decode bench: no CUDA device");
  }
  if (const std::string reason = decode_unsupported(options.config); !reason.empty()) {
    throw ConfigError("decode bench: " + reason);
  }
  DecodeBenchSummary summary;
  summary.card = device::device_name();
  {
    const device::Stream stream;
    summary.read_tb_s = measured_read_tb_s(stream);
  }
  const int32_t most = *std::max_element(options.batches.begin(), options.batches.end());
  const int64_t longest = *std::max_element(options.contexts.begin(), options.contexts.end());
  DecodeSynth synth({.config = options.config, .max_requests = most, .max_context = longest + 1});
  summary.weight_bytes = synth.weight_bytes();
  summary.pool_bytes = synth.pool_bytes();
  const Bench bench(options, synth, summary.read_tb_s);
  const ModelConfig whole_config = options.whole.value_or(options.config);
  WholeModel model(whole_config, [&bench](double bytes) { return bench.floor_us(bytes); });
  const auto kinds = {LayerKind::kSwa, LayerKind::kC4, LayerKind::kC128};
  const bool whole_known = std::all_of(kinds.begin(), kinds.end(), [&](LayerKind kind) {
    return whole_config.count_layers(kind) == 0 || options.config.count_layers(kind) > 0;
  });
  for (const int64_t context : options.contexts) {
    for (const int32_t batch : options.batches) {
      synth.set_state(batch, context);
      const DecodeBenchRow whole =
          bench.step([](const DecodeLayer&) { return true; }, batch, context);
      on_row(whole);
      if (options.choices) {
        on_row(bench.recorded_step(batch, context));
      }
      DecodeBenchRow ends = bench.step([](const DecodeLayer&) { return false; }, batch, context);
      ends.part = "ends";
      on_row(ends);
      model.add_ends(ends);
      for (const LayerKind kind : kinds) {
        const auto is_kind = [kind](const DecodeLayer& layer) { return layer.spec.kind == kind; };
        const auto count = static_cast<double>(
            std::count_if(synth.model().layers.begin(), synth.model().layers.end(), is_kind));
        if (count == 0) {
          continue;
        }
        const DecodeBenchRow some = bench.step(is_kind, batch, context);
        DecodeBenchRow row{.part = layer_kind_name(kind), .batch = batch, .context = context};
        row.median_us = (some.median_us - ends.median_us) / count;
        row.floor_bytes = (some.floor_bytes - ends.floor_bytes) / count;
        row.floor_us = bench.floor_us(row.floor_bytes);
        row.launches = (some.launches - ends.launches) / count;
        on_row(row);
        model.add_layer(row, kind);
      }
      if (options.whole && whole_known) {
        on_row(model.step(batch, context));
      }
      if (options.stages) {
        for (const DecodeBenchRow& row : bench.stages(batch, context)) {
          on_row(row);
        }
      }
    }
    for (const int32_t batch : options.batches) {
      const std::optional<DecodeBenchRow> cycle = model.cycle(batch, context);
      if (options.whole && whole_known && cycle) {
        on_row(*cycle);
      }
    }
  }
  return summary;
}

}  // namespace baleen::runner
