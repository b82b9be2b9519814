#pragma once
// Log-probs of generated tokens in the two forms of the OpenAI dialect. Pure, any thread.
//
//   choice["logprobs"] = chat_logprobs(tokenizer, tokens);

#include <span>

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>

#include "engine/request.h"

namespace baleen::text {
class Tokenizer;
}  // namespace baleen::text

namespace baleen::server {

namespace json = boost::json;

/// [{token, logprob, bytes, top_logprobs}], as in output_text of Responses.
json::array token_logprobs(const text::Tokenizer& tokenizer,
                           std::span<const engine::GeneratedToken> tokens);

/// choices[].logprobs of chat completions: {content: token_logprobs()}.
json::object chat_logprobs(const text::Tokenizer& tokenizer,
                           std::span<const engine::GeneratedToken> tokens);

/// choices[].logprobs of text completions: tokens, token_logprobs, top_logprobs, text_offset.
/// `first_offset` is the place of the first token in the answer, in characters; it is moved on.
json::object completion_logprobs(const text::Tokenizer& tokenizer,
                                 std::span<const engine::GeneratedToken> tokens,
                                 int64_t& first_offset);

}  // namespace baleen::server
