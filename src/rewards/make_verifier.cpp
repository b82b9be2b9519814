#include "rewards/make_verifier.h"

#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "rewards/remote_verifier.h"
#include "rewards/structural_verifiers.h"
#include "rewards/text_verifiers.h"

namespace baleen::rewards {
namespace {

std::shared_ptr<const Verifier> plain_verifier(std::string_view type,
                                               const VerifierConfig& config) {
  const MathRules rules{config.strict_fraction};
  if (type == "exact") {
    return std::make_shared<ExactVerifier>();
  }
  if (type == "math" || type == "deepscaler") {
    return std::make_shared<MathVerifier>(rules, type == "deepscaler");
  }
  if (type == "dapo") {
    return std::make_shared<DapoVerifier>(rules);
  }
  if (type == "gpqa") {
    return std::make_shared<GpqaVerifier>();
  }
  if (type == "f1") {
    return std::make_shared<F1Verifier>();
  }
  if (type == "regex") {
    return std::make_shared<RegexVerifier>(config.rm_pattern);
  }
  if (type == "json_schema") {
    return std::make_shared<JsonSchemaVerifier>(config.rm_schema);
  }
  if (type == "random" || type == "deterministic_random") {
    return std::make_shared<HashVerifier>(type == "random");
  }
  if (type == "external") {
    return std::make_shared<ExternalVerifier>(config.external);
  }
  if (type == "remote_rm") {
    return std::make_shared<RemoteVerifier>(RemoteConfig{.url = config.rm_url});
  }
  throw ConfigError(
      fmt::format("unknown rm_type \"{}\"; known are {} and each with boxed_ or "
                  "answer_",
                  config.rm_type,
                  fmt::join(verifier_names(), ", ")));
}

}  // namespace

std::vector<std::string> verifier_names() {
  return {"exact",
          "math",
          "dapo",
          "deepscaler",
          "gpqa",
          "f1",
          "regex",
          "json_schema",
          "random",
          "deterministic_random",
          "external",
          "remote_rm"};
}

std::shared_ptr<const Verifier> make_verifier(const VerifierConfig& config) {
  constexpr std::string_view kBoxed = "boxed_";
  constexpr std::string_view kAnswer = "answer_";
  const std::string_view type = config.rm_type;
  if (type.starts_with(kAnswer)) {
    return std::make_shared<AnswerVerifier>(plain_verifier(type.substr(kAnswer.size()), config));
  }
  if (!type.starts_with(kBoxed)) {
    return plain_verifier(type, config);
  }
  const std::string_view inner = type.substr(kBoxed.size());
  if (inner == "deepscaler") {
    throw ConfigError("rm_type boxed_deepscaler: what is boxed holds no end of thinking; use math");
  }
  return std::make_shared<BoxedVerifier>(plain_verifier(inner, config));
}

}  // namespace baleen::rewards
