#include "train/sft_data.h"

#include <fstream>
#include <initializer_list>
#include <string_view>
#include <utility>

#include <boost/json.hpp>
#include <fmt/format.h>
#include <xxhash.h>

#include "base/error.h"

namespace baleen::train {
namespace {

namespace json = boost::json;
using text::ChatMessage;

/// Thrown while a line is read, caught in encode_line: the line is at fault, not the run.
struct LineFault {
  std::string reason;
};

[[noreturn]] void fault(const std::string& place, std::string_view reason) {
  throw LineFault{place.empty() ? std::string(reason) : fmt::format("{}: {}", place, reason)};
}

void allow_keys(const json::object& object,
                const std::string& place,
                std::initializer_list<std::string_view> keys) {
  for (const auto& field : object) {
    bool known = false;
    for (const std::string_view key : keys) {
      known = known || key == std::string_view(field.key());
    }
    if (!known) {
      fault(place, fmt::format("unknown key \"{}\"", std::string_view(field.key()).substr(0, 100)));
    }
  }
}

std::string text_field(const json::object& object, const std::string& place, const char* key) {
  const json::value* value = object.if_contains(key);
  if (value == nullptr || value->is_null()) {
    return {};
  }
  if (!value->is_string()) {
    fault(place, fmt::format("{} must be a string", key));
  }
  return std::string(value->as_string());
}

std::vector<text::HistoryCall> read_calls(const json::object& message, const std::string& place) {
  std::vector<text::HistoryCall> calls;
  const json::value* list = message.if_contains("tool_calls");
  if (list == nullptr || list->is_null()) {
    return calls;
  }
  if (!list->is_array()) {
    fault(place, "tool_calls must be a list");
  }
  for (const json::value& entry : list->as_array()) {
    const json::object* call = entry.if_object();
    const json::value* inner = call == nullptr ? nullptr : call->if_contains("function");
    const json::object* function = inner == nullptr ? nullptr : inner->if_object();
    if (function == nullptr) {
      fault(place, "a tool call must be an object with a function");
    }
    allow_keys(*call, place + ".tool_calls", {"id", "type", "function"});
    allow_keys(*function, place + ".tool_calls.function", {"name", "arguments"});
    text::HistoryCall made;
    made.id = text_field(*call, place, "id");
    made.name = text_field(*function, place, "name");
    const json::value* arguments = function->if_contains("arguments");
    made.arguments_are_text = arguments == nullptr || arguments->is_string();
    made.arguments = arguments == nullptr     ? "{}"
                     : arguments->is_string() ? std::string(arguments->as_string())
                                              : json::serialize(*arguments);
    calls.push_back(std::move(made));
  }
  return calls;
}

struct Conversation {
  std::vector<ChatMessage> messages;
  std::vector<bool> trained;
};

Conversation read_conversation(const json::object& object) {
  const json::array* list = object.at("messages").if_array();
  if (list == nullptr || list->empty()) {
    fault("messages", "must be a list with at least one message");
  }
  Conversation conversation;
  for (std::size_t i = 0; i < list->size(); ++i) {
    const std::string place = fmt::format("messages[{}]", i);
    const json::object* entry = (*list)[i].if_object();
    if (entry == nullptr) {
      fault(place, "must be an object");
    }
    allow_keys(*entry,
               place,
               {"role", "content", "reasoning_content", "tool_calls", "tool_call_id", "train"});
    ChatMessage message;
    const std::string role = text_field(*entry, place, "role");
    const auto known = text::parse_role(role);
    if (!known) {
      fault(place + ".role", fmt::format("\"{}\" is no role", role.substr(0, 100)));
    }
    message.role = *known;
    message.content = text_field(*entry, place, "content");
    message.reasoning_content = text_field(*entry, place, "reasoning_content");
    message.tool_call_id = text_field(*entry, place, "tool_call_id");
    message.tool_calls = read_calls(*entry, place);
    const json::value* train = entry->if_contains("train");
    if (train != nullptr && !train->is_bool()) {
      fault(place, "train must be true or false");
    }
    conversation.trained.push_back(train == nullptr || train->as_bool());
    conversation.messages.push_back(std::move(message));
  }
  return conversation;
}

/// Declared tools go to the first system message, as those of a request do.
void add_tools(const json::object& object, Conversation& conversation) {
  const json::value* tools = object.if_contains("tools");
  if (tools == nullptr || tools->is_null()) {
    return;
  }
  const json::array* list = tools->if_array();
  if (list == nullptr) {
    fault("tools", "must be a list");
  }
  if (conversation.messages.front().role != text::Role::kSystem) {
    ChatMessage system;
    system.role = text::Role::kSystem;
    conversation.messages.insert(conversation.messages.begin(), std::move(system));
    conversation.trained.insert(conversation.trained.begin(), true);
  }
  for (const json::value& tool : *list) {
    const json::object* entry = tool.if_object();
    const json::value* function = entry == nullptr ? nullptr : entry->if_contains("function");
    if (function == nullptr || !function->is_object()) {
      fault("tools", "a tool must be an object with a function");
    }
    conversation.messages.front().functions.push_back(json::serialize(*function));
  }
}

EncodedSample read_line(const std::string& line,
                        const text::Tokenizer& tokenizer,
                        const ChatSampleOptions& options) {
  json::error_code error;
  const json::value document = json::parse(line, error);
  if (error) {
    fault("", fmt::format("not JSON: {}", error.message()));
  }
  const json::object* object = document.if_object();
  if (object == nullptr) {
    fault("", "must be an object");
  }
  if (object->contains("messages")) {
    allow_keys(*object, "", {"messages", "tools"});
    Conversation conversation = read_conversation(*object);
    add_tools(*object, conversation);
    Result<EncodedSample> sample =
        encode_chat(conversation.messages, conversation.trained, tokenizer, options);
    if (!sample.ok()) {
      fault("", sample.status().message);
    }
    return std::move(sample).value();
  }
  allow_keys(*object, "", {"prompt", "completion"});
  if (!object->contains("completion")) {
    fault("", "has neither messages nor a completion");
  }
  return encode_completion(text_field(*object, "", "prompt"),
                           text_field(*object, "", "completion"),
                           tokenizer,
                           options.other_weight);
}

bool has_target(const EncodedSample& sample) {
  for (std::size_t t = 1; t < sample.weights.size(); ++t) {
    if (sample.weights[t] != 0.0F) {
      return true;
    }
  }
  return false;
}

}  // namespace

std::string BadLine::text() const {
  return fmt::format("{}:{}: {}", file, line, reason);
}

Result<EncodedSample> encode_line(const std::string& line,
                                  const text::Tokenizer& tokenizer,
                                  const ChatSampleOptions& options) {
  try {
    EncodedSample sample = read_line(line, tokenizer, options);
    if (!has_target(sample)) {
      return Status::invalid("no token is trained: there is no message of a trained role");
    }
    return sample;
  } catch (const LineFault& reason) {
    return Status::invalid(reason.reason);
  }
}

SftData SftData::read(const std::vector<std::filesystem::path>& files,
                      const text::Tokenizer& tokenizer,
                      const SftDataOptions& options) {
  SftData data;
  int64_t num_lines = 0;
  for (const std::filesystem::path& path : files) {
    std::ifstream stream(path, std::ios::binary);
    if (!stream) {
      throw SystemError(fmt::format("{}: cannot be read", path.string()));
    }
    std::string line;
    for (int64_t number = 1; std::getline(stream, line); ++number) {
      if (line.find_first_not_of(" \t\r") == std::string::npos) {
        continue;
      }
      ++num_lines;
      Result<EncodedSample> sample = encode_line(line, tokenizer, options.chat);
      const auto length = sample.ok() ? static_cast<int64_t>(sample->ids.size()) : 0;
      if (sample.ok() && length <= options.max_length) {
        data.num_tokens_ += length;
        data.samples_.push_back(std::move(sample).value());
        continue;
      }
      ++data.num_bad_lines_;
      if (static_cast<int64_t>(data.bad_lines_.size()) < options.max_named_lines) {
        data.bad_lines_.push_back(
            {path.string(),
             number,
             sample.ok() ? fmt::format("{} tokens, max_length is {}", length, options.max_length)
                         : sample.status().message});
      }
    }
    if (stream.bad()) {
      throw SystemError(fmt::format("{}: cannot be read to its end", path.string()));
    }
  }
  if (data.num_bad_lines_ > options.max_bad_lines) {
    throw ConfigError(
        fmt::format("{} of {} lines cannot be used, {} allowed by max_bad_lines; the first: {}",
                    data.num_bad_lines_,
                    num_lines,
                    options.max_bad_lines,
                    data.bad_lines_.empty() ? "none is named" : data.bad_lines_.front().text()));
  }
  if (data.samples_.empty()) {
    throw ConfigError(
        fmt::format("{}: no sample to train on", files.empty() ? "data" : files.front().string()));
  }
  for (const EncodedSample& sample : data.samples_) {
    data.digest_ =
        XXH3_64bits_withSeed(sample.ids.data(), sample.ids.size() * sizeof(int32_t), data.digest_);
    data.digest_ = XXH3_64bits_withSeed(
        sample.weights.data(), sample.weights.size() * sizeof(float), data.digest_);
  }
  return data;
}

Sample SftData::sample(int64_t index, int64_t draw) const {
  const EncodedSample& encoded = samples_.at(static_cast<std::size_t>(index));
  return {.number = draw, .ids = encoded.ids, .weights = encoded.weights};
}

}  // namespace baleen::train
