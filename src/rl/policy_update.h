#pragma once
// What training does with the batch of a rollout: log-probabilities under the weights that the
// rollout had, rewards to advantages, and one optimizer step per minibatch. The minibatches are
// groups in order, cut as evenly as they go. On a mesh every rank runs the update on the same
// batch. One thread per rank.
//
//   std::unique_ptr<PolicyPasses> passes = passes_of(trainer);
//   PolicyUpdate update(config, *passes);
//   UpdateReport report = update.run(batch, weight_version);

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "policy/drift.h"
#include "rl/policy_passes.h"
#include "rl/rl_config.h"
#include "rl/rollout_sample.h"
#include "train/choice_replay.h"
#include "train/row_logprobs.h"

namespace baleen::rl {

struct UpdateReport {
  policy::Metrics metrics;  // train/*, drift/*, rollout/log_probs and the like
  policy::DriftReport drift;
  int64_t steps = 0;  // optimizer steps; 0 where too few groups were kept
  int64_t trained_tokens = 0;
  double gradient_norm = 0.0;  // mean over the steps
  double entropy = 0.0;        // mean over the response tokens, nats
  double least_ess = 1.0;      // of the steps: effective share of samples, where it was measured
  double score_seconds = 0.0;  // log-probabilities without gradient
  double train_seconds = 0.0;  // all of it
};

class PolicyUpdate {
 public:
  /// `passes` outlive the update.
  PolicyUpdate(const RlConfig& config, PolicyPasses& passes);

  /// `reference`: weights of the start of the run (on a mesh this rank's parts), needed where a KL
  /// term has a coefficient.
  void set_reference(model::ModelParameters reference) { reference_ = std::move(reference); }

  /// Throws Error naming sample, token and log-probabilities when one is not finite.
  UpdateReport run(const RolloutBatch& batch, int64_t version);

 private:
  /// One answer on its way through the update. Arrays are over the response.
  struct Row {
    const RolloutSample* sample = nullptr;
    double reward = 0.0;  // after shaping
    std::vector<uint8_t> mask;
    std::vector<float> current;  // l
    std::vector<float> old;      // l_old
    std::vector<float> reference;
    std::vector<float> entropy;  // at the weights of the rollout
    std::vector<float> current_entropy;
    std::vector<double> advantages;
    std::vector<double> returns;
    std::vector<double> weights;
    std::vector<uint8_t> keep;
    bool scored = false;  // old and entropy are known
    bool trained() const;
    std::size_t first_value() const;
  };

  std::vector<Row> make_rows(const RolloutBatch& batch) const;
  /// Fills old and entropy of the rows that have a trained token, by the trainer's weights; or
  /// reference, by those.
  void score(std::span<Row*> rows, const model::ModelParameters* reference);
  train::MeshPassOptions pass_settings(const train::ChoiceReplay* replay,
                                       const model::ModelParameters* params) const;
  void fill_replay(std::span<const Row> rows, UpdateReport& report);
  void find_advantages(std::span<Row> rows) const;
  void step(std::span<Row> rows, UpdateReport& report, int64_t index);
  static void take_value(Row& row, std::size_t t, double logprob, double entropy, bool first);
  train::TokenGradients gradients(const train::PackedBatch& batch,
                                  const train::RowLogprobs& values,
                                  const std::map<int64_t, Row*>& by_number,
                                  const policy::StepTotals& totals,
                                  bool first) const;
  void correct_rows(std::span<Row> rows, UpdateReport& report) const;
  policy::PolicyRow policy_row(const Row& row) const;
  void add_means(std::span<const Row> rows, int64_t version, UpdateReport& report) const;

  const RlConfig& config_;
  PolicyPasses& passes_;
  policy::PolicyLossConfig loss_;
  policy::AdvantageConfig advantage_;
  train::ChoiceReplay replay_;  // of the batch in work
  std::optional<model::ModelParameters> reference_;
};

}  // namespace baleen::rl
