#pragma once
// Draws the next token of one sequence from its logits. Owned by nobody: a pure function plus a
// workspace that the caller keeps between calls. Any thread, one workspace per thread.
//
//   SamplingWorkspace workspace;
//   SampledToken token = sample_token(logits, params, counts, workspace, &top);
//   if (token.status != SamplingStatus::kDrawn) { ... }

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace baleen::kernels {

inline constexpr uint32_t kSamplingStream = 1;  // last word of the counter of the noise

/// Order of operations, x in float32 with one rounding per operation:
///   1. x = logit + bias, in the order of the list;
///   2. tokens seen `count` > 0 times: x = x > 0 ? x / repetition : x * repetition, then
///      x = x - frequency * count, then x = x - presence;
///      a quotient that overflows float32 stays at the largest finite number;
///   3. forbidden and unmasked tokens: x = -inf;
///   4. z = x / temperature in double (greedy: z = x); log-probs are the log-softmax of z;
///   5. kept set: the top_k largest z (ties: lower id first); of these in descending order the
///      shortest run whose probability, renormalised after top_k, reaches top_p; of these the
///      tokens with p >= min_p * largest p;
///   6. the kept token with the largest z + g, where g = -log(-log u) is Gumbel noise and u in
///      (0, 1) comes from Philox-4x32-10 with key = seed and counter = (sample_index, position,
///      token id, stream). Ties go to the lower id. Greedy: the largest z, same tie rule.
/// So the draw depends on nothing but logits, parameters, seed, sample index and position, and a
/// draft that is compared with it is accepted with the probability that the law asks for.
struct SamplingParams {
  float temperature = 1.0F;  // 0: greedy
  int32_t top_k = -1;        // -1: all
  float top_p = 1.0F;        // (0, 1]
  float min_p = 0.0F;        // [0, 1]
  float frequency_penalty = 0.0F;
  float presence_penalty = 0.0F;
  float repetition_penalty = 1.0F;  // > 0
  uint64_t seed = 0;
  int32_t sample_index = 0;
  int64_t position = 0;                                        // of the drawn token in its sequence
  std::span<const std::pair<int32_t, float>> logit_bias = {};  // ids in the vocabulary
  std::span<const int32_t> forbidden_ids = {};                 // ids in the vocabulary
  std::span<const uint32_t> allowed_bits = {};  // 32 tokens per word; empty: all allowed
  int32_t forced_id = -1;             // the token is this one; log-probs as if drawn; -1: none
  bool want_logprob = false;          // of the drawn token
  int32_t top_logprobs = 0;           // length of the list of best tokens
  uint32_t stream = kSamplingStream;  // another one: noise apart from that of the text
};

enum class SamplingStatus : uint8_t {
  kDrawn,
  kNotFinite,    // a logit is NaN or +inf
  kNoCandidate,  // every token is excluded or -inf
};

struct ScoredToken {
  int32_t id = -1;
  float logprob = 0.0F;  // natural logarithm
};

struct SampledToken {
  SamplingStatus status = SamplingStatus::kDrawn;
  int32_t id = -1;
  float logprob = 0.0F;  // where wanted
};

/// Memory of one call, kept for the next.
struct SamplingWorkspace {
  std::vector<double> z;       // by token id
  std::vector<int32_t> order;  // token ids, best first as far as sorted
};

/// `counts` holds how often each token was generated so far; empty: none was. `top` gets the best
/// tokens, best first, without those at -inf; may be null when top_logprobs is 0.
/// Errors: ids outside the vocabulary and parameters out of range are programmer errors (checked).
SampledToken sample_token(std::span<const float> logits,
                          const SamplingParams& params,
                          std::span<const int32_t> counts,
                          SamplingWorkspace& workspace,
                          std::vector<ScoredToken>* top);

struct TokenProbability {
  int32_t id = -1;
  double probability = 0.0;
};

/// The law that sample_token draws from: the kept tokens in order of id with probabilities that sum
/// to 1; one token when greedy or forced.
SamplingStatus token_law(std::span<const float> logits,
                         const SamplingParams& params,
                         std::span<const int32_t> counts,
                         SamplingWorkspace& workspace,
                         std::vector<TokenProbability>& law);

/// Log-softmax of plain logits at `id`, double accumulation in order of id, as sample_token has it
/// at temperature 1. For float and double logits.
template <class T>
T plain_logprob(std::span<const T> logits, int32_t id);

}  // namespace baleen::kernels
