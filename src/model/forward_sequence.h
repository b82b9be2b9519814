#pragma once
// What the Sequence of forward.h holds, for the files that implement it.

#include <ATen/core/Tensor.h>

#include "model/forward.h"
#include "model/sequence_state.h"

namespace baleen::model {

struct Sequence::State {
  SequenceState value;
  at::Tensor draft_streams = {};  // what draft_streams() gave out
};

}  // namespace baleen::model
