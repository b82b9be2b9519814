#pragma once
// A nano model taught for a measurement: by single problems, as the warm-up of the nano job, or by
// texts of one length made of problem after problem. A function of its arguments. One thread.
//
//   TaughtModel model = taught_nano({.seed = 1, .steps = 160});

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "model/parameters.h"
#include "train/packed_batch.h"

namespace baleen::rl {

struct TeachConfig {
  uint64_t seed = 1;
  int64_t steps = 160;
  int64_t length = 0;     // tokens of a text; 0: a problem and its answer
  int64_t texts = 64;     // of one step
  int64_t older_by = 50;  // steps before the end at which the older copy is taken
};

struct TaughtModel {
  model::ModelParameters params;
  model::ModelParameters older;  // as it was `older_by` steps before
  double loss = 0.0;             // of the last step
};

/// `say` hears of the progress; may be empty.
TaughtModel taught_nano(const TeachConfig& config,
                        const std::function<void(const std::string&)>& say = {});

/// Texts that teaching uses, from number `first` on; with a length all tokens but the first are
/// trained, else those of the answer.
std::vector<train::Sample> teaching_texts(const TeachConfig& config, int64_t first, int64_t count);

}  // namespace baleen::rl
