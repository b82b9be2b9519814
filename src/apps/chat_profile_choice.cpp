#include "apps/chat_profile_choice.h"

#include <fstream>
#include <iterator>
#include <string_view>
#include <system_error>

#include <fmt/format.h>

#include "base/error.h"
#include "text/chat_markup.h"
#include "text/chat_prompt_texts.h"

namespace baleen::apps {
namespace {

using text::ChatProfile;

ChatProfileChoice named(const std::string& name, std::string reason) {
  if (name == "v4") {
    return {ChatProfile::kV4, name, std::move(reason)};
  }
  if (name == "v4-0731") {
    return {ChatProfile::kV4_0731, name, std::move(reason)};
  }
  if (name == "v4.1") {
    return {ChatProfile::kV41, name, std::move(reason)};
  }
  throw ConfigError(fmt::format("unknown chat profile \"{}\": expected v4, v4-0731 or v4.1", name));
}

/// The profile whose own words an encoder program holds; none for preview encoders.
std::optional<std::string> profile_of_encoder(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  const std::string source{std::istreambuf_iterator<char>(stream), {}};
  if (source.find(text::kSystemText) != std::string::npos) {
    return "v4.1";
  }
  const std::string_view longest =
      text::effort_text(ChatProfile::kV4_0731, {text::EffortLevel::kMax, 0});
  if (source.find(longest.substr(0, longest.find('\n'))) != std::string::npos) {
    return "v4-0731";
  }
  return std::nullopt;
}

}  // namespace

ChatProfileChoice choose_chat_profile(const std::filesystem::path& folder,
                                      const std::optional<std::string>& declared,
                                      bool has_dspark_keys,
                                      const std::string& asked) {
  if (!asked.empty()) {
    return named(asked, "asked for by flag");
  }
  if (declared) {
    return named(*declared, "chat_profile in generation_config.json");
  }
  for (const auto& place : {folder, folder / "encoding"}) {
    std::error_code error;
    for (std::filesystem::directory_iterator it(place, error), end; !error && it != end;
         it.increment(error)) {
      if (it->path().extension() != ".py") {
        continue;
      }
      if (const auto name = profile_of_encoder(it->path())) {
        return named(*name, "encoder file " + it->path().filename().string());
      }
    }
  }
  if (has_dspark_keys) {
    return named("v4-0731", "dspark keys in config.json");
  }
  return named("v4", "default");
}

}  // namespace baleen::apps
