#include "runner/decode_check.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"

namespace baleen::runner {
namespace {

constexpr double kMostDistance = 0.5;
constexpr std::size_t kPromptTokens = 133;  // past the window and the first group of 128
constexpr std::size_t kDecodedTokens = 6;   // over the end of a group of 4

std::vector<int32_t> stored_prompt(int64_t vocab) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < static_cast<int64_t>(kPromptTokens + kDecodedTokens); ++i) {
    ids.push_back(static_cast<int32_t>((i * 7919 + i * i * 31 + 11) % vocab));
  }
  return ids;
}

void run_body(model::Model& model,
              model::Sequence& sequence,
              int64_t position,
              std::span<const int32_t> ids,
              model::LogitsWanted logits,
              model::ForwardOutput& output,
              model::MtpRows mtp = model::MtpRows::kNone) {
  const model::RowInput row{
      .sequence = &sequence, .first_position = position, .ids = ids, .logits = logits, .mtp = mtp};
  model.forward({&row, 1}, output);
  if (!output.logits_f64.empty()) {
    output.logits.assign(output.logits_f64.begin(), output.logits_f64.end());
  }
}

/// NaN in every row of a page, whatever the pools do with freed ones: who reads what he did not
/// write himself shows it.
void wipe_pages(cache::PoolMemory& pools, cache::FullPage full, cache::SwaPage window) {
  constexpr uint8_t kNan = 0xFF;
  const cache::CacheShape& shape = pools.shape();
  cache::PoolStorage& storage = pools.storage();
  for (int64_t layer = 0; layer < shape.num_layers + shape.num_draft_layers; ++layer) {
    storage.fill(pools.swa(layer, window, 0).value, kNan, shape.swa_block.block_bytes);
  }
  for (int64_t layer = 0; layer < shape.num_c4; ++layer) {
    storage.fill(pools.c4(layer, full, 0).value, kNan, shape.c4_block.block_bytes);
    storage.fill(pools.index(layer, full, 0).value, kNan, shape.index_block.block_bytes);
  }
  for (int64_t layer = 0; layer < shape.num_c128; ++layer) {
    for (int64_t row = 0; row < shape.c128_rows_per_page(); ++row) {
      storage.fill(pools.c128(layer, full, row).value, kNan, shape.c128_block.value_row_bytes);
    }
  }
}

/// Squares of errors and of the body's logits around their mean.
struct Distance {
  double square = 0.0;
  double size = 0.0;

  double relative() const { return size == 0.0 ? 0.0 : std::sqrt(square / size); }
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

void require_near(const char* what, const DecodePath& path, double distance) {
  if (!(distance <= kMostDistance)) {
    throw Error(path.name() + " is wrong for this model: " + what + " lie " +
                std::to_string(distance) +
                " of their size from those of the model's body, at most " +
                std::to_string(kMostDistance) + " is rounding");
  }
}

/// Token `position` alone on the path.
std::span<const float> run_token(DecodePath& path,
                                 RequestSlot slot,
                                 std::span<const int32_t> ids,
                                 std::size_t position) {
  const DecodeRow row{
      .ids = ids.subspan(position, 1), .slot = slot, .position = static_cast<int32_t>(position)};
  path.run({&row, 1});
  return path.logits(0, 0);
}

/// Draft rows of the whole text, of which the body has run all but the last token, and one chained
/// behind them, in both from the body's streams.
Distance distance_of_drafts(model::Model& model,
                            model::Sequence& sequence,
                            DecodePath& path,
                            RequestSlot slot,
                            std::span<const int32_t> ids,
                            const std::function<void()>& wipe) {
  const std::size_t last = ids.size() - 1;
  model::ForwardOutput output;
  const std::span<const int32_t> next = ids.subspan(1);
  // What the path begins from, before the body's rows change the sequence.
  const uint8_t* streams = sequence.draft_streams(static_cast<int64_t>(last));
  const auto body = [&](std::span<const int32_t> next_ids, bool chained) {
    const model::DraftInput input{.sequence = &sequence, .next_ids = next_ids, .chained = chained};
    model.draft({&input, 1}, output);
    if (!output.mtp_logits_f64.empty()) {
      output.mtp_logits.assign(output.mtp_logits_f64.begin(), output.mtp_logits_f64.end());
    }
    return output.mtp_logits;
  };
  const std::vector<float> of_rows = body(next, false);
  const std::vector<float> of_chain = body(ids.first(1), true);
  wipe();
  const auto by_path = [&](const DraftRow& draft_row) {
    path.draft({&draft_row, 1});
    return path.draft_logits(0);
  };
  Distance sum;
  sum.add(by_path({.next_ids = next, .slot = slot, .streams = streams}), of_rows);
  sum.add(by_path({.next_ids = ids.first(1),
                   .slot = slot,
                   .position = static_cast<int32_t>(last),
                   .chained = true}),
          of_chain);
  return sum;
}

/// The body runs all but the last token at once, as its weights may be read for the purpose, and
/// its rows are wiped out. The path then runs the prompt in two parts and the rest token by token
/// over rows that are all its own, and the body the last token over those. `of_drafts`: of the
/// draft layer, where the path runs it.
Distance distance_of_whole(model::Model& model,
                           model::Sequence sequence,
                           DecodePath& path,
                           RequestSlot slot,
                           std::span<const int32_t> ids,
                           std::size_t prompt,
                           const std::function<void()>& wipe,
                           Distance& of_drafts) {
  const std::size_t last = ids.size() - 1;
  model::ForwardOutput output;
  const model::MtpRows mtp =
      path.runs_drafts() ? model::MtpRows::kKeepStreams : model::MtpRows::kNone;
  run_body(model, sequence, 0, ids.first(last), model::LogitsWanted::kAll, output, mtp);
  if (path.runs_drafts()) {
    of_drafts = distance_of_drafts(model, sequence, path, slot, ids, wipe);
  }
  wipe();
  constexpr std::size_t kSecondPart = 33;
  Distance sum;
  std::size_t done = 0;
  while (done < prompt) {
    const std::size_t count =
        done == 0 && prompt > kSecondPart ? prompt - kSecondPart : prompt - done;
    const DecodeRow row{.ids = ids.subspan(done, count),
                        .slot = slot,
                        .position = static_cast<int32_t>(done),
                        .first_result = static_cast<int32_t>(count) - 1};
    path.run({&row, 1});
    done += count;
    sum.add(path.logits(0, 0), output.row(static_cast<int64_t>(done) - 1));
  }
  for (; done < last; ++done) {
    sum.add(run_token(path, slot, ids, done), output.row(static_cast<int64_t>(done)));
  }
  const auto position = static_cast<int64_t>(last);
  sequence.begin_at(position);
  run_body(model, sequence, position, ids.subspan(last), model::LogitsWanted::kLast, output);
  Distance over_its_rows;
  over_its_rows.add(run_token(path, slot, ids, last), output.row(0));
  require_near("the logits behind its rows", path, over_its_rows.relative());
  return sum;
}

/// The body runs the prompt, then both run the tokens behind it in turns, over rows of either.
Distance distance_in_turns(model::Model& model,
                           model::Sequence sequence,
                           DecodePath& path,
                           RequestSlot slot,
                           std::span<const int32_t> ids,
                           std::size_t prompt) {
  model::ForwardOutput output;
  run_body(model, sequence, 0, ids.first(prompt), model::LogitsWanted::kNone, output);
  Distance sum;
  for (std::size_t p = prompt; p < ids.size(); ++p) {
    const auto position = static_cast<int64_t>(p);
    sequence.begin_at(position);  // from the pages, not from what it remembers
    run_body(model, sequence, position, ids.subspan(p, 1), model::LogitsWanted::kLast, output);
    sum.add(run_token(path, slot, ids, p), output.row(0));
  }
  return sum;
}

}  // namespace

double check_decode_path(model::Model& model, cache::PoolMemory& pools, DecodePath& path) {
  const RequestSlot slot(0);
  const cache::FullPage full(1);
  const cache::SwaPage window(1);
  const cache::SequencePages pages{.full = {full}, .swa = {window}, .slot = slot};
  path.change_page({.slot = slot, .block = 0, .full = full, .swa = window});
  const std::vector<int32_t> text = stored_prompt(model.config().vocab_size);
  const auto end = std::min(static_cast<std::size_t>(path.max_context()), text.size());
  const std::span<const int32_t> ids = std::span(text).first(end);
  const std::size_t prompt = end > kDecodedTokens + 1 ? end - kDecodedTokens : 1;
  const auto wipe = [&] {
    wipe_pages(pools, full, window);
    pools.paint_request_ring(slot);
  };
  Distance of_drafts;
  const Distance sum =
      path.runs_prompts() && end > 1
          ? distance_of_whole(
                model, model.new_sequence(pools, pages), path, slot, ids, prompt, wipe, of_drafts)
          : distance_in_turns(model, model.new_sequence(pools, pages), path, slot, ids, prompt);
  path.change_page(
      {.slot = slot, .block = 0, .full = cache::FullPage(0), .swa = cache::SwaPage(0)});
  wipe();
  require_near("its logits", path, sum.relative());
  require_near("its drafts' logits", path, of_drafts.relative());
  return std::max(sum.relative(), of_drafts.relative());
}

}  // namespace baleen::runner
