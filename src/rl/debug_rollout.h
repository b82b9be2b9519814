#pragma once
// A rollout on disk for whoever wants to look at it: one column file per rollout
// (policy/column_file.h), which numpy reads without a parser. One thread.
//
//   save_debug_rollout("out/debug", batch);          // out/debug/<rollout>.bin
//   RolloutBatch batch = load_debug_rollout("out/debug", 12);
//
// Rows are samples, by group and index. i64 [rows]: sample, group; i32 [rows]: prompt_tokens,
// retries; f64 [rows]: reward, accuracy (NaN: none); u8 [rows]: status (SampleStatus), removed.
// Per token: i64 [rows + 1] token_begin, i32 tokens; i64 [rows + 1] response_begin, f32 logprobs,
// u8 mask; i64 [rows + 1] version_begin, i64 [runs, 2] versions (version, count). Records of
// choices, empty where none: i32 [rows, 2] choices (first position, positions; -1, 0 where none),
// i64 [rows + 1] route_begin, u8 routes; i64 [rows + 1] pick_begin, u8
// picks, as in cache/choice_records.h. texts: a JSON array of {prompt, label, response}.

#include <cstdint>
#include <filesystem>

#include "rl/rollout_sample.h"

namespace baleen::rl {

/// Makes `folder`. Throws SystemError naming the path.
void save_debug_rollout(const std::filesystem::path& folder, const RolloutBatch& batch);

/// What training needs of a saved rollout, in the same order; counts other than the mean reward are
/// 0. Throws Error naming file and column when it is missing, damaged or does not fit together.
RolloutBatch load_debug_rollout(const std::filesystem::path& folder, int64_t rollout);

}  // namespace baleen::rl
