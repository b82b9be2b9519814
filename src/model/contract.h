#pragma once
// How this program computes a token, as a text that two of its parts compare: operators with the
// version of their kernel, order of sums, tie rules, roundings, the formats of the weights, the
// model's options and the instruction set. Equal contracts and invariant sums mean equal bits.
// Pure.
//
//   std::string text = execution_contract(params, numerics);
//   std::string digest = contract_digest(params, numerics);   // 32 hexadecimal digits

#include <string>

#include "model/parameters.h"
#include "ops/numerics_config.h"

namespace baleen::model {

/// One "key value" a line.
std::string execution_contract(const ModelParameters& params, const ops::Numerics& numerics);
/// xxh3-128 of it. Written to checkpoints and samples, compared before weights are taken.
std::string contract_digest(const ModelParameters& params, const ops::Numerics& numerics);

}  // namespace baleen::model
