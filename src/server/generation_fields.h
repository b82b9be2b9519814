#pragma once
// The fields that chat and text completions have in common: sampling, limits, stops, streaming,
// and the ones that are refused or taken without effect. Pure, any thread.
//
//   GenerationFields common = read_generation_fields(fields);

#include <cstdint>
#include <limits>
#include <optional>

#include "engine/request.h"
#include "server/field_reader.h"

namespace baleen::server {

inline constexpr int32_t kMaxInt32 = std::numeric_limits<int32_t>::max();
inline constexpr int kMaxChoices = 128;
inline constexpr size_t kMaxStopStrings = 16;

struct GenerationFields {
  engine::GenerationRequest request;  // without id, prompt, seed of a sample and output parsing
  std::string model;
  int32_t n = 1;
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;
};

/// Faults are in fields.status().
GenerationFields read_generation_fields(FieldReader& fields);

}  // namespace baleen::server
