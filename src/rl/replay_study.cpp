#include "rl/replay_study.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <numeric>
#include <span>
#include <string_view>
#include <utility>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "cache/pick_codec.h"
#include "model/forward.h"
#include "rl/numeric_cell.h"
#include "train/sort_task.h"

namespace baleen::rl {
namespace {

using cache::ChoiceLayout;
using cache::ChoiceRecords;
using Records = std::vector<ChoiceRecords>;

constexpr double kLogTwo = 0.6931471805599453;

struct Gap {
  const char* name;
  const char* rollout;
  const char* trainer;
  int64_t rollout_samples = 0;  // per forward
};

// "bf16": both sides round activations and matrices alike, and differ in what else is in a forward.
constexpr Gap kGaps[] = {
    {"exact", "f32", "f32"},
    {"bf16 / bf16", "bf16+bf16act", "bf16+bf16act", 1},
    {"fp8 KV / bf16", "bf16+bf16act+fp8kv", "bf16+bf16act", 1},
    {"fp8 all / bf16", "fp8block+bf16act+fp8kv", "bf16+bf16act", 1},
};

/// A small generator of its own: a control may not depend on the library.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15ULL + 0xD1B54A32D192ED03ULL) {}
  uint64_t next() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15ULL);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
  }
  int64_t below(int64_t bound) {
    return static_cast<int64_t>(next() % static_cast<uint64_t>(bound));
  }

 private:
  uint64_t state_;
};

/// The records with other sets: change(entries, visible) for every set that was stored.
template <class Change>
Records with_picks(const Records& records, const ChoiceLayout& layout, const Change& change) {
  Records changed = records;
  for (ChoiceRecords& record : changed) {
    const cache::ChoiceReader reader(layout, record);
    std::vector<uint8_t> bytes;
    for (int32_t t = 0; t < record.count; ++t) {
      const int32_t visible = layout.visible_entries(t);
      for (std::size_t layer = 0; layer < layout.picking_layers.size(); ++layer) {
        std::vector<int32_t> entries = reader.picks(t, layer);
        if (visible > layout.topk) {
          change(entries, visible);
          std::sort(entries.begin(), entries.end());
        }
        cache::encode_picks(entries, visible, layout.topk, bytes);
      }
    }
    record.picks = std::move(bytes);
  }
  return changed;
}

std::vector<int32_t> random_entries(int32_t visible, int32_t topk, Random& random) {
  std::vector<int32_t> all(static_cast<std::size_t>(visible));
  std::iota(all.begin(), all.end(), 0);
  for (std::size_t i = 0; i < static_cast<std::size_t>(topk); ++i) {
    std::swap(all[i],
              all[i + static_cast<std::size_t>(random.below(visible - static_cast<int32_t>(i)))]);
  }
  all.resize(static_cast<std::size_t>(topk));
  return all;
}

/// Mean Jaccard index of stored sets per picking layer.
std::vector<double> jaccard(const Records& a, const Records& b, const ChoiceLayout& layout) {
  std::vector<double> sums(layout.picking_layers.size(), 0.0);
  double count = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const cache::ChoiceReader first(layout, a[i]);
    const cache::ChoiceReader second(layout, b[i]);
    for (int32_t t = 0; t < a[i].count; ++t) {
      if (layout.visible_entries(t) <= layout.topk) {
        continue;
      }
      count += 1.0;
      for (std::size_t layer = 0; layer < sums.size(); ++layer) {
        const std::vector<int32_t> x = first.picks(t, layer);
        const std::vector<int32_t> y = second.picks(t, layer);
        std::vector<int32_t> common;
        std::set_intersection(x.begin(), x.end(), y.begin(), y.end(), std::back_inserter(common));
        sums[layer] += static_cast<double>(common.size()) /
                       static_cast<double>(x.size() + y.size() - common.size());
      }
    }
  }
  for (double& sum : sums) {
    sum = count > 0.0 ? sum / count : 1.0;
  }
  return sums;
}

/// What a serving model records while it gets `prefill` tokens at once and then one by one.
Records served_records(const model::ModelParameters& params,
                       const std::vector<TokenIds>& texts,
                       std::size_t prefill) {
  model::ForwardConfig config;
  config.numerics = "plain+invariant";
  config.record_choices = true;
  model::Model model(params, config);
  Records all;
  model::ForwardOutput output;
  for (const TokenIds& text : texts) {
    model::Sequence sequence = model.new_sequence();
    ChoiceRecords records;
    for (std::size_t begin = 0; begin + 1 < text.size();) {
      const std::size_t count = begin == 0 ? std::min(prefill, text.size() - 1) : std::size_t{1};
      const model::RowInput row{.sequence = &sequence,
                                .first_position = static_cast<int64_t>(begin),
                                .ids = std::span(text).subspan(begin, count),
                                .logits = model::LogitsWanted::kNone};
      model.forward({&row, 1}, output);
      for (std::size_t i = 0; i < count; ++i) {
        const auto routes = output.choices.routes_of(i);
        const auto picks = output.choices.picks_of(i);
        records.routes.insert(records.routes.end(), routes.begin(), routes.end());
        records.picks.insert(records.picks.end(), picks.begin(), picks.end());
      }
      begin += count;
    }
    records.count = static_cast<int32_t>(text.size()) - 1;
    all.push_back(std::move(records));
  }
  return all;
}

/// Sum and count of |difference| per text over the later tokens.
struct PerText {
  std::vector<double> sums;
  std::vector<double> counts;

  double mean() const {
    return std::accumulate(sums.begin(), sums.end(), 0.0) /
           std::max(1.0, std::accumulate(counts.begin(), counts.end(), 0.0));
  }
};

PerText fill_cell(const ScoredTexts& rollout,
                  const ScoredTexts& trainer,
                  int64_t early_end,
                  DriftCell& cell) {
  PerText per_text;
  std::vector<double> sizes;
  double early = 0.0;
  double early_count = 0.0;
  for (std::size_t i = 0; i < rollout.logprobs.size(); ++i) {
    double sum = 0.0;
    double count = 0.0;
    for (std::size_t t = 0; t < rollout.logprobs[i].size(); ++t) {
      const double delta =
          static_cast<double>(trainer.logprobs[i][t]) - static_cast<double>(rollout.logprobs[i][t]);
      if (static_cast<int64_t>(t) < early_end) {
        early += std::abs(delta);
        early_count += 1.0;
        continue;
      }
      sum += std::abs(delta);
      count += 1.0;
      sizes.push_back(std::abs(delta));
      cell.k3 += std::expm1(delta) - delta;
      cell.extreme += std::abs(delta) > kLogTwo ? 1.0 : 0.0;
    }
    per_text.sums.push_back(sum);
    per_text.counts.push_back(count);
  }
  const auto tokens = static_cast<double>(std::max<std::size_t>(sizes.size(), 1));
  cell.k3 /= tokens;
  cell.extreme /= tokens;
  cell.mean_abs = per_text.mean();
  cell.early_mean_abs = early / std::max(1.0, early_count);
  if (!sizes.empty()) {
    std::sort(sizes.begin(), sizes.end());
    cell.max = sizes.back();
    cell.p99 = sizes[std::min(sizes.size() - 1, sizes.size() * 99 / 100)];
  }
  double squares = 0.0;
  for (std::size_t i = 0; i < per_text.sums.size(); ++i) {
    const double mean = per_text.sums[i] / std::max(1.0, per_text.counts[i]);
    squares += (mean - cell.mean_abs) * (mean - cell.mean_abs);
  }
  const auto texts = static_cast<double>(per_text.sums.size());
  cell.error = std::sqrt(squares / std::max(1.0, texts - 1.0) / texts);
  cell.route_agreement = trainer.agreement.route_agreement();
  cell.pick_jaccard = trainer.agreement.pick_jaccard();
  return per_text;
}

/// Difference of the means of two cells with its interval, texts drawn with replacement, the same
/// ones for both.
void compare_cells(const PerText& cell,
                   const PerText& base,
                   const StudyConfig& config,
                   DriftCell& out) {
  out.difference = cell.mean() - base.mean();
  Random random(config.seed + 17);
  const auto texts = static_cast<int64_t>(cell.sums.size());
  std::vector<double> drawn;
  double sum = 0.0;
  double squares = 0.0;
  for (int64_t round = 0; round < config.resamples; ++round) {
    double a = 0.0;
    double b = 0.0;
    double count = 0.0;
    for (int64_t i = 0; i < texts; ++i) {
      const auto place = static_cast<std::size_t>(random.below(texts));
      a += cell.sums[place];
      b += base.sums[place];
      count += cell.counts[place];
    }
    drawn.push_back((a - b) / std::max(1.0, count));
    sum += drawn.back();
    squares += drawn.back() * drawn.back();
  }
  const auto rounds = static_cast<double>(std::max<int64_t>(config.resamples, 1));
  std::sort(drawn.begin(), drawn.end());
  out.difference_low = drawn[drawn.size() * 25 / 1000];
  out.difference_high = drawn[std::min(drawn.size() - 1, drawn.size() * 975 / 1000)];
  out.difference_error = std::sqrt(std::max(0.0, squares / rounds - sum / rounds * sum / rounds));
}

struct Control {
  std::string name;
  Records records;
};

std::vector<Control> negative_controls(const NumericSide& rollout,
                                       const ScoredTexts& seen,
                                       const model::ModelParameters& older,
                                       const std::vector<TokenIds>& texts,
                                       const ChoiceLayout& layout,
                                       uint64_t seed) {
  std::vector<Control> controls;
  controls.push_back(
      {"sets shifted by one", with_picks(seen.choices, layout, [](auto& entries, int32_t visible) {
         for (int32_t& entry : entries) {
           entry = (entry + 1) % visible;
         }
       })});
  Records other = seen.choices;
  for (std::size_t i = 0; i < other.size(); ++i) {
    other[i].picks = seen.choices[(i + 1) % seen.choices.size()].picks;  // texts have one length
  }
  controls.push_back({"sets of another text", std::move(other)});
  NumericSide stale = rollout;
  stale.params = older;
  Records old = seen.choices;
  const ScoredTexts by_older = score_recording(stale, texts);
  for (std::size_t i = 0; i < old.size(); ++i) {
    old[i].picks = by_older.choices[i].picks;
  }
  controls.push_back({"sets of older weights", std::move(old)});
  Random random(seed);
  controls.push_back(
      {"random sets", with_picks(seen.choices, layout, [&](auto& entries, int32_t visible) {
         entries = random_entries(visible, layout.topk, random);
       })});
  return controls;
}

void add_gradients(const std::string& gap,
                   const std::string& replay,
                   const std::vector<std::pair<std::string, at::Tensor>>& found,
                   const std::vector<std::pair<std::string, at::Tensor>>& exact,
                   std::vector<GradientCell>& out) {
  double dot = 0.0;
  double norm = 0.0;
  double exact_norm = 0.0;
  double apart = 0.0;
  const std::map<std::string, at::Tensor> by_class(found.begin(), found.end());
  for (const auto& [name, reference] : exact) {
    const auto other = by_class.find(name);
    const at::Tensor value = other == by_class.end() ? at::zeros_like(reference) : other->second;
    const double d = value.dot(reference).item<double>();
    const double n = value.dot(value).item<double>();
    const double e = reference.dot(reference).item<double>();
    const double a = (value - reference).square().sum().item<double>();
    out.push_back({.gap = gap,
                   .replay = replay,
                   .parameters = name,
                   .cosine = d / std::max(1e-300, std::sqrt(n * e)),
                   .distance = std::sqrt(a / std::max(1e-300, e))});
    dot += d;
    norm += n;
    exact_norm += e;
    apart += a;
  }
  out.push_back({.gap = gap,
                 .replay = replay,
                 .parameters = "all",
                 .cosine = dot / std::sqrt(norm * exact_norm),
                 .distance = std::sqrt(apart / exact_norm)});
}

std::vector<TokenIds> study_prompts(const StudyConfig& config) {
  const train::SortTask task;
  std::vector<TokenIds> prompts;
  for (int64_t i = 0; i < config.num_texts; ++i) {
    const train::SortProblem problem = task.training_problem(config.seed + 1000, i);
    prompts.push_back(train::sort_ids(problem.prompt()));
  }
  return prompts;
}

}  // namespace

StudyReport run_study(const model::ModelParameters& params,
                      const model::ModelParameters& older,
                      const StudyConfig& config,
                      const std::function<void(const std::string&)>& say) {
  StudyReport report;
  report.config = config;
  const auto tell = [&](const std::string& text) {
    if (say) {
      say(text);
    }
  };
  const ChoiceLayout layout = cache::choice_layout(params.config);
  const NumericSide exact = numeric_side(params, "f32");
  const std::vector<int32_t> unused = {0, 1, 2};  // begin, end, padding
  const std::vector<TokenIds> texts =
      sampled_texts(exact, study_prompts(config), config.length, unused, config.seed);

  tell("step 1: sets of decode, prefill and trainer");
  const ScoredTexts by_trainer = score_recording(exact, texts);
  const Records decoded = served_records(exact.params, texts, 1);
  report.decode_jaccard =
      jaccard(decoded, served_records(exact.params, texts, texts[0].size()), layout);
  report.trainer_jaccard = jaccard(decoded, by_trainer.choices, layout);
  const auto tokens = static_cast<double>((config.length - 1) * config.num_texts);
  for (const ChoiceRecords& record : decoded) {
    report.pick_bytes_per_token += static_cast<double>(record.picks.size()) / tokens;
    report.route_bytes_per_token += static_cast<double>(record.routes.size()) / tokens;
  }

  // Advantages of a group: half of the texts better, half worse.
  std::vector<double> advantages;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    advantages.push_back(i % 2 == 0 ? 1.0 : -1.0);
  }
  std::vector<std::pair<std::string, at::Tensor>> exact_gradient;
  if (config.gradients) {
    tell("step 3: gradient of exact numbers");
    exact_gradient =
        policy_gradient(exact, texts, advantages, decoded, {.routes = false, .picks = false});
  }
  // The first query with more entries than it may keep: its own token is behind it.
  const int64_t early_end = layout.ratio * (layout.topk + 1) - 1;
  for (const Gap& gap : kGaps) {
    NumericSide rollout = numeric_side(params, gap.rollout);
    rollout.samples_per_forward = gap.rollout_samples;
    const NumericSide trainer = numeric_side(params, gap.trainer);
    tell(std::string("step 2: ") + gap.name);
    const ScoredTexts seen = score_recording(rollout, texts);
    std::map<std::string, PerText> cells;
    for (const char* name : {"none", "routes", "picks", "both"}) {
      const train::ReplayParts parts = train::replay_parts_by_name(name);
      DriftCell cell{.gap = gap.name, .replay = name};
      cells[name] =
          fill_cell(seen, score_replaying(trainer, texts, seen.choices, parts), early_end, cell);
      if (cell.replay == "both") {
        compare_cells(cells["both"], cells["routes"], config, cell);
      }
      report.drift.push_back(cell);
      if (config.gradients && std::string_view(gap.name) != "exact") {
        add_gradients(gap.name,
                      name,
                      policy_gradient(trainer, texts, advantages, seen.choices, parts),
                      exact_gradient,
                      report.gradients);
      }
    }
    if (config.length - 1 <= early_end) {
      continue;  // no set was chosen, so none can be wrong
    }
    NumericSide older_side = numeric_side(older, gap.rollout);
    for (const Control& control :
         negative_controls(rollout, seen, older_side.params, texts, layout, config.seed + 5)) {
      DriftCell cell{.gap = gap.name, .replay = control.name};
      const PerText per_text =
          fill_cell(seen, score_replaying(trainer, texts, control.records, {}), early_end, cell);
      compare_cells(per_text, cells["both"], config, cell);
      report.drift.push_back(cell);
    }
    // Positive control: both sides see every entry, so there is nothing to pick.
    NumericSide whole_rollout = rollout;
    NumericSide whole_trainer = trainer;
    whole_rollout.params.config.index_topk = config.length;
    whole_trainer.params.config.index_topk = config.length;
    const ScoredTexts whole = score_recording(whole_rollout, texts);
    for (const char* name : {"routes", "both"}) {
      DriftCell cell{.gap = gap.name, .replay = std::string("every entry seen, ") + name};
      fill_cell(
          whole,
          score_replaying(whole_trainer, texts, whole.choices, train::replay_parts_by_name(name)),
          early_end,
          cell);
      report.drift.push_back(cell);
    }
  }
  return report;
}

void taught_study(const TeachConfig& teach,
                  const StudyConfig& config,
                  std::span<const int64_t> lengths,
                  const std::function<void(const std::string&)>& say,
                  const std::function<void(const std::string&)>& show) {
  const TaughtModel model = taught_nano(teach, say);
  for (const int64_t length : lengths) {
    StudyConfig of_length = config;
    of_length.length = length;
    of_length.seed = teach.seed;
    show(study_text(run_study(model.params, model.older, of_length, say)));
  }
}

}  // namespace baleen::rl
