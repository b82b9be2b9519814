#include "runner/decode_check.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"

namespace baleen::runner {
namespace {

constexpr double kMostDistance = 0.5;
constexpr int64_t kPromptTokens = 133;  // past the window and the first group of 128
constexpr int64_t kDecodedTokens = 6;   // over the end of a group of 4

std::vector<int32_t> stored_prompt(int64_t vocab) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < kPromptTokens + kDecodedTokens; ++i) {
    ids.push_back(static_cast<int32_t>((i * 7919 + i * i * 31 + 11) % vocab));
  }
  return ids;
}

void run_body(model::Model& model,
              model::Sequence& sequence,
              int64_t position,
              std::span<const int32_t> ids,
              model::ForwardOutput& output) {
  const model::RowInput row{
      .sequence = &sequence, .first_position = position, .ids = ids, .mtp = model::MtpRows::kNone};
  model.forward({&row, 1}, output);
  if (!output.logits_f64.empty()) {
    output.logits.assign(output.logits_f64.begin(), output.logits_f64.end());
  }
}

/// Squares of errors and of the body's logits around their mean.
struct Distance {
  double square = 0.0;
  double size = 0.0;

  void add(std::span<const float> found, std::span<const float> expected) {
    double mean = 0.0;
    for (const float logit : expected) {
      mean += logit;
    }
    mean /= static_cast<double>(expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const double error = double{found[i]} - expected[i];
      square += error * error;
      size += (expected[i] - mean) * (expected[i] - mean);
    }
  }
};

/// The prompt on the path, in two parts, and the token behind it over rows that are all the path's.
void add_prompt(DecodePath& path,
                RequestSlot slot,
                std::span<const int32_t> ids,
                std::size_t prompt,
                std::span<const float> behind_prompt,
                std::span<const float> behind_next,
                Distance& distance) {
  constexpr std::size_t kSecondPart = 33;
  const std::size_t first = prompt > kSecondPart ? prompt - kSecondPart : 0;
  if (first > 0) {
    const DecodeRow row{
        .ids = ids.first(first), .slot = slot, .first_result = static_cast<int32_t>(first)};
    path.run({&row, 1});
  }
  const DecodeRow rest{.ids = ids.subspan(first, prompt - first),
                       .slot = slot,
                       .position = static_cast<int32_t>(first),
                       .first_result = static_cast<int32_t>(prompt - first) - 1};
  path.run({&rest, 1});
  distance.add(path.logits(0, 0), behind_prompt);
  const DecodeRow next{
      .ids = ids.subspan(prompt, 1), .slot = slot, .position = static_cast<int32_t>(prompt)};
  path.run({&next, 1});
  distance.add(path.logits(0, 0), behind_next);
}

}  // namespace

double check_decode_path(model::Model& model, cache::PoolMemory& pools, DecodePath& path) {
  const RequestSlot slot(0);
  const cache::FullPage full(1);
  const cache::SwaPage window(1);
  const cache::SequencePages pages{.full = {full}, .swa = {window}, .slot = slot};
  path.change_page({.slot = slot, .block = 0, .full = full, .swa = window});
  const std::vector<int32_t> ids = stored_prompt(model.config().vocab_size);
  const int64_t end = std::min<int64_t>(path.max_context(), static_cast<int64_t>(ids.size()));
  const int64_t prompt = std::max<int64_t>(1, end - kDecodedTokens);
  const std::span<const int32_t> all = ids;
  std::vector<float> behind_prompt;
  std::vector<float> behind_next;
  Distance sum;
  {
    model::Sequence sequence = model.new_sequence(pools, pages);
    model::ForwardOutput output;
    run_body(model, sequence, 0, all.first(static_cast<std::size_t>(prompt)), output);
    behind_prompt.assign(output.row(0).begin(), output.row(0).end());
    for (int64_t p = prompt; p < end; ++p) {
      sequence.begin_at(p);  // from the pages, not from what it remembers
      run_body(model, sequence, p, all.subspan(static_cast<std::size_t>(p), 1), output);
      const DecodeRow row{.ids = all.subspan(static_cast<std::size_t>(p), 1),
                          .slot = slot,
                          .position = static_cast<int32_t>(p)};
      path.run({&row, 1});
      sum.add(path.logits(0, 0), output.row(0));
      if (p == prompt) {
        behind_next.assign(output.row(0).begin(), output.row(0).end());
      }
    }
  }
  if (path.runs_prompts() && prompt < end) {
    add_prompt(path, slot, all, static_cast<std::size_t>(prompt), behind_prompt, behind_next, sum);
  }
  path.change_page(
      {.slot = slot, .block = 0, .full = cache::FullPage(0), .swa = cache::SwaPage(0)});
  pools.paint_full_page(full);
  pools.paint_swa_page(window);
  pools.paint_request_ring(slot);
  const double distance = std::sqrt(sum.square / sum.size);
  if (!(distance <= kMostDistance)) {
    throw Error(path.name() + " is wrong for this model: its logits lie " +
                std::to_string(distance) +
                " of their size from those of the model's body, at most " +
                std::to_string(kMostDistance) + " is rounding");
  }
  return distance;
}

}  // namespace baleen::runner
