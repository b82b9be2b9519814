#pragma once
// A reward program of the user: started once per concurrent call and kept, it reads one JSON object
// a line and answers with one.
//
//   in:  {"sample":7,"prompt":"2+2=","response":" 4","label":"4","metadata":{}}
//   out: {"score":1.0,"acc":true,"detail":{...}}      or a bare number
//
// A program that ends, answers with something else or is late is killed with its whole process
// group and started anew for the next call. It inherits standard error and nothing else of ours but
// the environment; its memory is bounded.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "rewards/verifier.h"

namespace baleen::rewards {

struct ExternalConfig {
  std::vector<std::string> command = {};       // program and arguments
  int64_t memory_bytes = int64_t{2} << 30;     // address space of one process; 0: no bound
  int64_t max_line_bytes = int64_t{16} << 20;  // of an answer
};

class ExternalVerifier final : public Verifier {
 public:
  /// Throws ConfigError for an empty command.
  explicit ExternalVerifier(ExternalConfig config);
  ~ExternalVerifier() override;
  std::string name() const override { return "external"; }
  Result<Score> verify(const RewardInput& input, const CallLimits& limits) const override;
  std::vector<KnownCase> known_cases() const override { return boxed_sum_cases(); }
  bool needs_label() const override { return false; }

  class Pool;  // of idle programs

 private:
  ExternalConfig config_;
  std::unique_ptr<Pool> pool_;
};

/// The line that is sent, and what an answer (line or HTTP body) says.
std::string reward_request_json(const RewardInput& input);
Result<Score> read_reward_answer(std::string_view text);

}  // namespace baleen::rewards
