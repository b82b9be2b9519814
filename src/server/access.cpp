#include "server/access.h"

#include <string_view>

namespace baleen::server {
namespace {

constexpr std::string_view kScheme = "bearer ";

bool has_scheme(std::string_view header) {
  if (header.size() < kScheme.size()) {
    return false;
  }
  for (size_t i = 0; i < kScheme.size(); ++i) {
    const char c = header[i];
    if ((c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c) != kScheme[i]) {
      return false;
    }
  }
  return true;
}

bool equal_in_constant_time(std::string_view given, std::string_view key) {
  unsigned difference = given.size() == key.size() ? 0U : 1U;
  for (size_t i = 0; i < given.size(); ++i) {
    difference |= static_cast<unsigned char>(given[i]) ^
                  static_cast<unsigned>(static_cast<unsigned char>(key[i % key.size()]));
  }
  return difference == 0;
}

}  // namespace

Status check_key(const http::Headers& headers, const std::string& key) {
  if (key.empty()) {
    return {};
  }
  const std::string* bearer = headers.find("Authorization");
  const std::string* plain = headers.find("x-api-key");
  if (bearer == nullptr && plain == nullptr) {
    return {StatusCode::kUnauthenticated,
            "an API key is needed: send the header \"Authorization: Bearer KEY\"",
            {},
            "missing_api_key"};
  }
  // Clients of one dialect may send both, one of them made up.
  const bool bearer_fits =
      bearer != nullptr && has_scheme(*bearer) &&
      equal_in_constant_time(std::string_view(*bearer).substr(kScheme.size()), key);
  if (!bearer_fits && (plain == nullptr || !equal_in_constant_time(*plain, key))) {
    return {StatusCode::kUnauthenticated, "the API key is wrong", {}, "invalid_api_key"};
  }
  return {};
}

Status check_admin_key(const http::Headers& headers,
                       const std::string& key,
                       const std::string& admin_key) {
  if (admin_key.empty()) {
    return check_key(headers, key);
  }
  Status status = check_key(headers, admin_key);
  if (!status.ok() && !key.empty() && check_key(headers, key).ok()) {
    return {StatusCode::kPermissionDenied, "this path needs the admin API key", {}, {}};
  }
  return status;
}

}  // namespace baleen::server
