#pragma once
// A decode path for tests: a body of its own, of the executor's folder where there is one, over the
// pools of the executor's, that forgets everything between two steps, so it lives on what pages and
// rings hold, as kernels do.
//
//   runner.decode_path = [&](const DecodePathContext& context) {
//     return std::make_unique<ForgetfulPath>(context, 3000, use, /*prompts=*/true);
//   };

#include <algorithm>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "cache/memory_plan.h"
#include "model/initialize.h"
#include "runner/decode_path.h"
#include "weights/model_presets.h"

namespace baleen::runner {

inline model::ForwardConfig fixed_order_forward(int32_t drafts, bool record_choices) {
  model::ForwardConfig forward;
  forward.numerics = "reference+invariant";
  forward.max_context = 3000;
  forward.with_mtp = drafts > 0;
  forward.max_rollback = drafts;
  forward.record_choices = record_choices;
  return forward;
}

inline model::Model fixed_order_model(int32_t drafts = 0, bool record_choices = false) {
  model::FreshOptions fresh;
  fresh.seed = 1;
  fresh.matrix_std = 0.15;
  fresh.vector_noise = 0.1;
  return {
      model::make_fresh_parameters(weights::tiny_config(), fresh, at::TensorOptions(at::kFloat)),
      fixed_order_forward(drafts, record_choices)};
}

/// Bytes of the smallest cache with `full_pages` for six requests.
inline int64_t bytes_of_pages(int64_t full_pages) {
  const model::Model model = fixed_order_model();
  const cache::CacheShape shape = cache::cache_shape(model.config(), model.cache_formats());
  for (int64_t bytes = 4 << 20;; bytes += 64 << 10) {
    const cache::CacheSizes sizes = cache::fit_cache(
        shape, bytes, {.max_running_requests = 6, .chunk_tokens = 128, .drafts = false});
    if (sizes.full_pages >= full_pages) {
      return bytes;
    }
  }
}

/// What the test sees of the path, which the executor owns.
struct PathUse {
  int64_t rows = 0;
  int64_t draws = 0;     // tokens that the path drew itself
  int64_t verified = 0;  // rows of several tokens
  int64_t most_rows = 0;
  int64_t prompt_parts = 0;  // rows of prompts, some of them parts of what a step runs
  int64_t draft_rows = 0;
  int64_t free_bytes = -1;  // what it says that the device has left
  int64_t pool_changes = 0;
};

class ForgetfulPath final : public DecodePath {
 public:
  /// `wrong_page`: reads and writes the window page behind the right one, as a wrong layout would.
  ForgetfulPath(const DecodePathContext& context,
                int64_t max_context,
                PathUse& use,
                bool prompts,
                bool wrong_page = false)
      : with_drafts_(context.max_row_tokens > 1),
        model_(context.folder.empty()
                   ? fixed_order_model(context.max_row_tokens - 1, context.record_choices)
                   : model::Model::load(
                         context.folder,
                         fixed_order_forward(context.max_row_tokens - 1, context.record_choices))),
        records_(context.record_choices),
        pools_(&context.pools),
        max_context_(max_context),
        max_row_tokens_(context.max_row_tokens),
        use_(use),
        prompts_(prompts),
        wrong_page_(wrong_page) {}

  std::string name() const override { return "forgetful"; }
  int64_t max_context() const override { return max_context_; }
  int32_t max_row_tokens() const override { return max_row_tokens_; }
  bool runs_prompts() const override { return prompts_; }
  int64_t device_bytes() const override { return 0; }
  int64_t free_device_bytes() const override { return use_.free_bytes; }
  void use_pools(cache::PoolMemory& pools) override {
    pools_ = &pools;
    pages_.clear();
    ++use_.pool_changes;
  }

  void change_page(const cache::PageChange& change) override {
    cache::SequencePages& pages = pages_[change.slot];
    const auto block = static_cast<size_t>(change.block);
    if (pages.full.size() <= block) {
      pages.full.resize(block + 1, cache::FullPage(0));
      pages.swa.resize(block + 1, cache::SwaPage(0));
    }
    pages.full[block] = change.full;
    pages.swa[block] = wrong_page_ ? cache::SwaPage(change.swa.value() + 1) : change.swa;
    pages.slot = change.slot;
  }

  std::size_t stream_bytes() const {
    const ModelConfig& config = model_.config();
    return static_cast<std::size_t>(config.hc_mult * config.hidden_size) * 2;
  }

  void draw_token(const DecodeRow& row, std::size_t r, std::size_t index) {
    const std::size_t token = token_of(r, index);
    if (const engine::SamplingRow* draw = row.draw) {
      kernels::SamplingParams params;
      params.temperature = draw->temperature;
      params.seed = draw->seed;
      params.sample_index = draw->sample_index;
      params.position = int64_t{row.position} + row.first_result + 1 + static_cast<int64_t>(index);
      params.want_logprob = draw->want_logprobs;
      params.top_logprobs = draw->top_logprobs;
      params.allowed_bits = row.allowed_bits;
      drawn_[token] =
          kernels::sample_token(logits(r, index), params, {}, workspace_, &tops_[token]);
      ++use_.draws;
    }
  }

  void run(std::span<const DecodeRow> rows) override {
    std::vector<model::Sequence> sequences;
    std::vector<model::RowInput> inputs;
    sequences.reserve(rows.size());
    for (const DecodeRow& row : rows) {
      sequences.push_back(model_.new_sequence(*pools_, pages_.at(row.slot)));
      sequences.back().begin_at(row.position);
      inputs.push_back(
          {.sequence = &sequences.back(),
           .first_position = row.position,
           .ids = row.ids,
           .logits = model::LogitsWanted::kAll,
           .mtp = with_drafts_ ? model::MtpRows::kKeepStreams : model::MtpRows::kNone});
    }
    model_.forward(inputs, output_);
    drawn_.assign(output_.logits.size() / static_cast<std::size_t>(output_.vocab_size), {});
    tops_.assign(drawn_.size(), {});
    streams_.resize(drawn_.size() * stream_bytes());
    first_results_.clear();
    for (std::size_t r = 0; r < rows.size(); ++r) {
      const auto count = static_cast<int32_t>(rows[r].ids.size());
      first_results_.push_back(static_cast<std::size_t>(rows[r].first_result));
      // Only prompts are long or want nothing behind some tokens.
      const bool prompt = count > max_row_tokens_ || rows[r].first_result > 0;
      ASSERT_TRUE(prompts_ || !prompt);
      use_.prompt_parts += prompt ? 1 : 0;
      use_.verified += !prompt && count > 1 ? 1 : 0;
      ASSERT_LE(count - rows[r].first_result, rows.size() == 1 ? kMostRowResults : max_row_tokens_);
      for (int32_t i = rows[r].first_result; i < count; ++i) {
        draw_token(rows[r], r, static_cast<std::size_t>(i - rows[r].first_result));
      }
      for (std::size_t i = 0; i < rows[r].ids.size(); ++i) {
        if (with_drafts_) {
          const auto token = static_cast<std::size_t>(output_.spans[r].begin) + i;
          sequences[r].copy_streams(
              int64_t{rows[r].position} + static_cast<int64_t>(i),
              std::span(streams_).subspan(token * stream_bytes(), stream_bytes()));
        }
      }
    }
    use_.rows += static_cast<int64_t>(rows.size());
    use_.most_rows = std::max(use_.most_rows, static_cast<int64_t>(rows.size()));
  }

  std::span<const float> logits(std::size_t row, std::size_t index) const override {
    return output_.row(static_cast<int64_t>(token_of(row, index)));
  }

  /// Every second parameter set, by its seed's parity, so that both ways occur.
  bool draws(const engine::SamplingRow& sampling) const override { return sampling.seed % 2 == 0; }
  DrawnToken drawn(std::size_t row, std::size_t index) const override {
    return {drawn_[token_of(row, index)], tops_[token_of(row, index)]};
  }
  const model::ForwardChoices* choices() const override {
    return records_ ? &output_.choices : nullptr;
  }
  bool runs_drafts() const override { return prompts_ && with_drafts_; }
  /// Row by row, each from the streams at its position alone.
  void draft(std::span<const DraftRow> rows) override {
    draft_logits_.clear();
    for (const DraftRow& row : rows) {
      std::vector<uint8_t>& chain = chains_[row.slot];
      for (std::size_t i = 0; i < row.next_ids.size(); ++i) {
        model::Sequence sequence = model_.new_sequence(*pools_, pages_.at(row.slot));
        const std::span<const uint8_t> streams =
            row.chained ? std::span<const uint8_t>(chain)
                        : std::span(row.streams + i * stream_bytes(), stream_bytes());
        sequence.begin_at(int64_t{row.position} + static_cast<int64_t>(i) + 1, streams);
        sequence.hide_draft_rows(row.hidden_before, row.hidden_row);
        const model::DraftInput input{.sequence = &sequence,
                                      .next_ids = row.next_ids.subspan(i, 1)};
        model_.draft({&input, 1}, draft_output_);
        chain.resize(stream_bytes());
        sequence.copy_chain_streams(chain);
        ++use_.draft_rows;
      }
      draft_logits_.push_back(draft_output_.mtp_logits);
    }
  }
  std::span<const float> draft_logits(std::size_t row) const override {
    return draft_logits_.at(row);
  }
  const uint8_t* streams(std::size_t row) const override {
    return streams_.data() + static_cast<std::size_t>(output_.spans[row].begin) * stream_bytes();
  }

 private:
  std::size_t token_of(std::size_t row, std::size_t result) const {
    return static_cast<std::size_t>(output_.spans[row].begin) + first_results_[row] + result;
  }

  bool with_drafts_;
  model::Model model_;
  bool records_;
  cache::PoolMemory* pools_;
  int64_t max_context_;
  int32_t max_row_tokens_;
  PathUse& use_;
  bool prompts_;
  bool wrong_page_;
  std::vector<std::size_t> first_results_;  // by row of the run
  std::map<RequestSlot, cache::SequencePages> pages_;
  model::ForwardOutput output_;
  kernels::SamplingWorkspace workspace_;
  std::vector<kernels::SampledToken> drawn_;
  std::vector<std::vector<kernels::ScoredToken>> tops_;
  std::vector<uint8_t> streams_;
  std::map<RequestSlot, std::vector<uint8_t>> chains_;
  model::ForwardOutput draft_output_;
  std::vector<std::vector<float>> draft_logits_;
};

}  // namespace baleen::runner
