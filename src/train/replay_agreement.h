#pragma once
// How far a trainer would have chosen by itself what a replay gave it. Pure.
//
//   ReplayAgreement agreement = replay_agreement(params, batch, given, out.taps);
//   agreement.route_agreement();   // 1: it would have chosen the same

#include "model/choices.h"
#include "model/parameters.h"
#include "model/taps.h"
#include "train/packed_batch.h"

namespace baleen::train {

/// Sums, so that micro-batches add up.
struct ReplayAgreement {
  double experts_equal = 0.0;  // recorded experts that are among the trainer's own
  double num_experts = 0.0;
  double margins = 0.0;  // own score of the last chosen expert minus that of the first not chosen
  double num_routes = 0.0;  // tokens times routed layers
  double jaccards = 0.0;    // of recorded and own sets, where there was something to choose
  double num_sets = 0.0;

  void add(const ReplayAgreement& more);
  double route_agreement() const { return num_experts > 0.0 ? experts_equal / num_experts : 1.0; }
  double route_margin() const { return num_routes > 0.0 ? margins / num_routes : 0.0; }
  double pick_jaccard() const { return num_sets > 0.0 ? jaccards / num_sets : 1.0; }
};

/// Of the fed tokens of `batch`: routes in layers whose router scores are among `taps`, picks in
/// those with index scores. `given`: what the forward took.
ReplayAgreement replay_agreement(const model::ModelParameters& params,
                                 const PackedBatch& batch,
                                 const model::ChoicesByLayer& given,
                                 const model::Taps& taps);

}  // namespace baleen::train
