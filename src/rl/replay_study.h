#pragma once
// Does replaying the rollout's choices lower the difference between rollout and trainer, and bring
// the gradient nearer to that of exact numbers? A grid of formats and replays over texts of one
// length, with controls that must fail; fixed weights, no updates. docs/experiments/ has what it
// gave. One thread; a function of its arguments.
//
//   StudyReport report = run_study(params, older, {.length = 64});
//   print(study_text(report));

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "rl/study_model.h"

namespace baleen::rl {

struct StudyConfig {
  int64_t length = 64;  // tokens of a text
  int64_t num_texts = 64;
  uint64_t seed = 1;  // of texts, advantages and resampling
  int64_t resamples = 1000;
  bool gradients = true;
};

/// Numbers over the tokens from position 4 topk + 4 on, where there is something to choose, and
/// over those before.
struct DriftCell {
  std::string gap;     // formats of rollout and trainer
  std::string replay;  // none, routes, picks, both, or a control
  double mean_abs = 0.0;
  double error = 0.0;  // standard error of that mean over texts
  double p99 = 0.0;
  double max = 0.0;
  double k3 = 0.0;
  double extreme = 0.0;         // share above ln 2
  double early_mean_abs = 0.0;  // over the tokens before
  // Against the cell "both" of the gap (of controls) or "routes" (of both): difference of the means
  // with its 95 % interval, texts resampled in pairs.
  double difference = 0.0;
  double difference_low = 0.0;
  double difference_high = 0.0;
  double difference_error = 0.0;  // standard error
  double route_agreement = 1.0;
  double pick_jaccard = 1.0;
};

struct GradientCell {
  std::string gap;
  std::string replay;
  std::string parameters;  // class, or "all"
  double cosine = 0.0;     // with the gradient of exact numbers
  double distance = 0.0;   // |g - g*| / |g*|
};

struct StudyReport {
  StudyConfig config;
  // Step 1: sets of the serving model token by token against those of its prefill of the finished
  // texts (1: equal), by layer, and against the trainer's own under the exact contract.
  std::vector<double> decode_jaccard;
  std::vector<double> trainer_jaccard;
  std::vector<DriftCell> drift;
  std::vector<GradientCell> gradients;
  double pick_bytes_per_token = 0.0;
  double route_bytes_per_token = 0.0;
};

/// `params`: float32 weights of a small model. `older`: the same model some steps before, for the
/// control with stale sets. `say` hears what is being done; may be empty.
StudyReport run_study(const model::ModelParameters& params,
                      const model::ModelParameters& older,
                      const StudyConfig& config,
                      const std::function<void(const std::string&)>& say = {});

/// As tables in Markdown.
std::string study_text(const StudyReport& report);

/// The study on a model taught for it, for each length; `show` gets the tables as they are done.
void taught_study(const TeachConfig& teach,
                  const StudyConfig& config,
                  std::span<const int64_t> lengths,
                  const std::function<void(const std::string&)>& say,
                  const std::function<void(const std::string&)>& show);

}  // namespace baleen::rl
