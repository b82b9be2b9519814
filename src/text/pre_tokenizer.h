#pragma once
// Cuts text into the pieces inside which BPE works: a chain of regular expressions, each applied to
// every piece the one before left; matches and the text between them become pieces. Look-ahead
// never sees beyond the current piece. Immutable after construction, any thread.
//
//   PreTokenizer chain(patterns, "tokenizer.json");
//   chain.split(text, [&](std::string_view piece) { ... });

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace baleen::text {

class PreTokenizer {
 public:
  /// Throws ConfigError naming `file` and the pattern when one cannot be compiled, can match an
  /// empty string, or uses what the rewriting below does not cover.
  PreTokenizer(const std::vector<std::string>& patterns, const std::string& file);
  ~PreTokenizer();
  PreTokenizer(PreTokenizer&&) noexcept;
  PreTokenizer& operator=(PreTokenizer&&) noexcept;

  /// `text` is valid UTF-8. Calls `take` with the pieces in order; they cover the text.
  void split(std::string_view text, const std::function<void(std::string_view)>& take) const;

 private:
  struct Pattern;
  std::vector<std::unique_ptr<Pattern>> patterns_;
};

/// `pattern` with \s and \S spelled out: the class of PCRE2 also has U+180E, which the regular
/// expressions that the vocabulary was made with do not. Empty when \S stands inside a class.
std::string spell_out_white_space(std::string_view pattern);

}  // namespace baleen::text
