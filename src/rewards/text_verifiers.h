#pragma once
// The built-in verifiers that read text alone: exact, math, dapo, deepscaler, gpqa, f1, random and
// deterministic_random, and the prefixes boxed_ and answer_. Made by make_verifier.

#include <cstdint>
#include <memory>
#include <string>

#include "rewards/math_equality.h"
#include "rewards/verifier.h"

namespace baleen::rewards {

/// The trimmed response equals the trimmed label: 1 or 0.
class ExactVerifier final : public Verifier {
 public:
  std::string name() const override { return "exact"; }
  Result<Score> verify(const RewardInput& input, const CallLimits& limits) const override;
  std::vector<KnownCase> known_cases() const override;
};

/// The last \boxed of the response is the label (which may be boxed too): 1 or 0. `after_thinking`
/// (deepscaler): only what stands behind </think> counts, and without that tag nothing does.
class MathVerifier final : public Verifier {
 public:
  MathVerifier(const MathRules& rules, bool after_thinking)
      : rules_(rules), after_thinking_(after_thinking) {}
  std::string name() const override { return after_thinking_ ? "deepscaler" : "math"; }
  Result<Score> verify(const RewardInput& input, const CallLimits& limits) const override;
  std::vector<KnownCase> known_cases() const override;

 private:
  MathRules rules_;
  bool after_thinking_;
};

/// What follows the last "Answer:" within the last 300 bytes is the label: +1 or -1, acc 1 or 0.
class DapoVerifier final : public Verifier {
 public:
  explicit DapoVerifier(const MathRules& rules) : rules_(rules) {}
  std::string name() const override { return "dapo"; }
  Result<Score> verify(const RewardInput& input, const CallLimits& limits) const override;
  std::vector<KnownCase> known_cases() const override;

 private:
  MathRules rules_;
};

/// The letter chosen is the label's, A to J: 1 or 0. Chosen is a letter in the last \boxed, else
/// behind the last "answer" (with "is", ":", brackets or ** between), else alone on the last line.
class GpqaVerifier final : public Verifier {
 public:
  std::string name() const override { return "gpqa"; }
  Result<Score> verify(const RewardInput& input, const CallLimits& limits) const override;
  std::vector<KnownCase> known_cases() const override;
};

/// Harmonic mean of precision and recall over words, without case, punctuation and articles.
class F1Verifier final : public Verifier {
 public:
  std::string name() const override { return "f1"; }
  Result<Score> verify(const RewardInput& input, const CallLimits& limits) const override;
  std::vector<KnownCase> known_cases() const override;
};

/// A number in [0, 1) that is a function of the response's tokens, or with `by_sample` of the
/// sample's id: a control that must not be learnt.
class HashVerifier final : public Verifier {
 public:
  explicit HashVerifier(bool by_sample) : by_sample_(by_sample) {}
  std::string name() const override { return by_sample_ ? "random" : "deterministic_random"; }
  Result<Score> verify(const RewardInput& input, const CallLimits& limits) const override;
  std::vector<KnownCase> known_cases() const override;
  bool needs_label() const override { return false; }

 private:
  bool by_sample_;
};

/// Gives the inner verifier the content of the last \boxed in place of the response (in the frame
/// that math and dapo look for); without one, an empty response.
class BoxedVerifier final : public Verifier {
 public:
  explicit BoxedVerifier(std::shared_ptr<const Verifier> inner) : inner_(std::move(inner)) {}
  std::string name() const override { return "boxed_" + inner_->name(); }
  Result<Score> verify(const RewardInput& input, const CallLimits& limits) const override;
  std::vector<KnownCase> known_cases() const override;
  bool needs_label() const override { return inner_->needs_label(); }

 private:
  std::shared_ptr<const Verifier> inner_;
};

/// Gives the inner verifier what stands behind the last </think> in place of the response; without
/// that tag all of it, as a model that was not asked to think answers.
class AnswerVerifier final : public Verifier {
 public:
  explicit AnswerVerifier(std::shared_ptr<const Verifier> inner) : inner_(std::move(inner)) {}
  std::string name() const override { return "answer_" + inner_->name(); }
  Result<Score> verify(const RewardInput& input, const CallLimits& limits) const override;
  std::vector<KnownCase> known_cases() const override;
  bool needs_label() const override { return inner_->needs_label(); }

 private:
  std::shared_ptr<const Verifier> inner_;
};

}  // namespace baleen::rewards
