#include "server/logprob_json.h"

#include <algorithm>
#include <array>
#include <string>

#include "text/tokenizer.h"

namespace baleen::server {
namespace {

/// JSON has no infinity; this is what the dialect's clients know as "impossible".
double finite(float logprob) {
  return std::max(static_cast<double>(logprob), -9999.0);
}

std::string token_text(const text::Tokenizer& tokenizer, int32_t id) {
  return tokenizer.decode(std::array{id});
}

json::object entry(const text::Tokenizer& tokenizer, int32_t id, float logprob) {
  json::array bytes;
  for (const char c : tokenizer.token_bytes(id)) {
    bytes.push_back(static_cast<int64_t>(static_cast<unsigned char>(c)));
  }
  return {{"token", token_text(tokenizer, id)}, {"logprob", finite(logprob)}, {"bytes", bytes}};
}

/// Characters that begin in the token's bytes.
int64_t num_characters(std::string_view bytes) {
  return std::count_if(bytes.begin(), bytes.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
  });
}

}  // namespace

json::array token_logprobs(const text::Tokenizer& tokenizer,
                           std::span<const engine::GeneratedToken> tokens) {
  json::array content;
  for (const engine::GeneratedToken& token : tokens) {
    json::object object = entry(tokenizer, token.id, token.logprob);
    json::array top;
    for (const engine::TokenLogprob& other : token.top_logprobs) {
      top.push_back(entry(tokenizer, other.id, other.logprob));
    }
    object["top_logprobs"] = std::move(top);
    content.push_back(std::move(object));
  }
  return content;
}

json::object chat_logprobs(const text::Tokenizer& tokenizer,
                           std::span<const engine::GeneratedToken> tokens) {
  return {{"content", token_logprobs(tokenizer, tokens)}};
}

json::object completion_logprobs(const text::Tokenizer& tokenizer,
                                 std::span<const engine::GeneratedToken> tokens,
                                 int64_t& first_offset) {
  json::array texts;
  json::array logprobs;
  json::array tops;
  json::array offsets;
  for (const engine::GeneratedToken& token : tokens) {
    texts.push_back(json::value(token_text(tokenizer, token.id)));
    logprobs.push_back(finite(token.logprob));
    json::object top;
    for (const engine::TokenLogprob& other : token.top_logprobs) {
      // Two tokens may have one text (parts of a character): the better one is kept.
      top.emplace(token_text(tokenizer, other.id), finite(other.logprob));
    }
    tops.push_back(std::move(top));
    offsets.push_back(first_offset);
    first_offset += num_characters(tokenizer.token_bytes(token.id));
  }
  return {{"tokens", std::move(texts)},
          {"token_logprobs", std::move(logprobs)},
          {"top_logprobs", std::move(tops)},
          {"text_offset", std::move(offsets)}};
}

}  // namespace baleen::server
