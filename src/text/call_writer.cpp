#include "text/call_writer.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "text/json_text.h"

namespace baleen::text {
namespace {

/// `raw` with the control characters inside its JSON strings escaped: what a model that writes code
/// into a list of texts forgets.
std::string escape_controls(std::string_view raw) {
  std::string out;
  bool in_string = false;
  for (size_t i = 0; i < raw.size(); ++i) {
    const char c = raw[i];
    if (in_string && static_cast<unsigned char>(c) < 0x20U) {
      append_json_escaped(out, raw.substr(i, 1));
      continue;
    }
    out += c;
    if (in_string && c == '\\' && i + 1 < raw.size()) {
      out += raw[++i];
    } else if (c == '"') {
      in_string = !in_string;
    }
  }
  return out;
}

/// A value that claims to be JSON, inserted as it is; if it is not, it was a string.
std::string checked_json(const std::string& raw) {
  if (parse_json(raw)) {
    return raw;
  }
  std::string mended = escape_controls(raw);
  return parse_json(mended) ? mended : json_string(raw);
}

}  // namespace

CallWriter::CallWriter(const ToolSchema& tool, Sink sink) : tool_(tool), sink_(std::move(sink)) {}

void CallWriter::send(std::string_view fragment) {
  if (!name_sent_) {
    name_sent_ = true;
    sink_(OutputPart::kToolCallBegin, tool_.name);
  }
  if (!fragment.empty()) {
    sink_(OutputPart::kToolCallArguments, fragment);
  }
}

void CallWriter::send_key() {
  send((parameters_.empty() ? "{" : ", ") + json_string(key_) + ": ");
}

void CallWriter::settle_wrapper_as_parameter() {
  wrapper_held_ = false;
  std::string json = is_string_ ? json_string(raw_) : checked_json(raw_);
  send_key();
  send(json);
  parameters_.push_back({std::move(key_), std::move(json)});
}

void CallWriter::begin_parameter(std::string key, bool is_string) {
  if (wrapper_held_) {
    settle_wrapper_as_parameter();
  }
  key_ = std::move(key);
  is_string_ = is_string;
  raw_.clear();
  json_.clear();
  wrapper_held_ =
      parameters_.empty() && (key_ == "arguments" || key_ == "input") && !tool_.declares(key_);
  if (is_string_ && !wrapper_held_) {
    send_key();
    json_ = "\"";
    send(json_);
  }
}

void CallWriter::value(std::string_view text) {
  if (!is_string_ || wrapper_held_) {
    raw_ += text;
    return;
  }
  std::string escaped;
  append_json_escaped(escaped, text);
  json_ += escaped;
  send(escaped);
}

void CallWriter::end_parameter() {
  if (wrapper_held_) {
    return;
  }
  if (is_string_) {
    json_ += '"';
    send("\"");
  } else {
    json_ = checked_json(raw_);
    send_key();
    send(json_);
  }
  parameters_.push_back({std::move(key_), std::move(json_)});
}

std::string CallWriter::close_with(std::string_view json_object) {
  send(json_object);
  return std::string(json_object);
}

std::string CallWriter::close() {
  if (wrapper_held_) {
    const auto wrapped = parse_json(raw_);
    if (wrapped && wrapped->is_object()) {
      return close_with(raw_);
    }
    if (tool_.only_string) {
      key_ = *tool_.only_string;
      is_string_ = true;
    }
    settle_wrapper_as_parameter();
  }
  send(parameters_.empty() ? "{}" : "}");

  // Of a parameter given twice the last value holds, at the place of the first.
  std::unordered_map<std::string, size_t> place_of;
  std::vector<const Parameter*> kept;
  for (const Parameter& parameter : parameters_) {
    const auto [place, is_new] = place_of.emplace(parameter.key, kept.size());
    if (is_new) {
      kept.push_back(&parameter);
    } else {
      kept[place->second] = &parameter;
    }
  }
  std::string arguments = "{";
  for (const Parameter* parameter : kept) {
    arguments += arguments.size() > 1 ? ", " : "";
    arguments += json_string(parameter->key) + ": " + parameter->json;
  }
  return arguments + "}";
}

}  // namespace baleen::text
