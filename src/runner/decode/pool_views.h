#pragma once
// The pools of the shared cache as the kernels see them.
//
//   set_pool_views(model, pools);    // every layer's window, entries, index keys and rings

#include "cache/pool_memory.h"
#include "runner/decode/decode_model.h"

namespace baleen::runner {

/// Fills the pool addresses of `model`, whose layers are those that the pools were made for. Throws
/// ConfigError naming the first pool whose formats or layout are not the kernels'.
void set_pool_views(DecodeModel& model, cache::PoolMemory& pools);

/// The same for the draft layer, whose window rows lie behind those of `main_layers`.
void set_draft_pool_view(DecodeModel& draft, int64_t main_layers, cache::PoolMemory& pools);

}  // namespace baleen::runner
