// What programs and services of the user are told and what they answer.

#include <cmath>

#include <boost/json.hpp>
#include <fmt/format.h>

#include "rewards/external_verifier.h"

namespace baleen::rewards {
namespace {

namespace bj = boost::json;

constexpr size_t kShownBytes = 200;

Status bad_answer(std::string_view text, const std::string& what) {
  return {StatusCode::kInternal,
          fmt::format("the reward answer {}: {}", what, text.substr(0, kShownBytes)),
          {},
          {}};
}

}  // namespace

std::string reward_request_json(const RewardInput& input) {
  bj::object request;
  request["sample"] = input.sample;
  request["prompt"] = input.prompt;
  request["response"] = input.response;
  request["label"] = input.label;
  boost::system::error_code error;
  bj::value metadata = bj::parse(input.metadata.empty() ? "{}" : input.metadata, error);
  request["metadata"] = error ? bj::value(input.metadata) : std::move(metadata);
  return bj::serialize(request);
}

Result<Score> read_reward_answer(std::string_view text) {
  boost::system::error_code error;
  const bj::value answer = bj::parse(bj::string_view(text.data(), text.size()), error);
  if (error) {
    return bad_answer(text, "is no JSON");
  }
  Score score;
  const bj::value* number = &answer;
  if (const bj::object* object = answer.if_object()) {
    number = object->if_contains("score");
    if (const bj::value* acc = object->if_contains("acc"); acc != nullptr && !acc->is_null()) {
      if (!acc->is_bool() && !acc->is_number()) {
        return bad_answer(text, "has an \"acc\" that is neither true nor false");
      }
      score.acc = acc->is_bool() ? acc->get_bool() : acc->to_number<double>() != 0.0;
    }
    if (const bj::value* detail = object->if_contains("detail")) {
      score.detail = bj::serialize(*detail);
    }
  }
  if (number == nullptr || !number->is_number()) {
    return bad_answer(text, "has no number \"score\"");
  }
  score.score = number->to_number<double>();
  return score;
}

}  // namespace baleen::rewards
