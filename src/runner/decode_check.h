#pragma once
// Holds a decode path against the model's body before anything is served: a wrong layout, weight or
// kernel shows in the logits of any text. Uses the pools' first pages and the first slot, so it
// runs before the engine hands pages out.
//
//   const double distance = check_decode_path(model, pools, path);   // throws when it is far

#include "cache/pool_memory.h"
#include "model/forward.h"
#include "runner/decode_path.h"

namespace baleen::runner {

/// Runs a stored text in both: a path that runs prompts all of it, over rows of its own, which the
/// body reads in the end; any other the tokens behind a prompt of the body's, each reading what the
/// other wrote. Where the path runs drafts, rows of the draft layer too. Returns the rms difference
/// of their logits over the rms of the body's around their mean, the larger of the two. Throws
/// Error when one is above half, or a logit is not finite: rounding to 8 and 4 bits explains some
/// hundredths to two tenths, while rows of another token, page or layer give more than one.
double check_decode_path(model::Model& model, cache::PoolMemory& pools, DecodePath& path);

}  // namespace baleen::runner
