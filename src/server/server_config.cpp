#include "server/server_config.h"

#include <algorithm>

#include "base/error.h"

namespace baleen::server {

void ServerConfig::validate() const {
  http.validate();
  if (model_name.empty()) {
    throw ConfigError("served-model-name must not be empty");
  }
  const auto is_plain = [](char c) { return c > ' ' && c < 127; };
  if (!std::all_of(api_key.begin(), api_key.end(), is_plain)) {
    throw ConfigError("api-key must be printable ASCII without spaces");
  }
  if (!std::all_of(admin_api_key.begin(), admin_api_key.end(), is_plain)) {
    throw ConfigError("admin-api-key must be printable ASCII without spaces");
  }
  if (drain_timeout.count() < 0) {
    throw ConfigError("drain-timeout must not be negative");
  }
}

const char* chat_profile_name(text::ChatProfile profile) {
  switch (profile) {
    case text::ChatProfile::kV4:
      return "v4";
    case text::ChatProfile::kV4_0731:
      return "v4-0731";
    case text::ChatProfile::kV41:
      return "v4.1";
  }
  return "?";
}

std::optional<text::ChatProfile> parse_chat_profile(std::string_view name) {
  for (const auto profile :
       {text::ChatProfile::kV4, text::ChatProfile::kV4_0731, text::ChatProfile::kV41}) {
    if (name == chat_profile_name(profile)) {
      return profile;
    }
  }
  return std::nullopt;
}

}  // namespace baleen::server
