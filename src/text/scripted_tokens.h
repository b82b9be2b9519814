#pragma once
// For tests: a vocabulary made for one script, in which every piece of the script is a token of its
// own, so that a test decides how a stream is cut. The 256 bytes are there as well.
//
//   ScriptedTokens script({"Hi", " there", "<｜end▁of▁sentence｜>"});
//   OutputStream stream(script.tokenizer, config);
//   for (int32_t id : script.ids) stream.push(id, deltas);

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "text/tokenizer.h"
#include "text/tokenizer_file.h"

namespace baleen::text {

struct ScriptedTokens {
  explicit ScriptedTokens(const std::vector<std::string>& pieces) {
    TokenizerFile file;
    file.name = "script";
    for (int32_t byte = 0; byte < 256; ++byte) {
      file.byte_ids[static_cast<size_t>(byte)] = byte;
      file.words.push_back({byte, std::string(1, static_cast<char>(byte)), false});
    }
    for (const std::string& piece : pieces) {
      int32_t id = piece.size() == 1 ? static_cast<uint8_t>(piece[0]) : -1;
      for (const TokenizerFile::Entry& entry : file.added) {
        id = entry.bytes == piece ? entry.id : id;
      }
      if (id < 0) {
        id = 256 + static_cast<int32_t>(file.added.size());
        file.added.push_back({id, piece, piece == kBosText || piece == kEosText});
      }
      ids.push_back(id);
    }
    tokenizer = std::make_shared<const Tokenizer>(std::move(file));
  }

  std::shared_ptr<const Tokenizer> tokenizer;
  std::vector<int32_t> ids;
};

/// `text` cut into pieces of `num_characters` each.
inline std::vector<std::string> cut_characters(std::string_view text, size_t num_characters) {
  std::vector<std::string> pieces;
  size_t count = 0;
  for (const char c : text) {
    const bool begins_character = (static_cast<uint8_t>(c) & 0xC0U) != 0x80U;
    if (begins_character && count++ % num_characters == 0) {
      pieces.emplace_back();
    }
    pieces.back() += c;
  }
  return pieces;
}

}  // namespace baleen::text
