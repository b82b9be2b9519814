#include "apps/bench/load/load_target.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <string_view>

#include <boost/json.hpp>
#include <fmt/format.h>

#include "apps/bench/load/load_client.h"
#include "apps/bench/load/load_plan.h"
#include "base/error.h"
#include "http/client.h"

namespace baleen::apps {
namespace {

namespace json = boost::json;

std::string base_of(std::string url) {
  while (url.ends_with('/')) {
    url.pop_back();
  }
  if (url.ends_with("/v1")) {
    url.resize(url.size() - 3);
  }
  return url;
}

/// The id of the first model that the server lists.
std::string first_model(http::Client& client) {
  const Result<http::Response> answer = client.get("/v1/models");
  if (!answer.ok()) {
    throw Error(answer.status().message);
  }
  boost::system::error_code error;
  const json::value list = json::parse(answer->body, error);
  if (answer->status == 200 && !error) {
    const json::value* id = list.find_pointer("/data/0/id", error);
    if (id != nullptr && id->is_string()) {
      return std::string(id->as_string());
    }
  }
  throw Error(fmt::format("GET /v1/models answers {} without a model's id; name one with --model",
                          answer->status));
}

/// One short request; the error names what the server said.
LoadRecord ask_short(const LoadTarget& target, uint64_t seed, int64_t num_words) {
  LoadClient client(target);
  return client.run({{"user", made_up_words(seed, num_words)}}, 2).record;
}

/// Leaves out what the server refuses with 400 or 422, one field after the other.
void find_out_fields(LoadTarget& target) {
  target.fixed_lengths = true;
  target.asks_usage = true;
  LoadRecord record = ask_short(target, 1, 4);
  if (record.refused) {
    const std::string why = record.error;
    target.fixed_lengths = false;
    record = ask_short(target, 1, 4);
    if (record.refused) {
      target.asks_usage = false;
      record = ask_short(target, 1, 4);
    }
    if (!record.ok) {
      throw Error(record.refused ? why : record.error);
    }
    target.notes.push_back(
        "answer lengths: ignore_eos is refused, so answers may end before the wished length");
  }
  if (!record.ok) {
    throw Error(record.error);
  }
  target.reports_usage = record.prompt_tokens >= 0;
  if (!target.reports_usage) {
    target.notes.push_back(
        "token counts: streams end without usage, so the pieces of an answer are counted instead, "
        "and prompt tokens are not known");
  }
}

/// How many tokens a word takes: from two prompts of different length.
void calibrate(LoadTarget& target) {
  if (!target.reports_usage) {
    return;
  }
  constexpr int64_t kFew = 8;
  constexpr int64_t kMany = 40;
  const LoadRecord few = ask_short(target, 2, kFew);
  const LoadRecord many = ask_short(target, 3, kMany);
  if (!few.ok || !many.ok || many.prompt_tokens <= few.prompt_tokens) {
    target.notes.push_back("prompt lengths: a word is taken for 1.3 tokens");
    return;
  }
  target.tokens_per_word =
      static_cast<double>(many.prompt_tokens - few.prompt_tokens) / (kMany - kFew);
  target.prompt_overhead =
      std::max(0.0, static_cast<double>(few.prompt_tokens) - kFew * target.tokens_per_word);
  target.reports_cached = few.cached_tokens >= 0 && many.cached_tokens >= 0;
}

}  // namespace

int64_t LoadTarget::words_of(int32_t tokens, bool with_overhead) const {
  const double words = (tokens - (with_overhead ? prompt_overhead : 0.0)) / tokens_per_word;
  return std::max<int64_t>(1, std::llround(words));
}

std::string load_body(const LoadTarget& target,
                      const std::vector<LoadMessage>& messages,
                      int32_t answer_tokens) {
  json::object body{{"model", target.model},
                    {"stream", true},
                    {"max_tokens", answer_tokens},
                    {"temperature", target.options.temperature}};
  if (target.options.chat) {
    json::array list;
    for (const LoadMessage& message : messages) {
      list.push_back(json::object{{"role", message.role}, {"content", message.content}});
    }
    body["messages"] = std::move(list);
  } else {
    std::string prompt;
    for (const LoadMessage& message : messages) {
      prompt += (prompt.empty() ? "" : "\n") + message.content;
    }
    body["prompt"] = std::move(prompt);
  }
  if (target.fixed_lengths) {
    body["ignore_eos"] = true;
  }
  if (target.asks_usage) {
    body["stream_options"] = json::object{{"include_usage", true}};
  }
  for (const auto& field : target.options.extra_body) {
    body[field.key()] = field.value();
  }
  return json::serialize(body);
}

LoadTarget probe_target(const LoadTargetOptions& options) {
  LoadTarget target;
  target.options = options;
  target.base = base_of(options.url);
  if (!options.api_key.empty()) {
    target.headers.add("Authorization", "Bearer " + options.api_key);
  }
  http::ClientConfig config;
  config.read_timeout = std::chrono::seconds(30);
  config.headers = target.headers;
  http::Client client(target.base, config);
  try {
    target.model = options.model.empty() ? first_model(client) : options.model;
    find_out_fields(target);
    calibrate(target);
  } catch (const Error& error) {
    throw Error(fmt::format("{}: {}", target.base, error.what()));
  }
  if (target.reports_usage && !target.reports_cached) {
    target.notes.push_back("hit rate: usage has no prompt_tokens_details.cached_tokens");
  }
  target.has_metrics = true;
  if (!read_draft_totals(target)) {
    target.has_metrics = false;
    target.notes.push_back("acceptance: GET /metrics has no count of drafts that is known here");
  }
  return target;
}

std::optional<double> metric_sum(std::string_view page, std::string_view name) {
  std::optional<double> sum;
  for (size_t at = 0; at < page.size();) {
    const size_t end = std::min(page.find('\n', at), page.size());
    const std::string_view line = page.substr(at, end - at);
    at = end + 1;
    if (!line.starts_with(name) || line.size() == name.size() ||
        (line[name.size()] != '{' && line[name.size()] != ' ')) {
      continue;
    }
    // Label values may hold blanks; the value follows the last brace.
    const size_t labels_end = line.rfind('}');
    const size_t from = labels_end == std::string_view::npos ? name.size() : labels_end + 1;
    sum = sum.value_or(0.0) + std::strtod(std::string(line.substr(from)).c_str(), nullptr);
  }
  return sum;
}

std::optional<DraftTotals> read_draft_totals(const LoadTarget& target) {
  if (!target.has_metrics) {
    return std::nullopt;
  }
  http::ClientConfig config;
  config.read_timeout = std::chrono::seconds(30);
  config.headers = target.headers;
  http::Client client(target.base, config);
  const Result<http::Response> page = client.get("/metrics");
  if (!page.ok() || page->status != 200) {
    return std::nullopt;
  }
  constexpr const char* kNames[][3] = {{"sglang:spec_verify_calls_total",
                                        "baleen:spec_drafted_tokens_total",
                                        "baleen:spec_accepted_tokens_total"},
                                       {"vllm:spec_decode_num_drafts_total",
                                        "vllm:spec_decode_num_draft_tokens_total",
                                        "vllm:spec_decode_num_accepted_tokens_total"}};
  for (const auto& names : kNames) {
    const std::optional<double> steps = metric_sum(page->body, names[0]);
    const std::optional<double> drafted = metric_sum(page->body, names[1]);
    const std::optional<double> accepted = metric_sum(page->body, names[2]);
    if (steps && drafted && accepted) {
      return DraftTotals{*steps, *drafted, *accepted};
    }
  }
  return std::nullopt;
}

}  // namespace baleen::apps
