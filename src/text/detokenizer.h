#pragma once
// From the bytes of one token after another to text that is valid UTF-8 at every step: a character
// that is not complete yet is held back, bytes that cannot become one give U+FFFD at once. One
// object per token stream, one thread.
//
//   Detokenizer detokenizer;
//   detokenizer.push(tokenizer.token_bytes(id), text);  // appends whole characters to `text`
//   detokenizer.flush(text);                            // at the end: U+FFFD for a cut character

#include <string>
#include <string_view>

namespace baleen::text {

class Detokenizer {
 public:
  void push(std::string_view token_bytes, std::string& out);
  void flush(std::string& out);

 private:
  std::string held_;  // at most 3 bytes: the beginning of a character
};

}  // namespace baleen::text
