#include "rl/drift_tour.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include <fmt/format.h>

#include "rl/numeric_cell.h"

namespace baleen::rl {
namespace {

constexpr int64_t kTourTexts = 256;
constexpr const char* kReplays[] = {"none", "routes", "picks", "both"};

void fill_tour_cell(const ScoredTexts& rollout,
                    const ScoredTexts& trainer,
                    std::span<const train::Sample> samples,
                    TourCell& cell) {
  double tokens = 0.0;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    for (std::size_t t = 0; t < rollout.logprobs[i].size(); ++t) {
      if (samples[i].weights[t + 1] == 0.0F) {
        continue;
      }
      const double delta =
          static_cast<double>(trainer.logprobs[i][t]) - static_cast<double>(rollout.logprobs[i][t]);
      tokens += 1.0;
      cell.mean_abs += std::abs(delta);
      cell.max = std::max(cell.max, std::abs(delta));
      cell.k3 += std::expm1(delta) - delta;
    }
  }
  cell.mean_abs /= std::max(1.0, tokens);
  cell.k3 /= std::max(1.0, tokens);
}

}  // namespace

std::vector<TourCell> run_tour(const model::ModelParameters& params,
                               std::span<const train::Sample> samples,
                               std::span<const std::string> rollouts) {
  std::vector<TokenIds> texts;
  for (const train::Sample& sample : samples) {
    texts.push_back(sample.ids);
  }
  const NumericSide trainer = numeric_side(params, "f32");
  std::vector<TourCell> cells;
  for (const std::string& rollout : rollouts) {
    const ScoredTexts seen = score_recording(numeric_side(params, rollout), texts);
    for (const char* replay : kReplays) {
      TourCell cell{.rollout = rollout, .replay = replay};
      const ScoredTexts taken =
          score_replaying(trainer, texts, seen.choices, train::replay_parts_by_name(replay));
      fill_tour_cell(seen, taken, samples, cell);
      cell.route_agreement = taken.agreement.route_agreement();
      cell.pick_jaccard = taken.agreement.pick_jaccard();
      cells.push_back(cell);
    }
  }
  return cells;
}

std::string taught_tour(const TeachConfig& teach,
                        std::span<const std::string> rollouts,
                        const std::function<void(const std::string&)>& say) {
  const TaughtModel model = taught_nano(teach, say);
  const std::vector<train::Sample> texts =
      teaching_texts(teach, teach.steps * teach.texts, kTourTexts);
  return fmt::format("Seed {}, {} steps of warm-up (loss {:.3f}), {} texts of the teacher.\n\n{}",
                     teach.seed,
                     teach.steps,
                     model.loss,
                     kTourTexts,
                     tour_text(run_tour(model.params, texts, rollouts)));
}

std::string tour_text(std::span<const TourCell> cells) {
  std::string text =
      "| Rollout side | none | routes | picks | both | routes equal | picks equal |\n"
      "|---|---|---|---|---|---|---|\n";
  for (std::size_t i = 0; i < cells.size(); i += std::size(kReplays)) {
    text += "| " + cells[i].rollout + " |";
    double routes = 1.0;
    double picks = 1.0;
    for (std::size_t k = 0; k < std::size(kReplays); ++k) {
      const TourCell& cell = cells[i + k];
      text += fmt::format(" {:.1e} / {:.2f} / {:.1e} |", cell.mean_abs, cell.max, cell.k3);
      routes = cell.replay == "routes" ? cell.route_agreement : routes;
      picks = cell.replay == "picks" ? cell.pick_jaccard : picks;
    }
    text += fmt::format(" {:.4f} | {:.4f} |\n", routes, picks);
  }
  return text;
}

}  // namespace baleen::rl
