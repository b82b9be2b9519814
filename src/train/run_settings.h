#pragma once
// What a resumed run must have in common with the saved one, by the name of the flag. Plain data,
// no Torch.

#include <map>
#include <string>

namespace baleen::train {

using RunSettings = std::map<std::string, std::string>;

}  // namespace baleen::train
