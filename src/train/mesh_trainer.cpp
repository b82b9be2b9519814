#include "train/mesh_trainer.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>

#include "base/check.h"
#include "mesh/collectives.h"
#include "train/mesh_hooks.h"
#include "train/mesh_objective.h"

namespace baleen::train {
namespace {

at::Tensor weighted_sum(const at::Tensor& by_token,
                        const at::Tensor& token_index,
                        const at::Tensor& values) {
  return (by_token.index_select(0, token_index).to(values.options()) * values).sum();
}

/// Puts what a rank knows of its targets where all ranks look for it.
class ValueNotes {
 public:
  explicit ValueNotes(const StepCut& cut)
      : cut_(cut),
        total_(cut.first_token(cut.num_samples())),
        flat_(2 * static_cast<std::size_t>(total_), 0.0) {}

  void note(const MeshPart& part, const mesh::TokenRows& rows) {
    if (!part.counts) {
      return;
    }
    const auto put = [&](const at::Tensor& values, int64_t first) {
      for_each_token(rows.token_index, values, [&](double value, int64_t token) {
        if (part.target_place.const_data_ptr<int64_t>()[token] < 0) {
          return;
        }
        const PackedSample& sample = part.sample_of(token);
        const int64_t place =
            cut_.first_token(cut_.index_of(sample.number)) + token - sample.row_begin;
        flat_[static_cast<std::size_t>(first + place)] = value;
      });
    };
    put(rows.logprobs, 0);
    put(rows.entropy, total_);
  }
  std::vector<double>& flat() { return flat_; }

 private:
  const StepCut& cut_;
  int64_t total_;
  std::vector<double> flat_;
};

/// The values of all targets of a micro-batch on each of its context ranks.
RowLogprobs gathered(const MeshPart& part, const mesh::TokenRows& rows, const comm::Mesh& mesh) {
  const at::Tensor place = part.target_place.index_select(0, rows.token_index);
  const at::Tensor own = at::nonzero(place.ge(0)).squeeze(-1);
  const at::Tensor targets = place.index_select(0, own);
  const int64_t count = part.batch.main.rows.size(0);
  const auto spread = [&](const at::Tensor& values) {
    return at::zeros({count}, values.options().requires_grad(false))
        .index_copy(0, targets, values.detach().index_select(0, own));
  };
  at::Tensor both = at::stack({spread(rows.logprobs), spread(rows.entropy)}, 0);
  comm::Group& context = mesh.group(comm::Axis::kCp);
  if (context.size() > 1) {
    mesh::sum_in_place(both, context);
  }
  RowLogprobs values;
  values.logprobs = both[0];
  values.entropy = both[1];
  return values;
}

/// Choices of the replay for every part, and the micro-batches that take them.
struct ReplayedBatches {
  ReplayedBatches(const StepCut& cut, const ChoiceReplay* replay) {
    const bool replays = replay != nullptr && replay->parts().any();
    given.reserve(cut.parts().size());
    for (const MeshPart& part : cut.parts()) {
      mesh::MicroBatch& batch = batches.emplace_back(part.micro_batch());
      if (replays && part.counts) {
        given.push_back(replay->given(part.batch));
        batch.given = &given.back();
      }
    }
  }
  std::vector<model::ChoicesByLayer> given;
  std::vector<mesh::MicroBatch> batches;
};

}  // namespace

MeshTrainer::MeshTrainer(Masters masters,
                         const TrainerConfig& config,
                         const comm::Mesh& mesh,
                         const MeshPlan& plan)
    : mesh_(mesh),
      plan_(plan),
      trainer_(std::move(masters), config, mesh_hooks(mesh, plan.stages, config.optimizer)) {}

StepCut MeshTrainer::cut(const std::vector<Sample>& samples,
                         const LossDenominators& denominators) const {
  const TrainerConfig& config = trainer_.config();
  const int64_t stages = mesh_.shape().pp;
  return {samples,
          denominators,
          trainer_.masters().config(),
          mesh_,
          {.pack = {.dtype = trainer_.masters().flat_values().scalar_type(),
                    .pad_multiple = config.pad_multiple},
           .max_tokens = config.micro_batch_tokens,
           .least_batches = stages,
           .multiple = plan_.stages.chunks_per_rank() > 1 ? stages : 1,
           .zig_zag = plan_.zig_zag}};
}

mesh::MeshModelOptions MeshTrainer::model_options(const MeshPassOptions& options) const {
  const ObjectiveConfig& objective = trainer_.config().objective;
  mesh::MeshModelOptions out;
  out.numerics = objective.numerics;
  out.temperature = options.temperature;
  out.chunk_rows = objective.chunk_rows;
  out.recompute = objective.recompute;
  return out;
}

StepReport MeshTrainer::step(const std::vector<Sample>& samples) {
  const ModelConfig& config = trainer_.masters().config();
  const ObjectiveConfig& objective = trainer_.config().objective;
  const bool with_mtp = objective.mtp_weight != 0.0;
  const StepTotals totals = step_totals(samples, objective, config);
  const StepCut cut = this->cut(samples, totals.loss);
  StepNumbers numbers(cut, config);
  const LayerLosses layers(cut, totals, objective, config, mesh_, numbers);

  begin_step();
  mesh::MeshModelOptions options = model_options({});
  options.with_mtp = with_mtp;
  options.routing = true;
  options.index = objective.index_weight != 0.0;
  options.layer_loss = [&](const mesh::LayerRows& rows) { return layers.of(rows); };
  std::vector<mesh::MicroBatch> batches;
  for (const MeshPart& part : cut.parts()) {
    batches.push_back(part.micro_batch());
  }
  mesh::MeshModel model(trainer_.masters().leaves(),
                        mesh_,
                        plan_.stages,
                        trainer_.tables(cut.longest_row()),
                        std::move(options));
  model.run(batches, plan_.order, [&](int micro_batch, const mesh::TokenRows& rows) {
    const MeshPart& part = cut.parts()[static_cast<std::size_t>(micro_batch)];
    const bool notes = mesh_.place().tp == 0;
    at::Tensor total = weighted_sum(part.coefficients, rows.token_index, rows.logprobs).neg();
    if (notes) {
      note_losses(cut, part, false, rows.token_index, rows.logprobs, numbers);
    }
    if (with_mtp) {
      total =
          total - objective.mtp_weight *
                      weighted_sum(part.mtp_coefficients, rows.mtp_token_index, rows.mtp_logprobs);
      if (notes) {
        note_losses(cut, part, true, rows.mtp_token_index, rows.mtp_logprobs, numbers);
      }
    }
    return total;
  });

  numbers.share(mesh_);
  StepReport report;
  report.samples = static_cast<int64_t>(samples.size());
  report.targets = count_targets(samples);
  report.tokens = cut.first_token(cut.num_samples());
  report.micro_batches = cut.num_micro_batches() * mesh_.shape().dp;
  report.loss = numbers.loss(false);
  report.mtp_loss = numbers.loss(true);
  const std::vector<std::size_t> scored = scored_layers(config, with_mtp);
  report.balance = numbers.balance() / static_cast<double>(std::max<std::size_t>(scored.size(), 1));
  report.index_loss = numbers.index();
  finish_step(report);
  if (trainer_.config().bias_rate != 0.0 && !report.skipped) {
    std::vector<at::Tensor> loads;
    for (const std::size_t layer : scored) {
      loads.push_back(numbers.load(layer));
    }
    trainer_.balance_routers(loads);
  }
  return report;
}

std::vector<SampleValues> MeshTrainer::shared(const StepCut& cut, std::vector<double>& flat) const {
  sum_over_world(flat, mesh_);
  std::vector<SampleValues> values;
  const auto total = static_cast<std::size_t>(cut.first_token(cut.num_samples()));
  for (std::size_t i = 0; i < cut.num_samples(); ++i) {
    const auto begin = static_cast<std::ptrdiff_t>(cut.first_token(i));
    const auto end = static_cast<std::ptrdiff_t>(cut.first_token(i + 1));
    const auto entropy = flat.begin() + static_cast<std::ptrdiff_t>(total);
    values.push_back({.number = cut.number(i),
                      .logprobs = {flat.begin() + begin, flat.begin() + end},
                      .entropy = {entropy + begin, entropy + end}});
  }
  return values;
}

std::vector<SampleValues> MeshTrainer::run(const StepCut& cut,
                                           const MeshPassOptions& options,
                                           const PartLoss& loss) {
  BALEEN_CHECK(options.params == nullptr, "gradients of another model");
  const ReplayedBatches replayed(cut, options.replay);
  ValueNotes notes(cut);
  mesh::MeshModel model(trainer_.masters().leaves(),
                        mesh_,
                        plan_.stages,
                        trainer_.tables(cut.longest_row()),
                        model_options(options));
  model.run(replayed.batches, plan_.order, [&](int micro_batch, const mesh::TokenRows& rows) {
    const MeshPart& part = cut.parts()[static_cast<std::size_t>(micro_batch)];
    if (mesh_.place().tp == 0) {
      notes.note(part, rows);
    }
    if (!part.counts || part.batch.main.rows.size(0) == 0) {
      return rows.logprobs.sum() * 0.0;
    }
    const TokenGradients gradients = loss(part.batch, gathered(part, rows, mesh_));
    const auto by_token = [&](const at::Tensor& gradient) {
      const at::Tensor values = gradient.to(rows.logprobs.options().requires_grad(false));
      return at::zeros({part.batch.num_rows()}, values.options())
          .index_copy(0, part.batch.main.rows, values);
    };
    at::Tensor total = weighted_sum(by_token(gradients.logprobs), rows.token_index, rows.logprobs);
    if (gradients.entropy.defined()) {
      total = total + weighted_sum(by_token(gradients.entropy), rows.token_index, rows.entropy);
    }
    return total;
  });
  return shared(cut, notes.flat());
}

std::vector<SampleValues> MeshTrainer::forward(const StepCut& cut, const MeshPassOptions& options) {
  const ReplayedBatches replayed(cut, options.replay);
  ValueNotes notes(cut);
  mesh::MeshModel model(options.params == nullptr ? trainer_.masters().leaves() : *options.params,
                        mesh_,
                        plan_.stages,
                        trainer_.tables(cut.longest_row()),
                        model_options(options));
  model.run_forward(replayed.batches, [&](int micro_batch, const mesh::TokenRows& rows) {
    if (mesh_.place().tp == 0) {
      notes.note(cut.parts()[static_cast<std::size_t>(micro_batch)], rows);
    }
  });
  return shared(cut, notes.flat());
}

}  // namespace baleen::train
