#include "apps/plan_report.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "cache/choice_table.h"
#include "weights/shard_bytes.h"

namespace baleen::apps {
namespace {

constexpr double kGib = 1073741824.0;

double gib(int64_t bytes) {
  return static_cast<double>(bytes) / kGib;
}

std::vector<std::pair<const char*, int64_t>> terms_of(const cache::CacheBytes& bytes) {
  return {{"c4", bytes.c4},
          {"indexer", bytes.indexer},
          {"c128", bytes.c128},
          {"swa", bytes.swa},
          {"c4_state", bytes.c4_state},
          {"indexer_state", bytes.indexer_state},
          {"c128_state", bytes.c128_state},
          {"checkpoints", bytes.checkpoints},
          {"open_groups", bytes.open_groups}};
}

std::vector<std::pair<const char*, int64_t>> terms_of(const PlanReport::Records& records) {
  return {{"route_bytes_per_token", records.route_bytes},
          {"most_pick_bytes_per_token", records.most_pick_bytes},
          {"most_page_bytes", records.most_page_bytes},
          {"most_bytes", records.most_bytes}};
}

PlanReport::Records records_of(const ModelConfig& config, int64_t full_pages) {
  const cache::ChoiceLayout layout = cache::choice_layout(config);
  PlanReport::Records out;
  out.route_bytes = layout.route_bytes();
  out.most_pick_bytes = layout.pick_bytes(static_cast<int32_t>(config.max_position_embeddings) - 1);
  out.most_page_bytes = cache::ChoiceTable::most_page_bytes(layout, config.max_position_embeddings);
  out.most_bytes = full_pages * out.most_page_bytes;
  return out;
}

std::vector<std::pair<const char*, int64_t>> counts_of(const cache::CacheSizes& sizes) {
  return {{"tokens", sizes.tokens()},
          {"full_pages", sizes.full_pages},
          {"swa_pages", sizes.swa_pages},
          {"request_slots", sizes.request_slots},
          {"checkpoint_slots", sizes.checkpoint_slots},
          {"open_group_blocks", sizes.open_group_blocks},
          {"c4_ring_rows", sizes.c4_ring_rows},
          {"c128_ring_rows", sizes.c128_ring_rows}};
}

// What a process with LibTorch's CUDA libraries holds on an H200 before it has a model, and a
// little for what their allocators keep (docs/serving/on_a_gpu.md).
constexpr int64_t kCudaContextBytes = int64_t{760} << 20;

PlanReport::Device device_of(const ModelConfig& config,
                             const PlanRequest& request,
                             int64_t weight_bytes) {
  PlanReport::Device out;
  out.weights = weight_bytes;
  out.body = 2 * config.vocab_size * config.hidden_size * static_cast<int64_t>(sizeof(float));
  out.workspaces = request.device_needs(config, request.options);
  out.context = kCudaContextBytes;
  return out;
}

std::vector<std::pair<const char*, int64_t>> terms_of(const PlanReport::Device& device) {
  return {{"weights", device.weights},
          {"body", device.body},
          {"workspaces", device.workspaces},
          {"context", device.context},
          {"cache", device.cache},
          {"total", device.total()}};
}

/// The fewest ranks whose share of the weights leaves a tenth of the memory for the cache; 0: none.
int64_t ranks_that_fit(const ModelConfig& config,
                       const weights::CheckpointFormat& format,
                       int64_t memory) {
  constexpr int64_t kMostRanks = 256;
  for (int64_t ranks = 2; ranks <= kMostRanks; ranks *= 2) {
    try {
      if (weights::rank_bytes(config, format, ranks) < memory - memory / 10) {
        return ranks;
      }
    } catch (const ConfigError&) {
      return 0;  // what is split cannot be split further
    }
  }
  return 0;
}

std::string short_count(double count) {
  if (count >= 1e6) {
    return fmt::format("{:.1f} M", count / 1e6);
  }
  return count >= 1e4 ? fmt::format("{:.0f} k", count / 1e3) : fmt::format("{:.0f}", count);
}

/// What the figures mean, for someone who reads them for the first time.
std::string plan_words(const PlanReport& report) {
  std::string text = fmt::format("The weights take {:.2f} GiB", gib(report.weights.bytes));
  text += report.num_ranks > 1 ? fmt::format("; each of {} ranks holds {:.2f} GiB of them.\n",
                                             report.num_ranks,
                                             gib(report.rank_weight_bytes))
                               : std::string(".\n");
  if (report.retained.total() > 0) {
    text += fmt::format(
        "A token in the cache keeps {:.0f} bytes: 1 GiB holds {} tokens, a whole context of {} "
        "tokens takes {:.2f} GiB.\n",
        report.retained.total(),
        short_count(report.retained.tokens_per_gib()),
        short_count(static_cast<double>(report.max_context)),
        report.retained.total() * static_cast<double>(report.max_context) / kGib);
  }
  if (report.sizes) {
    const double contexts = static_cast<double>(report.sizes->tokens()) /
                            static_cast<double>(std::max<int64_t>(1, report.max_context));
    text += fmt::format(
        "{:g} GiB a rank leave {:.2f} GiB for the cache: {} tokens{}, {} requests at a time, {} "
        "resume points.\n",
        *report.memory_gib,
        gib(report.bytes.total()),
        short_count(static_cast<double>(report.sizes->tokens())),
        contexts >= 1.0 ? fmt::format(" ({:.1f} whole contexts)", contexts)
                        : fmt::format(" ({:.0f} % of one whole context)", 100.0 * contexts),
        report.max_running_requests,
        report.sizes->checkpoint_slots);
  } else {
    text += "To see what fits, give the memory of one rank, such as --memory-gib 80.\n";
  }
  return text + "\n";
}

}  // namespace

PlanReport make_plan(const ModelConfig& config, const PlanRequest& request) {
  PlanReport report;
  report.num_ranks = request.num_ranks;
  report.max_context = config.max_position_embeddings;
  report.max_running_requests = static_cast<int32_t>(request.options.max_running_requests);
  report.memory_gib = request.memory_gib;
  for (const weights::TensorSpec& tensor : weights::stored_tensors(config, request.format)) {
    for (PlanReport::Stored* sum :
         {&report.weights, &report.weights_by_type[weights::dtype_name(tensor.dtype)]}) {
      ++sum->tensors;
      sum->bytes += tensor.num_bytes();
    }
  }
  report.rank_weight_bytes = weights::rank_bytes(config, request.format, request.num_ranks);
  report.shape = cache::cache_shape(config, request.cache_formats);
  report.retained = cache::retained_bytes_per_token(report.shape);
  const bool drafts = request.options.drafts;
  report.live_page =
      cache::live_page_bytes(report.shape, (drafts ? 4 : 2) * report.shape.c4_ratio, 0);
  int64_t beside_cache = report.rank_weight_bytes;
  if (request.device_needs) {
    if (request.num_ranks != 1) {
      throw ConfigError("--device cuda: kernels run on one card, --ranks is " +
                        std::to_string(request.num_ranks));
    }
    report.device = device_of(config, request, report.rank_weight_bytes);
    beside_cache = report.device->total();
  }
  if (request.memory_gib) {
    const auto memory = static_cast<int64_t>(*request.memory_gib * kGib);
    if (memory <= beside_cache) {
      const int64_t ranks = ranks_that_fit(config, request.format, memory);
      throw ConfigError(fmt::format(
          "memory: the weights of one rank {} {:.2f} GiB, only {:.2f} GiB are there; {}",
          report.device ? "and what serves them take" : "take",
          gib(beside_cache),
          *request.memory_gib,
          ranks > 0 ? fmt::format("--ranks {} would do", ranks)
                    : std::string("no number of ranks would do: take a smaller --format or more "
                                  "memory")));
    }
    report.sizes = cache::fit_cache(report.shape, memory - beside_cache, request.options);
    report.bytes = cache::cache_bytes(report.shape, *report.sizes);
    if (report.device) {
      report.device->cache = report.bytes.total();
    }
  }
  if (request.record_choices) {
    report.records = records_of(config, report.sizes ? report.sizes->full_pages : 0);
  }
  return report;
}

std::string plan_text(const PlanReport& report) {
  std::string text = plan_words(report);
  auto out = std::back_inserter(text);
  fmt::format_to(out, "weights\n");
  for (const auto& [type, stored] : report.weights_by_type) {
    fmt::format_to(out,
                   "  {:<14}{:>16} bytes {:>10.2f} GiB {:>8} tensors\n",
                   type,
                   stored.bytes,
                   gib(stored.bytes),
                   stored.tensors);
  }
  fmt::format_to(out,
                 "  {:<14}{:>16} bytes {:>10.2f} GiB {:>8} tensors\n  {:<14}{:>16} bytes {:>10.2f} "
                 "GiB\n",
                 "total",
                 report.weights.bytes,
                 gib(report.weights.bytes),
                 report.weights.tensors,
                 "one rank",
                 report.rank_weight_bytes,
                 gib(report.rank_weight_bytes));
  const cache::RetainedBytes& retained = report.retained;
  fmt::format_to(out, "cache, bytes kept per token\n");
  for (const auto& [name, bytes] : {std::pair{"c4", retained.c4},
                                    std::pair{"c128", retained.c128},
                                    std::pair{"indexer", retained.indexer},
                                    std::pair{"total", retained.total()}}) {
    fmt::format_to(out, "  {:<14}{:>16.1f}\n", name, bytes);
  }
  if (retained.total() > 0) {
    fmt::format_to(out,
                   "  {:<14}{:>16.0f}\n  {:<14}{:>16.2f} GiB\n",
                   "tokens per GiB",
                   retained.tokens_per_gib(),
                   "1 M tokens",
                   retained.total() * 1048576 / kGib);
  }
  fmt::format_to(
      out,
      "cache, state\n  {:<14}{:>16} bytes (256 tokens, all layers)\n"
      "  {:<14}{:>16} bytes (nested in it)\n  {:<14}{:>16} bytes\n  {:<14}{:>16} bytes\n",
      "window page",
      report.live_page.window,
      "c4 rings",
      report.live_page.c4_rings,
      "checkpoint",
      report.shape.checkpoint_slot_bytes(),
      "open group",
      report.shape.open_group_block_bytes());
  if (report.sizes) {
    fmt::format_to(out, "what fits\n");
    for (const auto& [name, count] : counts_of(*report.sizes)) {
      fmt::format_to(out, "  {:<18}{:>14}\n", name, count);
    }
    fmt::format_to(out, "cache memory\n");
    for (const auto& [name, bytes] : terms_of(report.bytes)) {
      fmt::format_to(out, "  {:<14}{:>16} bytes {:>10.2f} GiB\n", name, bytes, gib(bytes));
    }
    fmt::format_to(out,
                   "  {:<14}{:>16} bytes {:>10.2f} GiB\n",
                   "total",
                   report.bytes.total(),
                   gib(report.bytes.total()));
  }
  if (report.device) {
    fmt::format_to(out, "device memory of a server on kernels\n");
    for (const auto& [name, bytes] : terms_of(*report.device)) {
      fmt::format_to(out, "  {:<14}{:>16} bytes {:>10.2f} GiB\n", name, bytes, gib(bytes));
    }
  }
  if (report.records) {
    fmt::format_to(out, "records of choices, host memory beside the cache\n");
    for (const auto& [name, bytes] : terms_of(*report.records)) {
      fmt::format_to(out, "  {:<26}{:>16}\n", name, bytes);
    }
  }
  return text;
}

boost::json::object plan_json(const PlanReport& report) {
  boost::json::object by_type;
  for (const auto& [type, stored] : report.weights_by_type) {
    by_type[type] = {{"tensors", stored.tensors}, {"bytes", stored.bytes}};
  }
  boost::json::object json = {{"weights",
                               {{"by_type", std::move(by_type)},
                                {"tensors", report.weights.tensors},
                                {"bytes", report.weights.bytes},
                                {"rank_bytes", report.rank_weight_bytes}}},
                              {"cache_bytes_per_token",
                               {{"c4", report.retained.c4},
                                {"c128", report.retained.c128},
                                {"indexer", report.retained.indexer},
                                {"total", report.retained.total()}}},
                              {"window_page_bytes", report.live_page.window},
                              {"c4_ring_bytes_per_window_page", report.live_page.c4_rings},
                              {"checkpoint_slot_bytes", report.shape.checkpoint_slot_bytes()},
                              {"open_group_block_bytes", report.shape.open_group_block_bytes()}};
  if (report.retained.total() > 0) {
    json["tokens_per_gib"] = report.retained.tokens_per_gib();
  }
  if (report.sizes) {
    boost::json::object counts;
    for (const auto& [name, count] : counts_of(*report.sizes)) {
      counts[name] = count;
    }
    boost::json::object bytes;
    for (const auto& [name, term] : terms_of(report.bytes)) {
      bytes[name] = term;
    }
    bytes["total"] = report.bytes.total();
    json["fits"] = std::move(counts);
    json["cache_bytes"] = std::move(bytes);
  }
  if (report.device) {
    boost::json::object device;
    for (const auto& [name, bytes] : terms_of(*report.device)) {
      device[name] = bytes;
    }
    json["device_bytes"] = std::move(device);
  }
  if (report.records) {
    boost::json::object records;
    for (const auto& [name, bytes] : terms_of(*report.records)) {
      records[name] = bytes;
    }
    json["records"] = std::move(records);
  }
  return json;
}

}  // namespace baleen::apps
