#pragma once
// The files of the page, as they stood when the program was built: everything in web/ and the chart
// library. Their paths carry a hash of all of them, so a browser may keep them for good. Constant,
// any thread. Made by web_files.cmake.
//
//   for (const WebFile& file : web_files()) ...

#include <span>
#include <string_view>

namespace baleen::server {

struct WebFile {
  std::string_view name;  // "app.js"
  std::string_view type;  // media type
  std::string_view text;
};

/// Without index.html.
std::span<const WebFile> web_files();
std::string_view web_index();
std::string_view web_hash();  // 16 hex digits

}  // namespace baleen::server
