#pragma once
// What someone who watches an engine sees of its inside: how full the pools are, totals, and on
// request the cache tree. Plain data, taken by the engine's thread between two steps, so it costs
// nothing while nobody asks.
//
//   Result<EngineView> view = engine.look({.tree = cache::TreeViewOptions{}}, 500ms);

#include <cstdint>
#include <optional>

#include "cache/pool_fill.h"
#include "cache/tree_view.h"

namespace baleen::engine {

struct EngineLook {
  std::optional<cache::TreeViewOptions> tree;  // none: without the tree
};

struct EngineView {
  std::optional<cache::PoolFills> pools;  // none: no shared cache
  std::optional<cache::TreeView> tree;    // where asked for; none: no cache, or no such node
  int64_t prefilled_tokens = 0;           // prompt tokens run since the start
  double step_s = 0.0;                    // time that steps ran since the start
};

}  // namespace baleen::engine
