#include "text/tool_schema.h"

#include <algorithm>
#include <utility>

#include "text/json_text.h"

namespace baleen::text {

bool ToolSchema::declares(std::string_view parameter) const {
  return std::find(parameters.begin(), parameters.end(), parameter) != parameters.end();
}

ToolSchemas::ToolSchemas(const std::vector<ToolSpec>& tools) {
  for (const ToolSpec& spec : tools) {
    ToolSchema tool;
    tool.name = spec.name;
    int num_strings = 0;
    const auto schema = parse_json(spec.parameters_json);
    const JsonValue* properties = schema ? schema->find("properties") : nullptr;
    if (properties != nullptr) {
      for (const JsonMember& property : properties->members) {
        tool.parameters.push_back(property.key);
        const JsonValue* type = property.value.find("type");
        if (type != nullptr && type->is_string() && type->text == "string") {
          tool.only_string = property.key;
          ++num_strings;
        }
      }
    }
    if (num_strings != 1) {
      tool.only_string.reset();
    }
    tools_.push_back(std::move(tool));
  }
}

const ToolSchema* ToolSchemas::find(std::string_view name) const {
  for (const ToolSchema& tool : tools_) {
    if (tool.name == name) {
      return &tool;
    }
  }
  return nullptr;
}

}  // namespace baleen::text
