// What a request may ask its answer to be. First byte: the kind of grammar; second: seed of the
// walk; then its text. A text is refused with a reason, or gives a grammar along which a walk of
// allowed tokens is never refused.
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/log.h"
#include "fuzz_check.h"
#include "text/grammar.h"
#include "text/tokenizer.h"

namespace baleen::text {
namespace {

constexpr int kWalkTokens = 48;

const Tokenizer& vocabulary() {
  static const auto tokenizer = Tokenizer::load("src/text/testdata/tiny_tokenizer.json");
  return *tokenizer;
}

void walk(std::shared_ptr<const Grammar> grammar, uint8_t seed) {
  GrammarMatcher matcher(std::move(grammar));
  std::minstd_rand random(seed + 1U);
  const auto vocab_size = static_cast<size_t>(vocabulary().vocab_size());
  std::vector<uint32_t> bits((vocab_size + 31) / 32);
  std::vector<int32_t> allowed;
  for (int i = 0; i < kWalkTokens; ++i) {
    matcher.fill_mask(bits);
    allowed.clear();
    for (size_t id = 0; id < vocab_size; ++id) {
      if ((bits[id / 32] >> (id % 32) & 1U) != 0) {
        allowed.push_back(static_cast<int32_t>(id));
      }
    }
    if (allowed.empty()) {
      return;  // the engine ends such an answer with an error
    }
    const int32_t id = allowed[random() % allowed.size()];
    FUZZ_CHECK(matcher.accept(id));
    if (id == vocabulary().eos_id()) {
      FUZZ_CHECK(matcher.complete());
      return;
    }
  }
}

void check(uint8_t kind, uint8_t seed, std::string text) {
  constexpr GrammarKind kKinds[] = {GrammarKind::kJsonSchema,
                                    GrammarKind::kJsonSchema,
                                    GrammarKind::kJsonSchema,
                                    GrammarKind::kRegex,
                                    GrammarKind::kEbnf,
                                    GrammarKind::kStructuralTag};
  // One compiler for many texts, as in a server; a new one now and then bounds its memory.
  static std::unique_ptr<GrammarCompiler> compiler;
  static int num_uses = 0;
  if (compiler == nullptr || ++num_uses % 1000 == 0) {
    compiler = std::make_unique<GrammarCompiler>(
        vocabulary(), std::vector{vocabulary().eos_id()}, vocabulary().vocab_size());
  }
  const GrammarSpec spec{kKinds[kind % std::size(kKinds)], std::move(text)};
  const Result<std::shared_ptr<const Grammar>> grammar = compiler->compile(spec);
  if (!grammar.ok()) {
    FUZZ_CHECK(grammar.status().code == StatusCode::kInvalidArgument);
    FUZZ_CHECK(!grammar.status().message.empty());
    return;
  }
  walk(*grammar, seed);
}

}  // namespace
}  // namespace baleen::text

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  baleen::log::set_level(baleen::log::Level::kWarn);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr size_t kHead = 2;
  if (size <= kHead || size > 2048) {
    return -1;
  }
  baleen::text::check(
      data[0], data[1], std::string(reinterpret_cast<const char*>(data) + kHead, size - kHead));
  return 0;
}
