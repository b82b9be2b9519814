#pragma once
// The chunked head (model/row_logprobs.h) under the names of training.

#include "model/row_logprobs.h"

namespace baleen::train {

using model::LogprobOptions;
using model::row_logprobs;
using model::RowLogprobs;

}  // namespace baleen::train
