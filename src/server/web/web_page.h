#pragma once
// Serves the page: GET / and its files below /assets/. No key is asked for: the files hold nothing
// that is not in the program. A strict policy forbids them everything but this server.
//
//   add_web_page(router);

#include <string_view>

#include "http/message.h"

namespace baleen::server {

void add_web_page(http::Router& router);

/// What the page may do, as the Content-Security-Policy header says it.
std::string_view web_policy();

}  // namespace baleen::server
