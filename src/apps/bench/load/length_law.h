#pragma once
// How many tokens the prompts and answers of a load have: a law with a text form, drawn from a
// seeded generator. A value; one thread.
//
//   LengthLaw law = LengthLaw::parse("100-300", "--prompt-tokens");
//   int32_t tokens = law.draw(generator);

#include <cstdint>
#include <random>
#include <string>
#include <string_view>

namespace baleen::apps {

class LengthLaw {
 public:
  /// "512": always; "100-300": evenly; "normal:MEAN:DEVIATION"; "lognormal:MEDIAN:SIGMA", with
  /// sigma of the natural logarithm; "exponential:MEAN". Throws ConfigError naming `flag`.
  static LengthLaw parse(std::string_view text, std::string_view flag);
  static constexpr const char* kForms =
      "N, A-B, normal:MEAN:DEVIATION, lognormal:MEDIAN:SIGMA or exponential:MEAN";

  LengthLaw() = default;

  /// At least 1.
  int32_t draw(std::mt19937_64& generator) const;
  const std::string& text() const { return text_; }

 private:
  enum class Kind : uint8_t { kFixed, kUniform, kNormal, kLognormal, kExponential };
  Kind kind_ = Kind::kFixed;
  double first_ = 1.0;   // N, A, mean or median
  double second_ = 0.0;  // B, deviation or sigma
  std::string text_ = "1";
};

}  // namespace baleen::apps
