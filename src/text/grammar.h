#pragma once
// Grammars that an answer must follow: which tokens may come next, from a JSON schema, a regular
// expression, an EBNF grammar or a structural tag. The compiler is made once per vocabulary and may
// be used from any thread; a compiled grammar is immutable and shared; a matcher belongs to one
// token stream and one thread.
//
//   GrammarCompiler compiler(*tokenizer, {tokenizer->eos_id()}, vocab_size);
//   Result<std::shared_ptr<const Grammar>> grammar =
//       compiler.compile({GrammarKind::kJsonSchema, R"({"type": "integer"})"});
//   GrammarMatcher matcher(*grammar);
//   matcher.fill_mask(bits);  ... draw ...  matcher.accept(id);
//
// The automata are XGrammar's; nothing outside grammar.cpp knows it.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace baleen::text {

class Tokenizer;

enum class GrammarKind : uint8_t {
  kJsonObject,     // any JSON object; no text
  kJsonSchema,     // a JSON schema; objects get the properties it names, in its order
  kRegex,          // the whole answer matches it
  kEbnf,           // its rule `root`
  kStructuralTag,  // XGrammar's JSON form
};

struct GrammarSpec {
  GrammarKind kind = GrammarKind::kJsonObject;
  std::string text;
  bool with_markup = false;  // the tags of tool calls may be part of the answer
  friend bool operator==(const GrammarSpec&, const GrammarSpec&) = default;
};

class Grammar;

class GrammarCompiler {
 public:
  /// `vocab_size`: of the logits, at least the tokenizer's. Control tokens are never allowed but
  /// for `end_token_ids`, which are once the grammar is complete.
  GrammarCompiler(const Tokenizer& tokenizer,
                  std::vector<int32_t> end_token_ids,
                  int64_t vocab_size);
  ~GrammarCompiler();
  GrammarCompiler(const GrammarCompiler&) = delete;
  GrammarCompiler& operator=(const GrammarCompiler&) = delete;

  /// kInvalidArgument with the reason, without param, for a text that is no such grammar or one
  /// that no answer can satisfy. Compiled grammars are kept for the next request, within bounds.
  Result<std::shared_ptr<const Grammar>> compile(const GrammarSpec& spec) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

class GrammarMatcher {
 public:
  explicit GrammarMatcher(std::shared_ptr<const Grammar> grammar);
  ~GrammarMatcher();
  GrammarMatcher(GrammarMatcher&&) noexcept;
  GrammarMatcher& operator=(GrammarMatcher&&) noexcept;

  /// Sets the bits of the tokens that may come next, 32 per word, and clears all others. `bits`
  /// covers the vocabulary.
  void fill_mask(std::span<uint32_t> bits) const;
  /// Takes the next token. False, and nothing changes, when the grammar forbids it.
  bool accept(int32_t id);
  /// An end token may come, or has come.
  bool complete() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace baleen::text
