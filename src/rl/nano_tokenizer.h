#pragma once
// The nano model's 32 tokens as a tokenizer, so that the engine speaks of them as of any other
// model's. Bytes that have no token get ids behind the vocabulary, which the model never draws.
//
//   std::shared_ptr<const text::Tokenizer> tokenizer = nano_tokenizer();

#include <memory>

#include "text/tokenizer.h"

namespace baleen::rl {

std::shared_ptr<const text::Tokenizer> nano_tokenizer();

}  // namespace baleen::rl
