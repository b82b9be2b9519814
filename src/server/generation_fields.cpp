#include "server/generation_fields.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "server/echo.h"
#include "server/json_input.h"

namespace baleen::server {
namespace {

/// Any integer of 64 bits, signed or not; negative ones wrap.
void read_seed(FieldReader& fields, std::string_view name, engine::SamplingConfig& sampling) {
  const json::value* value = fields.value(name);
  if (value == nullptr) {
    return;
  }
  if (value->is_uint64()) {
    sampling.seed = value->get_uint64();
  } else if (const auto seed = fields.integer(name)) {
    sampling.seed = static_cast<uint64_t>(*seed);
  }
}

void read_logit_bias(FieldReader& fields, engine::SamplingConfig& sampling) {
  const json::object* biases = fields.object("logit_bias");
  if (biases == nullptr) {
    return;
  }
  const std::string path = fields.path_of("logit_bias");
  for (const auto& member : *biases) {
    const std::string_view key(member.key().data(), member.key().size());
    int32_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || id < 0 ||
        (key.size() > 1 && key[0] == '0')) {  // "05" would be a second name of "5"
      fields.fail("logit_bias", fmt::format("keys must be token ids, got \"{}\"", shortened(key)));
      return;
    }
    if (!member.value().is_number()) {
      fields.fail(child_path("logit_bias", key),
                  fmt::format("must be a number, is {}", json_kind_name(member.value())));
      return;
    }
    const double bias = member.value().to_number<double>();
    if (!(bias >= -100.0 && bias <= 100.0)) {
      fields.fail(child_path("logit_bias", key), "must be in -100 .. 100");
      return;
    }
    sampling.logit_bias.emplace_back(id, static_cast<float>(bias));
  }
}

void read_streaming(FieldReader& fields, GenerationFields& out) {
  out.stream = fields.boolean("stream").value_or(false);
  const json::object* options = fields.object("stream_options");
  if (options == nullptr) {
    return;
  }
  if (!out.stream) {
    fields.fail("stream_options", "needs stream: true");
    return;
  }
  FieldReader inner(*options, fields.path_of("stream_options"), fields.status());
  out.include_usage = inner.boolean("include_usage").value_or(false);
  out.continuous_usage = inner.boolean("continuous_usage_stats").value_or(false);
  inner.finish();
}

}  // namespace

void read_float(FieldReader& fields, std::string_view name, float& out) {
  const auto number = fields.number(name);
  if (!number) {
    return;
  }
  out = static_cast<float>(*number);
  if (!std::isfinite(out)) {
    fields.fail(name, fmt::format("is out of range: {}", *number));
  } else if (out == 0.0F && *number != 0.0) {
    out = std::copysign(std::numeric_limits<float>::denorm_min(), static_cast<float>(*number));
  }
}

bool is_request_id(std::string_view id) {
  constexpr size_t kMaxBytes = 256;
  return !id.empty() && id.size() <= kMaxBytes &&
         std::all_of(id.begin(), id.end(), [](char c) { return c > ' ' && c < 127; });
}

void read_stop_strings(FieldReader& fields, std::string_view name, text::OutputConfig& output) {
  auto stops = fields.string_list(name);
  if (!stops) {
    return;
  }
  if (stops->size() > kMaxStopStrings) {
    fields.fail(name, fmt::format("at most {} strings, got {}", kMaxStopStrings, stops->size()));
  }
  for (const std::string& stop : *stops) {
    if (stop.empty()) {
      fields.fail(name, "a stop string must not be empty");
    }
  }
  output.stop = std::move(*stops);
}

void read_sampling_fields(FieldReader& fields,
                          std::string_view seed_name,
                          engine::SamplingConfig& sampling) {
  read_float(fields, "temperature", sampling.temperature);
  read_float(fields, "top_p", sampling.top_p);
  read_float(fields, "min_p", sampling.min_p);
  read_float(fields, "frequency_penalty", sampling.frequency_penalty);
  read_float(fields, "presence_penalty", sampling.presence_penalty);
  read_float(fields, "repetition_penalty", sampling.repetition_penalty);
  sampling.top_k = static_cast<int32_t>(fields.integer("top_k", -1, kMaxInt32).value_or(-1));
  read_seed(fields, seed_name, sampling);
  read_logit_bias(fields, sampling);
}

void read_stop_fields(FieldReader& fields,
                      std::string_view min_tokens_name,
                      engine::GenerationRequest& request) {
  read_stop_strings(fields, "stop", request.output);
  request.output.stop_in_reasoning = fields.boolean("stop_in_reasoning").value_or(false);
  request.output.include_stop = fields.boolean("no_stop_trim").value_or(false);
  if (auto ids = fields.integer_list("stop_token_ids", 0, kMaxInt32)) {
    request.stop_token_ids = std::move(*ids);
  }
  request.ignore_eos = fields.boolean("ignore_eos").value_or(false);
  request.min_new_tokens =
      static_cast<int32_t>(fields.integer(min_tokens_name, 0, kMaxInt32).value_or(0));
}

GenerationFields read_generation_fields(FieldReader& fields) {
  GenerationFields out;
  fields.require("model");
  out.model = fields.string("model").value_or("");
  if (const auto rid = fields.string("rid")) {
    out.rid = *rid;
    if (!is_request_id(*rid)) {
      fields.fail("rid", "must be 1 to 256 printable ASCII characters without spaces");
    }
  }
  out.n = static_cast<int32_t>(fields.integer("n", 1, kMaxChoices).value_or(1));
  read_sampling_fields(fields, "seed", out.request.sampling);
  read_stop_fields(fields, "min_tokens", out.request);
  read_streaming(fields, out);
  if (const auto drafts = fields.integer("max_drafts", 0, kMaxInt32)) {
    out.request.max_drafts = static_cast<int32_t>(*drafts);
  }

  fields.ignore({"user", "metadata", "safety_identifier", "prompt_cache_key"});
  fields.only("store", false);
  if (const auto tier = fields.string("service_tier");
      tier && *tier != "auto" && *tier != "default") {
    fields.fail(
        "service_tier",
        fmt::format("\"{}\" is not supported; accepted: \"auto\", \"default\"", shortened(*tier)));
  }
  fields.not_supported({"stop_regex",
                        "return_hidden_states",
                        "return_routed_experts",
                        "return_indexer_topk",
                        "return_cached_tokens_details",
                        "return_token_ids",
                        "return_meta_info",
                        "extra_key",
                        "cache_salt",
                        "priority",
                        "session_params",
                        "bootstrap_host",
                        "bootstrap_port",
                        "bootstrap_room",
                        "data_parallel_rank",
                        "routed_dp_rank",
                        "custom_logit_processor",
                        "custom_params"});
  return out;
}

}  // namespace baleen::server
