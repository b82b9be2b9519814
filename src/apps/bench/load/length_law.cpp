#include "apps/bench/load/length_law.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"

namespace baleen::apps {
namespace {

constexpr double kMostTokens = 1 << 24;

std::optional<double> length_number(std::string_view text) {
  double value = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value >= 0.0) ||
      value > kMostTokens) {
    return std::nullopt;
  }
  return value;
}

std::vector<std::string_view> split_law(std::string_view text, char mark) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t at = text.find(mark);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) {
      return parts;
    }
    text.remove_prefix(at + 1);
  }
}

}  // namespace

LengthLaw LengthLaw::parse(std::string_view text, std::string_view flag) {
  LengthLaw law;
  law.text_ = text;
  std::vector<std::string_view> parts = split_law(text, ':');
  size_t num_numbers = 2;
  if (parts.size() == 1) {
    parts = split_law(text, '-');
    law.kind_ = parts.size() == 2 ? Kind::kUniform : Kind::kFixed;
    num_numbers = parts.size();
  } else {
    const std::string_view name = parts.front();
    parts.erase(parts.begin());
    if (name == "normal") {
      law.kind_ = Kind::kNormal;
    } else if (name == "lognormal") {
      law.kind_ = Kind::kLognormal;
    } else if (name == "exponential") {
      law.kind_ = Kind::kExponential;
      num_numbers = 1;
    } else {
      num_numbers = 0;
    }
  }
  std::vector<double> numbers;
  for (const std::string_view part : parts) {
    if (const std::optional<double> number = length_number(part)) {
      numbers.push_back(*number);
    }
  }
  const bool fits = num_numbers >= 1 && num_numbers <= 2 && numbers.size() == num_numbers &&
                    parts.size() == num_numbers && numbers[0] >= 1.0 &&
                    (law.kind_ != Kind::kUniform || numbers[1] >= numbers[0]);
  if (!fits) {
    throw ConfigError(fmt::format("{}: \"{}\" is no length; write {}", flag, text, kForms));
  }
  law.first_ = numbers[0];
  law.second_ = num_numbers == 2 ? numbers[1] : 0.0;
  return law;
}

int32_t LengthLaw::draw(std::mt19937_64& generator) const {
  double tokens = first_;
  switch (kind_) {
    case Kind::kFixed:
      break;
    case Kind::kUniform:
      tokens = std::floor(std::uniform_real_distribution<double>(first_, second_ + 1.0)(generator));
      tokens = std::min(tokens, second_);
      break;
    case Kind::kNormal:
      tokens = first_ + second_ * std::normal_distribution<double>()(generator);
      break;
    case Kind::kLognormal:
      tokens = first_ * std::exp(second_ * std::normal_distribution<double>()(generator));
      break;
    case Kind::kExponential:
      tokens = std::exponential_distribution<double>(1.0 / first_)(generator);
      break;
  }
  return static_cast<int32_t>(std::clamp(std::round(tokens), 1.0, kMostTokens));
}

}  // namespace baleen::apps
