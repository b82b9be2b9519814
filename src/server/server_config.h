#pragma once
// All settings of the API server. Filled once by the program from flags, then only read.
//
//   ServerConfig config;
//   config.http.port = 0;
//   config.validate();

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "http/server.h"
#include "server/weight_streams.h"
#include "text/output_stream.h"

namespace baleen::server {

struct ServerConfig {
  http::ServerConfig http;
  std::string model_name;     // what /v1/models shows and requests name
  std::string model_path;     // "root" of the model card
  std::string api_key;        // empty: no key is asked for
  std::string admin_api_key;  // asked for by paths that control; empty: api_key is
  std::string version;        // of the program, for /server_info
  std::chrono::milliseconds health_timeout{20'000};  // /health_generate
  size_t max_stored_responses = 1000;                // of /v1/responses
  bool default_thinking = false;
  text::ChatProfile chat_profile = text::ChatProfile::kV4;
  std::chrono::milliseconds drain_timeout{30'000};  // for requests in progress at shutdown
  std::shared_ptr<WeightStreams> weight_streams;    // shared with the program; null: 404

  void validate() const;  // throws ConfigError
};

/// v4, v4-0731, v4.1: as flags and the model card write it.
const char* chat_profile_name(text::ChatProfile profile);
std::optional<text::ChatProfile> parse_chat_profile(std::string_view name);

}  // namespace baleen::server
