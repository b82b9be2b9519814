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

Numerics Numerics::by_name(std::string_view name) {
  constexpr std::string_view kSuffix = "+invariant";
  const bool invariant = name.ends_with(kSuffix);
  const std::string_view base = name.substr(0, name.size() - (invariant ? kSuffix.size() : 0));
  if (base != "reference" && base != "plain") {
    throw ConfigError("numerics \"" + std::string(name) +
                      "\" is not known; known are \"reference\" and \"plain\", each also with "
                      "\"+invariant\"");
  }
  Numerics numerics = base == "plain" ? plain() : reference();
  numerics.summation = invariant ? Summation::kInvariant : Summation::kFast;
  return numerics;
}

}  // namespace baleen::ops
