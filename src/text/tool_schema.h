#pragma once
// What the output parser needs to know of a request's tools: which names exist, which parameters a
// tool declares, and which of them is its only string. Immutable, any thread.
//
//   ToolSchemas schemas(config.tools);
//   const ToolSchema* tool = schemas.find("get_weather");  // null: not in the request

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/output_stream.h"

namespace baleen::text {

struct ToolSchema {
  std::string name;
  std::vector<std::string> parameters;     // declared names
  std::optional<std::string> only_string;  // the parameter of type string, if there is just one

  bool declares(std::string_view parameter) const;
};

class ToolSchemas {
 public:
  /// A schema that is not an object with `properties` declares nothing.
  explicit ToolSchemas(const std::vector<ToolSpec>& tools);

  const ToolSchema* find(std::string_view name) const;

 private:
  std::vector<ToolSchema> tools_;
};

}  // namespace baleen::text
