#pragma once
// Per-expert token lists of a decode step: which (token, slot) entries each expert works on, in a
// stable order. Built on the device from the routes, in one block; counting and placing are integer
// work, so the lists are the same in every run.
//
//   build_expert_lists({.routes = ids, .weights = weights, .num_tokens = m, .top = 6,
//                       .num_experts = 256, .shared_expert = true, .lists = lists}, stream);
//
// A unit is one expert with up to 8 of its entries; an expert with more has several units. Units
// and their entries are ordered by (expert, token, slot). The shared expert, if any, is expert
// number `num_experts`, takes every token with weight 1 in slot `top`, and its units come first (it
// has the most bytes). Entry = token * slots + slot, slots = top (+ 1). Size of the list:
// max_expert_units.

#include <cstdint>

#include "device/stream_handle.h"

namespace baleen::kernels {

inline constexpr int kExpertUnitTokens = 8;
inline constexpr int kMaxListTokens = 1024;
inline constexpr int kMaxListExperts = 512;

struct alignas(16) ExpertUnit {
  int32_t expert = 0;
  int32_t begin = 0;  // place of the first entry among all entries in list order
  int32_t count = 0;  // 1..8
  int32_t unused = 0;
  int32_t entries[kExpertUnitTokens] = {};
  float weights[kExpertUnitTokens] = {};  // of the entries
};

struct ExpertLists {
  int32_t* num_units = nullptr;  // i32 [1]
  ExpertUnit* units = nullptr;   // [max_expert_units]
};

/// Errors: sizes outside the limits above are a programmer's error (checked). Ids outside
/// [0, num_experts) trap. Sync: none; capture-safe; allocates nothing. Zero tokens give zero units.
struct ExpertListsParams {
  const int32_t* routes = nullptr;  // i32 [num_tokens, top], experts
  const float* weights = nullptr;   // f32 [num_tokens, top]
  int32_t num_tokens = 0;           // at most 1,024
  int32_t top = 0;                  // 1..7
  int32_t num_experts = 0;          // at most 512
  bool shared_expert = false;
  ExpertLists lists = {};  // out
};

inline int64_t max_expert_units(int64_t num_tokens,
                                int64_t top,
                                int64_t num_experts,
                                bool shared_expert) {
  const int64_t routed = num_tokens * top;
  const int64_t experts = routed < num_experts ? routed : num_experts;
  const int64_t shared =
      shared_expert ? (num_tokens + kExpertUnitTokens - 1) / kExpertUnitTokens : 0;
  return experts + routed / kExpertUnitTokens + shared;
}

/// Aborts when sizes are outside the limits above.
void check_list_sizes(const ExpertListsParams& params);

void build_expert_lists(const ExpertListsParams& params, device::StreamHandle stream);

}  // namespace baleen::kernels
