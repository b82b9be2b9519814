#pragma once
// The verifiers of the rewards room as an AnswerJudge. Any thread may make one; used by one.
//
//   std::unique_ptr<AnswerJudge> judge = make_judge(config, config.rm_type);

#include <memory>
#include <string>

#include "rl/answer_judge.h"
#include "rl/rl_config.h"

namespace baleen::rl {

/// Throws ConfigError naming the option that asks for a verifier that is not there.
std::unique_ptr<AnswerJudge> make_judge(const RlConfig& config, const std::string& rm_type);

}  // namespace baleen::rl
