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
  if (name == "reference") {
    return reference();
  }
  if (name == "plain") {
    return plain();
  }
  throw ConfigError("numerics \"" + std::string(name) +
                    "\" is not known; known are \"reference\" and \"plain\"");
}

}  // namespace baleen::ops
