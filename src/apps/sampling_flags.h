#pragma once
// Flags of the commands that generate: how tokens are drawn and when to stop. Values are checked by
// the engine, which names the field.
//
//   SamplingFlags flags;
//   flags.add(*command);
//   flags.apply(generation, request);

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "engine/request.h"
#include "weights/generation_config.h"

namespace baleen::apps {

struct SamplingFlags {
  std::optional<float> temperature;  // absent, here and below: as the checkpoint says
  std::optional<float> top_p;
  std::optional<int32_t> top_k;
  float min_p = 0.0F;
  float frequency_penalty = 0.0F;
  float presence_penalty = 0.0F;
  float repetition_penalty = 1.0F;
  std::optional<uint64_t> seed;
  int32_t max_new_tokens = 512;
  std::vector<std::string> stop;
  bool ignore_eos = false;

  void add(CLI::App& command);
  void apply(const weights::GenerationConfig& defaults, engine::GenerationRequest& request) const;
};

}  // namespace baleen::apps
