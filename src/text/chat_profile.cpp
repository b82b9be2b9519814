#include "text/chat_profile.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "text/chat_markup.h"
#include "text/json_text.h"

namespace baleen::text {
namespace {

namespace fs = std::filesystem;

constexpr std::array<ChatProfile, 3> kProfiles = {
    ChatProfile::kV4, ChatProfile::kV4_0731, ChatProfile::kV41};

/// How the 528-byte effort text begins; source code may break or escape the rest.
constexpr std::string_view kBeyondMaximumHead = "Reasoning Effort: Beyond maximum";
/// The system token as Python source may spell it.
constexpr std::string_view kEscapedSystemText = "<\\uff5cSystem\\uff5c>";

std::string read_file(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  if (!stream) {
    throw ConfigError(fmt::format("{}: cannot be opened", file.string()));
  }
  return {std::istreambuf_iterator<char>(stream), {}};
}

/// The object in `file`; an empty one when there is no such file.
JsonValue read_object(const fs::path& file) {
  if (!fs::exists(file)) {
    return {};
  }
  std::string error;
  auto value = parse_json(read_file(file), &error);
  if (!value) {
    throw ConfigError(fmt::format("{}: not JSON: {}", file.string(), error));
  }
  return std::move(*value);
}

ChatProfile profile_named(const std::string& name, const std::string& where) {
  const auto profile = parse_chat_profile(name);
  if (!profile) {
    throw ConfigError(
        fmt::format("{}: '{}' is no chat profile; expected v4, v4-0731 or v4.1", where, name));
  }
  return *profile;
}

/// deepseek_v41, deepseek_v4.1 and the like.
bool is_v41_type(std::string type) {
  std::erase_if(type, [](char c) { return c == '_' || c == '-' || c == '.'; });
  return type.starts_with("deepseekv41");
}

/// Python files in the folder and in its `encoding` folder, in the order of their names.
std::vector<fs::path> encoder_files(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const fs::path& place : {folder, folder / "encoding"}) {
    if (fs::is_directory(place)) {
      for (const auto& entry : fs::directory_iterator(place)) {
        if (entry.is_regular_file() && entry.path().extension() == ".py") {
          files.push_back(entry.path());
        }
      }
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

std::string_view chat_profile_name(ChatProfile profile) {
  switch (profile) {
    case ChatProfile::kV4_0731:
      return "v4-0731";
    case ChatProfile::kV41:
      return "v4.1";
    default:
      return "v4";
  }
}

std::optional<ChatProfile> parse_chat_profile(std::string_view name) {
  for (const ChatProfile profile : kProfiles) {
    if (chat_profile_name(profile) == name) {
      return profile;
    }
  }
  return std::nullopt;
}

ChatProfileChoice choose_chat_profile(const fs::path& folder,
                                      const std::optional<std::string>& wanted) {
  if (wanted) {
    return {profile_named(*wanted, "--chat-profile"), "--chat-profile"};
  }
  const fs::path generation_file = folder / "generation_config.json";
  const JsonValue generation = read_object(generation_file);
  if (const JsonValue* name = generation.find("chat_profile")) {
    const std::string where = generation_file.string() + ": chat_profile";
    return {profile_named(name->text, where), "chat_profile in generation_config.json"};
  }
  const JsonValue config = read_object(folder / "config.json");
  const JsonValue* type = config.find("model_type");
  if (type != nullptr && is_v41_type(type->text)) {
    return {ChatProfile::kV41, "model_type " + type->text + " in config.json"};
  }
  std::string reason_0731;
  for (const JsonMember& member : config.members) {
    if (member.key.starts_with("dspark_") && reason_0731.empty()) {
      reason_0731 = member.key + " in config.json";
    }
  }
  for (const fs::path& file : encoder_files(folder)) {
    const std::string source = read_file(file);
    const std::string name = fs::relative(file, folder).string();
    if (source.find(kSystemText) != std::string::npos ||
        source.find(kEscapedSystemText) != std::string::npos) {
      return {ChatProfile::kV41, "the system token in " + name};
    }
    if (source.find(kBeyondMaximumHead) != std::string::npos && reason_0731.empty()) {
      reason_0731 = "the effort text in " + name;
    }
  }
  if (!reason_0731.empty()) {
    return {ChatProfile::kV4_0731, reason_0731};
  }
  return {ChatProfile::kV4, "nothing in the checkpoint names a later one"};
}

}  // namespace baleen::text
