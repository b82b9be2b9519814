#pragma once
// The fields that chat and text completions have in common: sampling, limits, stops, streaming,
// and the ones that are refused or taken without effect. Pure, any thread.
//
//   GenerationFields common = read_generation_fields(fields);

#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>

#include "engine/request.h"
#include "server/field_reader.h"

namespace baleen::server {

inline constexpr int32_t kMaxInt32 = std::numeric_limits<int32_t>::max();
inline constexpr int kMaxChoices = 128;
inline constexpr size_t kMaxStopStrings = 16;

struct GenerationFields {
  engine::GenerationRequest request;  // without id, prompt, seed of a sample and output parsing
  std::string model;
  std::string rid;  // the client's name of the request; empty: we make one
  int32_t n = 1;
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;
};

/// A number that the engine takes as float: a small one stays positive, one beyond the range is
/// refused, so that the limits checked later are told what the client sent.
void read_float(FieldReader& fields, std::string_view name, float& out);

/// The client's name of a request: up to 256 printable ASCII characters.
bool is_request_id(std::string_view id);

/// "stop" or what the dialect calls it: a string or up to kMaxStopStrings, none empty.
void read_stop_strings(FieldReader& fields, std::string_view name, text::OutputConfig& output);

/// Temperature, truncation, penalties, logit_bias and the seed under its name in the dialect.
void read_sampling_fields(FieldReader& fields,
                          std::string_view seed_name,
                          engine::SamplingConfig& sampling);

/// Stop strings and ids, end token, and the fewest tokens under its name in the dialect.
void read_stop_fields(FieldReader& fields,
                      std::string_view min_tokens_name,
                      engine::GenerationRequest& request);

/// Faults are in fields.status().
GenerationFields read_generation_fields(FieldReader& fields);

}  // namespace baleen::server
