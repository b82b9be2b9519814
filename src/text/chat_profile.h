#pragma once
// Which prompt format a checkpoint was trained with, read from its folder; never guessed from a
// name. Called once at start, before any thread.
//
//   ChatProfileChoice choice = choose_chat_profile("models/abacus", flag);
//   log: profile=v4 because=<choice.reason>

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "text/output_stream.h"

namespace baleen::text {

struct ChatProfileChoice {
  ChatProfile profile = ChatProfile::kV4;
  std::string reason;  // for the log: what decided
};

/// First of: `wanted` (the command line), `chat_profile` in generation_config.json, a config.json
/// or an encoder file of V4.1, dspark_* keys in config.json or an encoder file with the 0731 effort
/// text, v4. Throws ConfigError for a name that is no profile and for a file that is not JSON.
ChatProfileChoice choose_chat_profile(const std::filesystem::path& folder,
                                      const std::optional<std::string>& wanted = std::nullopt);

/// v4, v4-0731 or v4.1.
std::string_view chat_profile_name(ChatProfile profile);
std::optional<ChatProfile> parse_chat_profile(std::string_view name);

}  // namespace baleen::text
