#pragma once
// Which prompt format a checkpoint wants, and why. Never guessed from its name. Used at start.
//
//   ChatProfileChoice choice = choose_chat_profile(folder, generation, has_dspark_keys, "");
//   log::info("apps", "chat profile={} reason=\"{}\"", choice.name, choice.reason);

#include <filesystem>
#include <optional>
#include <string>

#include "text/output_stream.h"

namespace baleen::apps {

struct ChatProfileChoice {
  text::ChatProfile profile = text::ChatProfile::kV4;
  std::string name;    // v4, v4-0731 or v4.1
  std::string reason;  // for the log
};

/// First that applies: `asked` (a flag; empty: none), `declared` (chat_profile of
/// generation_config.json), the folder's encoder file, dspark_* keys in config.json, v4.
/// Throws ConfigError for an unknown name.
ChatProfileChoice choose_chat_profile(const std::filesystem::path& folder,
                                      const std::optional<std::string>& declared,
                                      bool has_dspark_keys,
                                      const std::string& asked);

}  // namespace baleen::apps
