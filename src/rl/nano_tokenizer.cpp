#include "rl/nano_tokenizer.h"

#include <array>
#include <cstdint>
#include <string>

#include <fmt/format.h>

#include "text/tokenizer_file.h"
#include "train/sort_task.h"

namespace baleen::rl {
namespace {

constexpr int32_t kVocabulary = 32;
constexpr int32_t kFirstReserved = 18;

}  // namespace

std::shared_ptr<const text::Tokenizer> nano_tokenizer() {
  text::TokenizerFile file;
  file.name = "nano";
  file.byte_ids.fill(-1);
  for (const char c : std::string("s=+-*0123456789")) {
    const int32_t id = train::sort_ids(std::string(1, c)).front();
    file.byte_ids[static_cast<uint8_t>(c)] = id;
    file.words.push_back({id, std::string(1, c), false});
  }
  int32_t next = kVocabulary;
  for (std::size_t byte = 0; byte < file.byte_ids.size(); ++byte) {
    if (file.byte_ids[byte] < 0) {
      file.byte_ids[byte] = next;
      file.words.push_back({next++, std::string(1, static_cast<char>(byte)), false});
    }
  }
  file.added.push_back({0, std::string(text::kBosText), true});
  file.added.push_back({1, std::string(text::kEosText), true});
  file.added.push_back({2, "<pad>", true});
  for (int32_t id = kFirstReserved; id < kVocabulary; ++id) {
    file.added.push_back({id, fmt::format("<reserved {}>", id), true});
  }
  return std::make_shared<const text::Tokenizer>(std::move(file));
}

}  // namespace baleen::rl
