#pragma once
// The drift tour: how far log-probabilities of the same texts lie apart when the rollout's copy of
// a small model computes in other formats than its trainer, and what of it replayed choices remove.
// Pure; one thread.
//
//   std::vector<TourCell> cells = run_tour(params, samples, rollouts);
//   std::string table = tour_text(cells);

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "rl/study_model.h"

namespace baleen::rl {

struct TourCell {
  std::string rollout;  // formats, as numeric_side() reads them
  std::string replay;   // none, routes, picks, both
  double mean_abs = 0.0;
  double max = 0.0;
  double k3 = 0.0;
  double route_agreement = 1.0;  // of the trainer's own choices with the rollout's
  double pick_jaccard = 1.0;
};

/// Each of `rollouts` against a trainer in float32, over the trained tokens of `samples`.
std::vector<TourCell> run_tour(const model::ModelParameters& params,
                               std::span<const train::Sample> samples,
                               std::span<const std::string> rollouts);

/// The tour over a model taught for it and 256 texts that teaching has not used, as text.
std::string taught_tour(const TeachConfig& teach,
                        std::span<const std::string> rollouts,
                        const std::function<void(const std::string&)>& say);

/// Rows by rollout, columns by replay: mean / max / k3, in Markdown.
std::string tour_text(std::span<const TourCell> cells);

}  // namespace baleen::rl
