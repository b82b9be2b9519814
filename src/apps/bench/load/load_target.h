#pragma once
// A server under load as the generator knows it: where it is, what its answers report and what it
// understands. Found out by asking, so that any OpenAI-compatible server can be measured without
// flags; what it refuses is left out and said. Plain data after probe_target(); any thread reads.
//
//   LoadTarget target = probe_target({.url = "http://127.0.0.1:30000"});

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <boost/json/object.hpp>

#include "http/message.h"

namespace baleen::apps {

struct LoadTargetOptions {
  std::string url;         // http://host:port, with or without /v1
  std::string model = {};  // empty: the first that the server lists
  std::string api_key = {};
  bool chat = true;  // else text completions
  double temperature = 0.0;
  boost::json::object extra_body = {};  // fields added to every request, as they are
  double timeout_s = 600.0;             // between two pieces of an answer
};

struct LoadTarget {
  LoadTargetOptions options;
  std::string base;  // the URL without /v1
  std::string model;
  http::Headers headers;
  bool fixed_lengths = false;   // takes ignore_eos: answers are exactly as long as asked
  bool reports_usage = false;   // token counts at the end of a stream
  bool reports_cached = false;  // of them, those from the cache
  bool asks_usage = false;      // takes stream_options
  bool has_metrics = false;     // GET /metrics
  double tokens_per_word = 1.3;
  double prompt_overhead = 0.0;    // tokens of a prompt besides its words
  std::vector<std::string> notes;  // what could not be had, and what that means

  const char* path() const { return options.chat ? "/v1/chat/completions" : "/v1/completions"; }
  /// Words that make so many prompt tokens; at least one.
  int64_t words_of(int32_t tokens, bool with_overhead) const;
};

/// Messages of a conversation; a text completion joins their contents.
struct LoadMessage {
  std::string role;
  std::string content;
};
std::string load_body(const LoadTarget& target,
                      const std::vector<LoadMessage>& messages,
                      int32_t answer_tokens);

/// Throws Error with the server's message when it does not answer at all.
LoadTarget probe_target(const LoadTargetOptions& options);

/// What speculation did so far, from the metrics of known servers.
struct DraftTotals {
  double verify_steps = 0.0;
  double drafted = 0.0;
  double accepted = 0.0;
};
std::optional<DraftTotals> read_draft_totals(const LoadTarget& target);

/// The sum of all series of `name` on a Prometheus page; none: it is not there.
std::optional<double> metric_sum(std::string_view page, std::string_view name);

}  // namespace baleen::apps
