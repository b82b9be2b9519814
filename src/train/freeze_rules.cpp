#include "train/freeze_rules.h"

#include <utility>

#include <fmt/format.h>

#include "base/error.h"

namespace baleen::train {
namespace {

using model::ParameterInfo;
using model::ParameterRole;

bool is_mixing(ParameterRole role) {
  return role == ParameterRole::kHyperFn || role == ParameterRole::kHyperBase ||
         role == ParameterRole::kHyperScale;
}

}  // namespace

FreezeRules::FreezeRules(FreezeConfig config, model::ModelParameters& params)
    : config_(std::move(config)) {
  for (const std::string& pattern : config_.patterns) {
    std::regex expression;
    try {
      expression = std::regex(pattern);
    } catch (const std::regex_error& error) {
      throw ConfigError(
          fmt::format("freeze_params: \"{}\" is no regular expression: {}", pattern, error.what()));
    }
    bool matches = false;
    model::for_each_parameter(params, [&](const ParameterInfo& info, at::Tensor&) {
      matches = matches || std::regex_match(info.name, expression);
    });
    if (!matches) {
      throw ConfigError(
          fmt::format("freeze_params: \"{}\" matches the whole name of no parameter, such as "
                      "layers.0.attn.wq_a.weight or layers.0.ffn.experts.*.w1.weight",
                      pattern));
    }
    patterns_.push_back(std::move(expression));
  }
}

bool FreezeRules::frozen(const ParameterInfo& info) const {
  if (!info.trainable() || (config_.gate && info.name.ends_with("ffn.gate.weight")) ||
      (config_.indexer && info.name.find(".attn.indexer.") != std::string::npos) ||
      (config_.mtp && info.name.starts_with("mtp.")) ||
      (config_.mixing == FreezeMixing::kAll && is_mixing(info.role))) {
    return true;
  }
  for (const std::regex& pattern : patterns_) {
    if (std::regex_match(info.name, pattern)) {
      return true;
    }
  }
  return false;
}

FreezeRules::Rows FreezeRules::still_rows(const ParameterInfo& info, int64_t num_streams) const {
  if (config_.mixing != FreezeMixing::kComb || !is_mixing(info.role)) {
    return {};
  }
  if (info.role == ParameterRole::kHyperScale) {
    return info.shape[0] == 3 ? Rows{2, 3} : Rows{};
  }
  const int64_t first = 2 * num_streams;  // after the rows of pre and post
  return info.shape[0] > first ? Rows{first, info.shape[0]} : Rows{};
}

}  // namespace baleen::train
