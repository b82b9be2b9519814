#pragma once
// Text to token ids and back, as the checkpoint's tokenizer.json says (byte-level BPE). One object
// per process, shared by the server, the engine and every output stream; immutable, any thread.
//
//   auto tokenizer = Tokenizer::load("model/tokenizer.json");
//   std::vector<int32_t> ids = tokenizer->encode("Hello<｜User｜>");  // scanned for added tokens
//   std::string text = tokenizer->decode(ids);
//
// Source: chat format of DeepSeek-V4, tokenizer.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/added_token_set.h"
#include "text/byte_pair_merges.h"
#include "text/pre_tokenizer.h"

namespace baleen::text {

struct TokenizerFile;

inline constexpr std::string_view kBosText = "<｜begin▁of▁sentence｜>";
inline constexpr std::string_view kEosText = "<｜end▁of▁sentence｜>";

/// A stretch of a prompt and who wrote it. Control tokens are read from engine-made pieces only, so
/// that their look-alikes in a user's text stay text.
struct PromptPiece {
  std::string text;
  bool engine_made = false;
  friend bool operator==(const PromptPiece&, const PromptPiece&) = default;
};

class Tokenizer {
 public:
  /// Both throw ConfigError, naming the file and the entry, for a missing or malformed file, for
  /// every kind of tokenizer step or option that this class does not implement, for a byte without
  /// id and for a merge whose parts or result have none.
  static std::shared_ptr<const Tokenizer> load(const std::filesystem::path& file);
  static std::shared_ptr<const Tokenizer> parse(std::string_view json, const std::string& name);
  explicit Tokenizer(TokenizerFile file);

  /// Added tokens are found anywhere in `text`. Bytes that are not UTF-8 are legal: they are
  /// encoded byte by byte, so that the ids still spell the input.
  std::vector<int32_t> encode(std::string_view text) const;
  /// Added tokens are found in engine-made pieces only; all other neighbouring text is joined
  /// before it is cut into words, so that the borders of pieces do not show in the ids.
  std::vector<int32_t> encode(std::span<const PromptPiece> pieces) const;

  /// The text of `ids`, invalid or cut characters as U+FFFD; unknown ids give nothing.
  std::string decode(std::span<const int32_t> ids, bool skip_special = false) const;
  /// What `id` spells; of an added token its literal text, of an id without token nothing.
  std::string_view token_bytes(int32_t id) const;
  bool is_known(int32_t id) const;    // false: a gap or beyond the vocabulary
  bool is_special(int32_t id) const;  // flagged special in the file: BOS, EOS and a few more
  bool is_added(int32_t id) const;    // control tokens and the like

  /// The id whose text is exactly `text`, an added token before an ordinary one.
  std::optional<int32_t> find(std::string_view text) const;
  /// The same, but a missing token is a ConfigError that names it and who needs it.
  int32_t require(std::string_view text, std::string_view needed_by) const;
  int32_t bos_id() const { return bos_id_; }  // -1: the vocabulary has none
  int32_t eos_id() const { return eos_id_; }
  int32_t vocab_size() const { return static_cast<int32_t>(tokens_.size()); }  // largest id + 1

 private:
  struct Token {
    uint64_t begin = 0;  // into bytes_
    uint32_t num_bytes = 0;
    bool known = false;
    bool special = false;
    bool added = false;
  };

  void encode_plain(std::string_view text, std::vector<int32_t>& ids) const;

  std::string file_;
  std::string bytes_;  // texts of all tokens, one after another
  std::vector<Token> tokens_;
  std::vector<int32_t> sorted_;  // ids of ordinary tokens by text, for find()
  AddedTokenSet added_;
  BytePairMerges merges_;
  PreTokenizer chain_;
  int32_t bos_id_ = -1;
  int32_t eos_id_ = -1;
};

}  // namespace baleen::text
