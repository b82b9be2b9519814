#pragma once
// Who may call: the key of a request against the configured one. Pure, any thread.
//
//   if (Status status = check_key(request.headers, config.api_key); !status.ok()) ...

#include <string>

#include "base/result.h"
#include "http/message.h"

namespace baleen::server {

/// kUnauthenticated unless `key` is empty or a header carries it: "Authorization: Bearer KEY" or
/// "x-api-key: KEY". The comparison takes the same time wherever the keys differ.
Status check_key(const http::Headers& headers, const std::string& key);

/// The same for paths that control the server. Where there is an `admin_key` it must be that one:
/// kPermissionDenied for a client that has only `key`.
Status check_admin_key(const http::Headers& headers,
                       const std::string& key,
                       const std::string& admin_key);

}  // namespace baleen::server
