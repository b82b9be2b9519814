#include "text/grammar.h"

#include <algorithm>
#include <exception>
#include <stdexcept>
#include <utility>

#include <xgrammar/compiler.h>
#include <xgrammar/matcher.h>

#include "base/check.h"
#include "base/log.h"
#include "text/chat_markup.h"
#include "text/tokenizer.h"

// XGrammar's reports, as its build for this project leaves them to us.
namespace xgrammar {

[[noreturn]] void LogFatalImpl(const std::string&, int, const std::string& message);
void LogMessageImpl(const std::string&, int, int, const std::string& message);

void LogFatalImpl(const std::string&, int, const std::string& message) {
  throw std::runtime_error(message);
}

void LogMessageImpl(const std::string&, int, int, const std::string& message) {
  baleen::log::debug("text", "grammar_note message=\"{}\"", message);
}

}  // namespace xgrammar

namespace baleen::text {
namespace {

// Between two parts of a JSON text: enough for indented output, too few to go on for ever.
constexpr int kMaxGrammarWhitespace = 32;
constexpr int64_t kMaxGrammarCacheBytes = int64_t{256} << 20;
constexpr const char* kAnyObjectSchema = R"({"type": "object"})";

/// Which tokens a kind of grammar may use at all.
enum class Alphabet : uint8_t {
  kAny,
  kJson,    // no control characters but line ends: XGrammar would let them into strings
  kMarkup,  // the tags of calls; line ends and tabs are the only control characters
};

bool is_in(Alphabet alphabet, std::string_view bytes) {
  return alphabet == Alphabet::kAny || std::all_of(bytes.begin(), bytes.end(), [&](char c) {
           const auto byte = static_cast<unsigned char>(c);
           return byte >= 0x20U || c == '\n' || (c == '\t' && alphabet == Alphabet::kMarkup);
         });
}

/// The vocabulary as XGrammar wants it: tokens without text are never allowed.
xgrammar::TokenizerInfo vocabulary_of(const Tokenizer& tokenizer,
                                      const std::vector<int32_t>& end_token_ids,
                                      int64_t vocab_size,
                                      Alphabet alphabet) {
  std::vector<std::string> texts(static_cast<size_t>(tokenizer.vocab_size()));
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (!tokenizer.is_known(id)) {
      continue;
    }
    const std::string_view bytes = tokenizer.token_bytes(id);
    const bool allowed = tokenizer.is_added(id) ? alphabet == Alphabet::kMarkup && bytes == kDsml
                                                : is_in(alphabet, bytes);
    if (allowed) {
      texts[static_cast<size_t>(id)] = std::string(bytes);
    }
  }
  return xgrammar::TokenizerInfo(
      texts, xgrammar::VocabType::RAW, static_cast<int>(vocab_size), end_token_ids);
}

Alphabet alphabet_of(const GrammarSpec& spec) {
  if (spec.with_markup) {
    return Alphabet::kMarkup;
  }
  const bool is_json =
      spec.kind == GrammarKind::kJsonObject || spec.kind == GrammarKind::kJsonSchema;
  return is_json ? Alphabet::kJson : Alphabet::kAny;
}

xgrammar::GrammarCompiler compiler_of(const xgrammar::TokenizerInfo& vocabulary) {
  constexpr int kThreads = 1;  // requests compile beside each other already
  return xgrammar::GrammarCompiler(vocabulary, kThreads, true, kMaxGrammarCacheBytes);
}

xgrammar::CompiledGrammar compile_spec(xgrammar::GrammarCompiler& compiler,
                                       const GrammarSpec& spec) {
  switch (spec.kind) {
    case GrammarKind::kJsonObject:
    case GrammarKind::kJsonSchema:
      return compiler.CompileJSONSchema(
          spec.kind == GrammarKind::kJsonObject ? kAnyObjectSchema : spec.text,
          true,
          std::nullopt,
          std::nullopt,
          true,
          kMaxGrammarWhitespace);
    case GrammarKind::kRegex:
      return compiler.CompileRegex(spec.text);
    case GrammarKind::kEbnf:
      return compiler.CompileGrammar(spec.text);
    case GrammarKind::kStructuralTag:
      return compiler.CompileStructuralTag(spec.text);
  }
  throw std::runtime_error("unknown kind of grammar");
}

}  // namespace

/// What a byte at the end of one token means for the next: XGrammar takes the surrogates U+D800 to
/// U+DFFF for characters, UTF-8 does not. They begin with ED and go on with A0 or more.
struct SurrogateGuard {
  static constexpr unsigned char kLead = 0xED;
  static constexpr unsigned char kFirstBad = 0xA0;
  static constexpr unsigned char kLastBad = 0xBF;

  explicit SurrogateGuard(const Tokenizer& tokenizer) {
    ends_with_lead.resize(static_cast<size_t>(tokenizer.vocab_size()));
    for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
      const std::string_view bytes = tokenizer.token_bytes(id);
      if (bytes.empty()) {
        continue;
      }
      const auto first = static_cast<unsigned char>(bytes.front());
      ends_with_lead[static_cast<size_t>(id)] = static_cast<unsigned char>(bytes.back()) == kLead;
      if (first >= kFirstBad && first <= kLastBad) {
        bad_continuations.push_back(id);
      }
    }
  }
  std::vector<bool> ends_with_lead;        // by id
  std::vector<int32_t> bad_continuations;  // never behind a lead
};

class Grammar {
 public:
  Grammar(xgrammar::CompiledGrammar compiled_grammar, std::shared_ptr<const SurrogateGuard> shared)
      : compiled(std::move(compiled_grammar)), guard(std::move(shared)) {}
  const xgrammar::CompiledGrammar compiled;
  const std::shared_ptr<const SurrogateGuard> guard;  // with the compiler
};

struct GrammarCompiler::State {
  State(const Tokenizer& tokenizer, const std::vector<int32_t>& ends, int64_t vocab_size)
      : guard(std::make_shared<SurrogateGuard>(tokenizer)) {
    for (const Alphabet alphabet : {Alphabet::kAny, Alphabet::kJson, Alphabet::kMarkup}) {
      compilers.push_back(compiler_of(vocabulary_of(tokenizer, ends, vocab_size, alphabet)));
    }
  }
  std::shared_ptr<const SurrogateGuard> guard;
  std::vector<xgrammar::GrammarCompiler> compilers;  // by Alphabet
};

GrammarCompiler::GrammarCompiler(const Tokenizer& tokenizer,
                                 std::vector<int32_t> end_token_ids,
                                 int64_t vocab_size)
    : state_(std::make_unique<State>(tokenizer, end_token_ids, vocab_size)) {
  BALEEN_CHECK(vocab_size >= tokenizer.vocab_size(),
               "vocab={} tokenizer={}",
               vocab_size,
               tokenizer.vocab_size());
}

GrammarCompiler::~GrammarCompiler() = default;

Result<std::shared_ptr<const Grammar>> GrammarCompiler::compile(const GrammarSpec& spec) const {
  try {
    xgrammar::GrammarCompiler& compiler = state_->compilers[static_cast<size_t>(alphabet_of(spec))];
    return std::shared_ptr<const Grammar>(
        std::make_shared<Grammar>(compile_spec(compiler, spec), state_->guard));
  } catch (const std::exception& error) {
    return Status::invalid(error.what());
  }
}

struct GrammarMatcher::State {
  explicit State(std::shared_ptr<const Grammar> shared)
      : grammar(std::move(shared)), matcher(grammar->compiled) {}
  std::shared_ptr<const Grammar> grammar;  // with the compiler's cache and other matchers
  xgrammar::GrammarMatcher matcher;
  bool after_lead = false;  // the text ends with the first byte of what may become a surrogate
};

GrammarMatcher::GrammarMatcher(std::shared_ptr<const Grammar> grammar)
    : state_(std::make_unique<State>(std::move(grammar))) {}

GrammarMatcher::~GrammarMatcher() = default;
GrammarMatcher::GrammarMatcher(GrammarMatcher&&) noexcept = default;
GrammarMatcher& GrammarMatcher::operator=(GrammarMatcher&&) noexcept = default;

void GrammarMatcher::fill_mask(std::span<uint32_t> bits) const {
  const int vocab_size = state_->grammar->compiled.GetTokenizerInfo().GetVocabSize();
  const auto num_words = static_cast<size_t>(xgrammar::GetBitmaskSize(vocab_size));
  BALEEN_CHECK(bits.size() >= num_words, "words={} needed={}", bits.size(), num_words);
  std::fill(bits.begin(), bits.begin() + static_cast<std::ptrdiff_t>(num_words), ~0U);
  std::fill(bits.begin() + static_cast<std::ptrdiff_t>(num_words), bits.end(), 0U);
  if (state_->matcher.IsTerminated()) {
    std::fill(bits.begin(), bits.end(), 0U);
    return;
  }
  auto shape = static_cast<int64_t>(num_words);
  DLTensor tensor{};
  tensor.data = bits.data();
  tensor.device = DLDevice{kDLCPU, 0};
  tensor.ndim = 1;
  tensor.dtype = xgrammar::GetBitmaskDLType();
  tensor.shape = &shape;
  state_->matcher.FillNextTokenBitmask(&tensor);
  const auto clear = [&](int64_t id) { bits[static_cast<size_t>(id / 32)] &= ~(1U << (id % 32)); };
  for (int64_t id = vocab_size; id < static_cast<int64_t>(num_words) * 32; ++id) {
    clear(id);  // no token at all: what the last word has left
  }
  if (state_->after_lead) {
    for (const int32_t id : state_->grammar->guard->bad_continuations) {
      clear(id);
    }
  }
}

bool GrammarMatcher::accept(int32_t id) {
  const SurrogateGuard& guard = *state_->grammar->guard;
  const bool is_bad =
      state_->after_lead &&
      std::binary_search(guard.bad_continuations.begin(), guard.bad_continuations.end(), id);
  if (is_bad || state_->matcher.IsTerminated() || !state_->matcher.AcceptToken(id)) {
    return false;
  }
  state_->after_lead = guard.ends_with_lead[static_cast<size_t>(id)];
  return true;
}

bool GrammarMatcher::complete() const {
  return state_->matcher.IsTerminated() || state_->matcher.IsCompleted();
}

}  // namespace baleen::text
