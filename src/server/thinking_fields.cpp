#include "server/thinking_fields.h"

#include <fmt/format.h>

#include "server/generation_fields.h"
#include "server/json_input.h"

namespace baleen::server {

text::EffortField read_effort(FieldReader& fields, std::string_view name) {
  text::EffortField effort{fields.path_of(name), {}};
  const json::value* value = fields.value(name);
  if (value == nullptr) {
    return effort;
  }
  if (value->is_string()) {
    effort.value = std::string(value->get_string());
  } else if (value->is_int64()) {
    effort.value = value->get_int64();
  } else if (value->is_double()) {
    effort.value = value->get_double();
  } else if (value->is_bool()) {
    effort.value = value->get_bool();
  } else {
    fields.fail(name, fmt::format("must be a string or an integer, is {}", json_kind_name(*value)));
  }
  return effort;
}

void read_thinking_object(FieldReader& fields, Conversation& conversation) {
  const json::object* thinking = fields.object("thinking");
  if (thinking == nullptr) {
    return;
  }
  FieldReader inner(*thinking, fields.path_of("thinking"), fields.status());
  inner.require("type");
  conversation.thinking.thinking_type = inner.string("type");
  if (const auto budget = inner.integer("budget_tokens", 1, kMaxInt32)) {
    conversation.thinking_budget = static_cast<int32_t>(*budget);
  }
  inner.only("display", "summarized");
  inner.finish();
}

}  // namespace baleen::server
