#pragma once
// From the options of a run to its verifier.
//
//   std::shared_ptr<const Verifier> verifier = make_verifier({.rm_type = "boxed_f1"});

#include <memory>
#include <string>
#include <vector>

#include "rewards/external_verifier.h"
#include "rewards/verifier.h"

namespace baleen::rewards {

struct VerifierConfig {
  /// exact, math, dapo, deepscaler, gpqa, f1, regex, json_schema, random, deterministic_random,
  /// external, remote_rm; with the prefix boxed_ the last \boxed of the response is judged.
  std::string rm_type = {};
  bool strict_fraction = true;   // math, dapo, deepscaler
  std::string rm_pattern = {};   // regex; empty: the label
  std::string rm_schema = {};    // json_schema; empty: the label
  std::string rm_url = {};       // remote_rm
  ExternalConfig external = {};  // external: rm_command and bounds
};

/// Throws ConfigError; an unknown rm_type is answered with the known ones.
std::shared_ptr<const Verifier> make_verifier(const VerifierConfig& config);

std::vector<std::string> verifier_names();

}  // namespace baleen::rewards
