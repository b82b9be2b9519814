#pragma once
// Who may call: the Bearer key of a request against the configured one. Pure, any thread.
//
//   if (Status status = check_key(request.headers, config.api_key); !status.ok()) ...

#include <string>

#include "base/result.h"
#include "http/message.h"

namespace baleen::server {

/// kUnauthenticated unless `key` is empty or the Authorization header carries it. The comparison
/// takes the same time wherever the keys differ.
Status check_key(const http::Headers& headers, const std::string& key);

}  // namespace baleen::server
