#include "ops/numerics_config.h"

#include <string>

#include "base/error.h"

namespace baleen::ops {

Numerics Numerics::reference() {
  return Numerics{};
}

Numerics Numerics::plain() {
  Numerics numerics;
  numerics.round_activations = false;
  numerics.linear_activation = LinearActivation::kNone;
  numerics.kv_s8 = false;
  numerics.indexer_quant = IndexerQuant::kNone;
  numerics.index_score = IndexScore::kCompute;
  numerics.rope_table = RopeTableType::kCompute;
  return numerics;
}

/// Between the two parts of a name may stand "+fp8kv": rows and entries are rounded as a cache of
/// 8 bits has them, where the base rounds nothing.
Numerics Numerics::by_name(std::string_view name) {
  std::string_view base = name;
  const auto take = [&](std::string_view suffix) {
    const bool found = base.ends_with(suffix);
    base.remove_suffix(found ? suffix.size() : 0);
    return found;
  };
  const bool invariant = take("+invariant");
  const bool rounded_rows = take("+fp8kv");
  if (base != "reference" && base != "plain") {
    throw ConfigError("numerics \"" + std::string(name) +
                      "\" is not known; known are \"reference\" and \"plain\", behind either "
                      "perhaps \"+fp8kv\", then perhaps \"+invariant\"");
  }
  Numerics numerics = base == "plain" ? plain() : reference();
  numerics.kv_s8 = numerics.kv_s8 || rounded_rows;
  numerics.summation = invariant ? Summation::kInvariant : Summation::kFast;
  return numerics;
}

}  // namespace baleen::ops
