#include "engine/request_limits.h"

#include <cmath>
#include <functional>
#include <limits>

#include <gtest/gtest.h>

namespace baleen::engine {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr RequestLimits kLimits{
    .max_context = 10, .vocab_size = 100, .has_reasoning_end = true, .records_choices = true};

Status check(const std::function<void(GenerationRequest&)>& change,
             const RequestLimits& limits = kLimits) {
  GenerationRequest request;
  request.id = "r";
  request.prompt = {1, 2, 3};
  change(request);
  return check_request(request, limits);
}

TEST(RequestLimitsTest, AcceptsDefaultsAndEveryEndOfEveryRange) {
  EXPECT_TRUE(check([](auto&) {}).ok());
  EXPECT_TRUE(check([](auto& r) {
                r.sampling.temperature = 0.0F;
                r.sampling.top_k = 1;
                r.sampling.top_p = std::numeric_limits<float>::min();
                r.sampling.min_p = 1.0F;
                r.sampling.frequency_penalty = -2.0F;
                r.sampling.presence_penalty = 2.0F;
                r.sampling.repetition_penalty = 2.0F;
                r.sampling.logit_bias = {{0, -100.0F}, {99, 100.0F}};
                r.stop_token_ids = {0, 99};
                r.want_logprobs = true;
                r.top_logprobs = 20;
                r.max_new_tokens = 5;
                r.min_new_tokens = 5;
                r.reasoning_budget = 1;
                r.prompt = {0, 99};
                r.want_routes = true;
                r.want_picks = true;
                r.choices_from = 2;
              }).ok());
  EXPECT_TRUE(check([](auto& r) { r.prompt.assign(9, 1); }).ok());
  EXPECT_TRUE(check([](auto& r) {
                r.prompt.assign(10, 1);
                r.max_new_tokens = 0;
              }).ok());
}

struct BadField {
  const char* param;
  std::function<void(GenerationRequest&)> change;
};

TEST(RequestLimitsTest, NamesTheFieldOutOfRange) {
  using R = GenerationRequest;
  const std::vector<BadField> cases = {
      {"id", [](R& r) { r.id = ""; }},
      {"choices_from", [](R& r) { r.choices_from = -1; }},
      {"choices_from", [](R& r) { r.choices_from = 4; }},
      {"prompt", [](R& r) { r.prompt.clear(); }},
      {"prompt", [](R& r) { r.prompt[1] = 100; }},
      {"prompt", [](R& r) { r.prompt[1] = -1; }},
      {"temperature", [](R& r) { r.sampling.temperature = -0.1F; }},
      {"temperature", [](R& r) { r.sampling.temperature = kNan; }},
      {"temperature", [](R& r) { r.sampling.temperature = kInf; }},
      {"top_k", [](R& r) { r.sampling.top_k = 0; }},
      {"top_k", [](R& r) { r.sampling.top_k = -2; }},
      {"top_p", [](R& r) { r.sampling.top_p = 0.0F; }},
      {"top_p", [](R& r) { r.sampling.top_p = 1.01F; }},
      {"top_p", [](R& r) { r.sampling.top_p = kNan; }},
      {"min_p", [](R& r) { r.sampling.min_p = -0.01F; }},
      {"min_p", [](R& r) { r.sampling.min_p = 1.01F; }},
      {"min_p", [](R& r) { r.sampling.min_p = kNan; }},
      {"frequency_penalty", [](R& r) { r.sampling.frequency_penalty = 2.1F; }},
      {"frequency_penalty", [](R& r) { r.sampling.frequency_penalty = kNan; }},
      {"presence_penalty", [](R& r) { r.sampling.presence_penalty = -2.1F; }},
      {"presence_penalty", [](R& r) { r.sampling.presence_penalty = kNan; }},
      {"repetition_penalty", [](R& r) { r.sampling.repetition_penalty = 0.0F; }},
      {"repetition_penalty", [](R& r) { r.sampling.repetition_penalty = 2.1F; }},
      {"repetition_penalty", [](R& r) { r.sampling.repetition_penalty = kNan; }},
      {"logit_bias", [](R& r) { r.sampling.logit_bias = {{100, 1.0F}}; }},
      {"logit_bias", [](R& r) { r.sampling.logit_bias = {{-1, 1.0F}}; }},
      {"logit_bias", [](R& r) { r.sampling.logit_bias = {{5, kNan}}; }},
      {"logit_bias", [](R& r) { r.sampling.logit_bias = {{5, -kInf}}; }},
      {"sample_index", [](R& r) { r.sampling.sample_index = -1; }},
      {"max_new_tokens", [](R& r) { r.max_new_tokens = -1; }},
      {"min_new_tokens", [](R& r) { r.min_new_tokens = -1; }},
      {"min_new_tokens", [](R& r) { r.min_new_tokens = 129; }},
      {"stop_token_ids", [](R& r) { r.stop_token_ids = {3, 100}; }},
      {"stop", [](R& r) { r.output.stop = {"a", ""}; }},
      {"top_logprobs", [](R& r) { r.top_logprobs = 1; }},
      {"top_logprobs",
       [](R& r) {
         r.want_logprobs = true;
         r.top_logprobs = 21;
       }},
      {"top_logprobs", [](R& r) { r.top_logprobs = -1; }},
      {"reasoning_budget", [](R& r) { r.reasoning_budget = 0; }},
  };
  for (const BadField& bad : cases) {
    const Status status = check(bad.change);
    EXPECT_EQ(status.code, StatusCode::kInvalidArgument) << bad.param;
    EXPECT_EQ(status.param, bad.param) << status.message;
    EXPECT_EQ(status.api_code, "") << status.message;
    EXPECT_FALSE(status.message.empty());
  }
}

TEST(RequestLimitsTest, PromptWithoutRoomHasItsOwnCode) {
  const Status full = check([](auto& r) { r.prompt.assign(10, 1); });
  EXPECT_EQ(full.param, "prompt");
  EXPECT_EQ(full.api_code, "context_length_exceeded");
  const Status beyond = check([](auto& r) {
    r.prompt.assign(11, 1);
    r.max_new_tokens = 0;
  });
  EXPECT_EQ(beyond.api_code, "context_length_exceeded");
}

TEST(RequestLimitsTest, BudgetNeedsAnEndOfReasoning) {
  RequestLimits limits = kLimits;
  limits.has_reasoning_end = false;
  EXPECT_EQ(check([](auto& r) { r.reasoning_budget = 5; }, limits).param, "reasoning_budget");
}

TEST(RequestLimitsTest, ContextBoundsTheAnswer) {
  EXPECT_EQ(effective_max_new_tokens(128, 3, 10), 7);
  EXPECT_EQ(effective_max_new_tokens(5, 3, 10), 5);
  EXPECT_EQ(effective_max_new_tokens(0, 10, 10), 0);
}

TEST(RequestLimitsTest, ReasoningLeavesAReserveForTheAnswer) {
  EXPECT_EQ(reasoning_limit(100, 4096), 100);
  EXPECT_EQ(reasoning_limit(4000, 4096), 4096 - 512);
  EXPECT_EQ(reasoning_limit(4000, 100), 75);
  EXPECT_EQ(reasoning_limit(3, 3), 3);
  EXPECT_EQ(reasoning_limit(10, 4), 3);
}

}  // namespace
}  // namespace baleen::engine
