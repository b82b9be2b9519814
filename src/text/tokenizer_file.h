#pragma once
// What a tokenizer.json says, checked: the options that Baleen implements are taken, every other
// one is refused by name. Used by Tokenizer only.
//
//   TokenizerFile file = parse_tokenizer_file(json, "model/tokenizer.json");

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/byte_pair_merges.h"

namespace baleen::text {

struct TokenizerFile {
  struct Entry {
    int32_t id = -1;
    std::string bytes;
    bool special = false;
  };
  std::string name;          // for messages
  std::vector<Entry> words;  // ordinary tokens
  std::vector<Entry> added;  // added tokens; their bytes are the literal text
  std::array<int32_t, 256> byte_ids{};
  std::vector<MergeRule> merges;      // in rank order
  std::vector<std::string> patterns;  // of the pre-tokenizer chain, in order
};

/// Throws ConfigError.
TokenizerFile parse_tokenizer_file(std::string_view json, const std::string& name);

}  // namespace baleen::text
