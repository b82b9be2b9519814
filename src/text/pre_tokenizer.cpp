#include "text/pre_tokenizer.h"

#include <array>
#include <cstdint>

#include <fmt/format.h>
#include <pcre2.h>

#include "base/check.h"
#include "base/error.h"

namespace baleen::text {
namespace {

constexpr std::string_view kWhiteSpace =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

constexpr size_t kJitStackStartBytes = size_t{32} << 10U;
constexpr size_t kJitStackMaxBytes = size_t{64} << 20U;

template <auto Free>
struct FreeWith {
  template <class T>
  void operator()(T* pointer) const {
    Free(pointer);
  }
};

std::string error_text(int code) {
  std::array<char, 256> buffer{};
  pcre2_get_error_message(code, reinterpret_cast<PCRE2_UCHAR*>(buffer.data()), buffer.size());
  return buffer.data();
}

}  // namespace

std::string spell_out_white_space(std::string_view pattern) {
  std::string out;
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      const char escaped = pattern[++i];
      if (escaped == 's') {
        out += in_class ? std::string(kWhiteSpace) : fmt::format("[{}]", kWhiteSpace);
      } else if (escaped == 'S') {
        if (in_class) {
          return {};
        }
        out += fmt::format("[^{}]", kWhiteSpace);
      } else {
        out += c;
        out += escaped;
      }
      continue;
    }
    if (c == '[' && !in_class) {
      in_class = true;
    } else if (c == ']' && in_class) {
      in_class = false;
    }
    out += c;
  }
  return out;
}

struct PreTokenizer::Pattern {
  std::unique_ptr<pcre2_code, FreeWith<pcre2_code_free>> code;
};

namespace {

/// What one call of split() needs to match; made per call, so that the chain can be shared.
class Matcher {
 public:
  Matcher() : context_(pcre2_match_context_create(nullptr)) {
    // Long runs of one class are legal input; running time is linear for the patterns in use.
    pcre2_set_match_limit(context_.get(), UINT32_MAX);
    pcre2_set_depth_limit(context_.get(), UINT32_MAX);
    match_.reset(pcre2_match_data_create(1, nullptr));
    BALEEN_CHECK(context_ != nullptr && match_ != nullptr, "out of memory");
  }

  /// The first match at or after `from`; false when there is none.
  bool find(
      const pcre2_code* code, std::string_view text, size_t from, size_t& begin, size_t& end) {
    const auto run = [&] {
      return pcre2_match(code,
                         reinterpret_cast<PCRE2_SPTR>(text.data()),
                         text.size(),
                         from,
                         PCRE2_NO_UTF_CHECK,
                         match_.get(),
                         context_.get());
    };
    int result = run();
    if (result == PCRE2_ERROR_JIT_STACKLIMIT && stack_ == nullptr) {
      stack_.reset(pcre2_jit_stack_create(kJitStackStartBytes, kJitStackMaxBytes, nullptr));
      pcre2_jit_stack_assign(context_.get(), nullptr, stack_.get());
      result = run();
    }
    if (result == PCRE2_ERROR_NOMATCH) {
      return false;
    }
    // Any other failure would silently change token ids.
    BALEEN_CHECK(result >= 0, "PCRE2: {}", error_text(result));
    const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(match_.get());
    begin = bounds[0];
    end = bounds[1];
    return true;
  }

 private:
  std::unique_ptr<pcre2_match_context, FreeWith<pcre2_match_context_free>> context_;
  std::unique_ptr<pcre2_match_data, FreeWith<pcre2_match_data_free>> match_;
  std::unique_ptr<pcre2_jit_stack, FreeWith<pcre2_jit_stack_free>> stack_;
};

}  // namespace

PreTokenizer::PreTokenizer(const std::vector<std::string>& patterns, const std::string& file) {
  for (const std::string& source : patterns) {
    const std::string pattern = spell_out_white_space(source);
    if (pattern.empty()) {
      throw ConfigError(fmt::format(
          "{}: pre_tokenizer pattern '{}' is empty or has \\S inside a class", file, source));
    }
    int code = 0;
    PCRE2_SIZE offset = 0;
    auto compiled = std::make_unique<Pattern>();
    compiled->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()),
                                       pattern.size(),
                                       PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C,
                                       &code,
                                       &offset,
                                       nullptr));
    if (compiled->code == nullptr) {
      throw ConfigError(fmt::format(
          "{}: pre_tokenizer pattern '{}' cannot be compiled: {}", file, source, error_text(code)));
    }
    uint32_t matches_empty = 0;
    pcre2_pattern_info(compiled->code.get(), PCRE2_INFO_MATCHEMPTY, &matches_empty);
    if (matches_empty != 0) {
      throw ConfigError(
          fmt::format("{}: pre_tokenizer pattern '{}' can match an empty string", file, source));
    }
    // Where the machine has no JIT the interpreter gives the same matches.
    pcre2_jit_compile(compiled->code.get(), PCRE2_JIT_COMPLETE);
    patterns_.push_back(std::move(compiled));
  }
}

PreTokenizer::~PreTokenizer() = default;
PreTokenizer::PreTokenizer(PreTokenizer&&) noexcept = default;
PreTokenizer& PreTokenizer::operator=(PreTokenizer&&) noexcept = default;

void PreTokenizer::split(std::string_view text,
                         const std::function<void(std::string_view)>& take) const {
  Matcher matcher;
  std::vector<std::string_view> pieces;
  std::vector<std::string_view> finer;
  if (!text.empty()) {
    pieces.push_back(text);
  }
  for (const auto& pattern : patterns_) {
    finer.clear();
    for (const std::string_view piece : pieces) {
      size_t done = 0;
      size_t begin = 0;
      size_t end = 0;
      while (done < piece.size() && matcher.find(pattern->code.get(), piece, done, begin, end)) {
        if (begin > done) {
          finer.push_back(piece.substr(done, begin - done));
        }
        finer.push_back(piece.substr(begin, end - begin));
        done = end;
      }
      if (done < piece.size()) {
        finer.push_back(piece.substr(done));
      }
    }
    pieces.swap(finer);
  }
  for (const std::string_view piece : pieces) {
    take(piece);
  }
}

}  // namespace baleen::text
