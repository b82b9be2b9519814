#include "apps/option_flags.h"

#include <cstddef>
#include <fstream>
#include <iterator>
#include <sstream>
#include <utility>
#include <variant>

#include <toml++/toml.h>

#include "base/error.h"

namespace baleen::apps {
namespace {

std::string flag_name(std::string name) {
  for (char& c : name) {
    c = c == '_' ? '-' : c;
  }
  return name;
}

std::string file_text(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) {
    throw ConfigError("config: " + path + " cannot be opened");
  }
  return {std::istreambuf_iterator<char>(stream), {}};
}

std::string toml_as_json(const std::string& text, const std::string& path) {
  try {
    std::ostringstream out;
    out << toml::json_formatter(toml::parse(text, path));
    return out.str();
  } catch (const toml::parse_error& error) {
    throw ConfigError(path + ":" + std::to_string(error.source().begin.line) + ": " +
                      std::string(error.description()));
  }
}

}  // namespace

OptionFlags::OptionFlags(CLI::App& command, train::OptionList held, const std::string& config_help)
    : held_(std::move(held)) {
  command.add_option("--config", file_, config_help);
  for (const train::Option& option : held_) {
    const std::string flag = "--" + flag_name(option.name);
    if (bool* const* field = std::get_if<bool*>(&option.field)) {
      flags_.push_back(
          command.add_flag(flag + ",!--no-" + flag_name(option.name), **field, option.help));
    } else {
      std::visit(
          [&](auto* value) { flags_.push_back(command.add_option(flag, *value, option.help)); },
          option.field);
    }
  }
}

void OptionFlags::apply(const train::OptionList& to) const {
  for (std::size_t i = 0; i < to.size(); ++i) {
    if (flags_[i]->count() > 0) {
      std::visit([&](auto* target) { *target = *std::get<decltype(target)>(held_[i].field); },
                 to[i].field);
    }
  }
}

void OptionFlags::apply_file(const train::OptionList& to) const {
  if (file_.empty()) {
    return;
  }
  const std::string text = file_text(file_);
  train::read_options(to, file_.ends_with(".toml") ? toml_as_json(text, file_) : text, file_);
}

}  // namespace baleen::apps
