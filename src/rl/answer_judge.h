#pragma once
// The verifier as the rollout manager sees it: answers go in, verdicts come out in any order.
//
//   judge.submit(prompt, sample);
//   for (const Verdict& verdict : judge.take(std::chrono::milliseconds(10))) { ... }

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "rl/rollout_sample.h"

namespace baleen::rl {

enum class VerdictKind : uint8_t { kScore, kError, kTimeout };

struct Verdict {
  int64_t index = 0;  // RolloutSample::index
  VerdictKind kind = VerdictKind::kScore;
  double score = 0.0;
  std::optional<double> accuracy;
  std::string message;  // of an error
};

class AnswerJudge {
 public:
  virtual ~AnswerJudge() = default;
  virtual void submit(const Prompt& prompt, const RolloutSample& sample) = 0;
  /// Answers whose verdict was not taken yet.
  virtual int64_t pending() const = 0;
  /// What is ready; waits at most `wait` for the first. Empty when nothing was submitted.
  virtual std::vector<Verdict> take(std::chrono::milliseconds wait) = 0;
  /// 99th percentile of what a verification took since this was last asked; 0 where nobody looks.
  virtual double take_milliseconds_p99() { return 0.0; }
};

}  // namespace baleen::rl
