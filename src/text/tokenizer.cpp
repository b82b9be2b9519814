#include "text/tokenizer.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "text/tokenizer_file.h"
#include "text/utf8.h"

namespace baleen::text {

std::shared_ptr<const Tokenizer> Tokenizer::load(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  if (!stream) {
    throw ConfigError(fmt::format("{}: cannot be opened", file.string()));
  }
  const std::string json{std::istreambuf_iterator<char>(stream), {}};
  return parse(json, file.string());
}

std::shared_ptr<const Tokenizer> Tokenizer::parse(std::string_view json, const std::string& name) {
  return std::make_shared<const Tokenizer>(parse_tokenizer_file(json, name));
}

Tokenizer::Tokenizer(TokenizerFile file)
    : file_(file.name), merges_(file.byte_ids, file.merges), chain_(file.patterns, file.name) {
  const auto add = [&](const TokenizerFile::Entry& entry, bool added) {
    const auto index = static_cast<size_t>(entry.id);
    if (index >= tokens_.size()) {
      tokens_.resize(index + 1);
    }
    if (tokens_[index].known) {
      throw ConfigError(fmt::format("{}: id {} stands for two tokens, one is '{}'",
                                    file_,
                                    entry.id,
                                    utf8_lossy(entry.bytes)));
    }
    tokens_[index] = {
        bytes_.size(), static_cast<uint32_t>(entry.bytes.size()), true, entry.special, added};
    bytes_ += entry.bytes;
  };
  std::vector<std::pair<std::string, int32_t>> added;
  for (const TokenizerFile::Entry& entry : file.words) {
    add(entry, false);
    sorted_.push_back(entry.id);
  }
  for (const TokenizerFile::Entry& entry : file.added) {
    add(entry, true);
    added.emplace_back(entry.bytes, entry.id);
  }
  std::sort(sorted_.begin(), sorted_.end(), [&](int32_t a, int32_t b) {
    return token_bytes(a) < token_bytes(b);
  });
  added_ = AddedTokenSet(std::move(added));
  bos_id_ = find(kBosText).value_or(-1);
  eos_id_ = find(kEosText).value_or(-1);
}

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<int32_t> ids;
  size_t done = 0;
  while (const auto match = added_.find(text, done)) {
    encode_plain(text.substr(done, match->begin - done), ids);
    ids.push_back(match->id);
    done = match->begin + match->num_bytes;
  }
  encode_plain(text.substr(done), ids);
  return ids;
}

std::vector<int32_t> Tokenizer::encode(std::span<const PromptPiece> pieces) const {
  std::vector<int32_t> ids;
  std::string plain;  // text since the last control token
  for (const PromptPiece& piece : pieces) {
    const std::string_view text = piece.text;
    size_t done = 0;
    if (piece.engine_made) {
      while (const auto match = added_.find(text, done)) {
        plain += text.substr(done, match->begin - done);
        encode_plain(plain, ids);
        plain.clear();
        ids.push_back(match->id);
        done = match->begin + match->num_bytes;
      }
    }
    plain += text.substr(done);
  }
  encode_plain(plain, ids);
  return ids;
}

void Tokenizer::encode_plain(std::string_view text, std::vector<int32_t>& ids) const {
  const auto encode_piece = [&](std::string_view piece) { merges_.encode(piece, ids); };
  size_t valid_begin = 0;
  size_t i = 0;
  while (i < text.size()) {
    const Utf8Step step = utf8_step(text.substr(i));
    if (step.kind != Utf8Kind::kCharacter) {
      chain_.split(text.substr(valid_begin, i - valid_begin), encode_piece);
      encode_piece(text.substr(i, step.num_bytes));
      valid_begin = i + step.num_bytes;
    }
    i += step.num_bytes;
  }
  chain_.split(text.substr(valid_begin), encode_piece);
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string bytes;
  for (const int32_t id : ids) {
    if (!(skip_special && is_special(id))) {
      bytes += token_bytes(id);
    }
  }
  return utf8_lossy(bytes);
}

std::string_view Tokenizer::token_bytes(int32_t id) const {
  if (!is_known(id)) {
    return {};
  }
  const Token& token = tokens_[static_cast<size_t>(id)];
  return std::string_view(bytes_).substr(token.begin, token.num_bytes);
}

bool Tokenizer::is_known(int32_t id) const {
  return id >= 0 && id < vocab_size() && tokens_[static_cast<size_t>(id)].known;
}

bool Tokenizer::is_special(int32_t id) const {
  return is_known(id) && tokens_[static_cast<size_t>(id)].special;
}

bool Tokenizer::is_added(int32_t id) const {
  return is_known(id) && tokens_[static_cast<size_t>(id)].added;
}

std::optional<int32_t> Tokenizer::find(std::string_view text) const {
  if (const auto match = added_.find(text, 0);
      match && match->begin == 0 && match->num_bytes == text.size()) {
    return match->id;
  }
  const auto place = std::partition_point(
      sorted_.begin(), sorted_.end(), [&](int32_t id) { return token_bytes(id) < text; });
  if (place != sorted_.end() && token_bytes(*place) == text) {
    return *place;
  }
  return std::nullopt;
}

int32_t Tokenizer::require(std::string_view text, std::string_view needed_by) const {
  const auto id = find(text);
  if (!id) {
    throw ConfigError(
        fmt::format("{}: the token '{}' is missing; {} needs it", file_, text, needed_by));
  }
  return *id;
}

}  // namespace baleen::text
