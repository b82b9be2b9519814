#pragma once
// How often the nano model solves the evaluation's problems. Any thread.
//
//   double share = sort_accuracy(masters.leaves(), numerics);

#include "model/parameters.h"
#include "ops/numerics_config.h"

namespace baleen::train {

/// Share of the evaluation's problems whose every answer token, the end token included, is the
/// likeliest one behind the right ones before it; equals exactness of greedy decoding.
double sort_accuracy(const model::ModelParameters& params, const ops::Numerics& numerics);

}  // namespace baleen::train
