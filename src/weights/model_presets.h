#pragma once
// Shapes known by name: the two published models and small relatives. They need no file at run
// time.
//
//   ModelConfig config = preset_config("flash");   // flash, pro, flash-4layer, tiny

#include <string>
#include <string_view>
#include <vector>

#include "base/model_config.h"

namespace baleen::weights {

ModelConfig flash_config();         // 284B parameters, 43 layers
ModelConfig pro_config();           // 1.6T parameters, 61 layers
ModelConfig flash_4layer_config();  // Flash widths, layers of every kind, 16 experts
ModelConfig tiny_config();          // all layer kinds in about a million parameters

const std::vector<std::string>& preset_names();
/// Throws ConfigError listing the known names.
ModelConfig preset_config(std::string_view name);

}  // namespace baleen::weights
