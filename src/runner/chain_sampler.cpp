#include "runner/chain_sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "kernels/sampling/gumbel_noise.h"

namespace baleen::runner {
namespace {

// Last words of the noise counter, beside kernels::kSamplingStream.
constexpr uint32_t kDraftStream = 2;     // draws from the draft law
constexpr uint32_t kAcceptStream = 3;    // the coin of a draft
constexpr uint32_t kResidualStream = 4;  // draws from max(p - q, 0)

kernels::SamplingParams sampling_params(const engine::SamplingRow& row, int64_t position) {
  kernels::SamplingParams params;
  params.temperature = row.temperature;
  params.top_k = row.top_k;
  params.top_p = row.top_p;
  params.min_p = row.min_p;
  params.frequency_penalty = row.frequency_penalty;
  params.presence_penalty = row.presence_penalty;
  params.repetition_penalty = row.repetition_penalty;
  params.seed = row.seed;
  params.sample_index = row.sample_index;
  params.position = position;
  params.logit_bias = row.logit_bias;
  params.forbidden_ids = row.forbidden_ids;
  params.forced_id = row.forced_id;
  params.want_logprob = row.want_logprobs;
  params.top_logprobs = row.want_logprobs ? row.top_logprobs : 0;
  return params;
}

void make_counts(const engine::SamplingRow& sampling, size_t vocab, std::vector<int32_t>& counts) {
  if (counts.empty() && has_penalties(sampling)) {
    counts.assign(vocab, 0);
  }
}

double probability_of(const std::vector<kernels::TokenProbability>& law, int32_t id) {
  const auto found = std::lower_bound(
      law.begin(), law.end(), id, [](const kernels::TokenProbability& token, int32_t wanted) {
        return token.id < wanted;
      });
  return found != law.end() && found->id == id ? found->probability : 0.0;
}

/// Uniform in (0, 1): u of the Gumbel noise -log(-log u) of one element.
double coin(const kernels::SamplingParams& params) {
  return std::exp(-std::exp(
      -kernels::gumbel_noise(params.seed, params.sample_index, params.position, 0, kAcceptStream)));
}

/// One token of max(p - q, 0); of p where rounding leaves nothing of that.
int32_t draw_residual(const std::vector<kernels::TokenProbability>& p,
                      const std::vector<kernels::TokenProbability>& q,
                      const kernels::SamplingParams& params) {
  for (const bool subtract : {true, false}) {
    int32_t best_id = -1;
    double best = -std::numeric_limits<double>::infinity();
    for (const kernels::TokenProbability& token : p) {
      const double mass = token.probability - (subtract ? probability_of(q, token.id) : 0.0);
      if (mass <= 0.0) {
        continue;
      }
      const double score =
          std::log(mass) +
          kernels::gumbel_noise(
              params.seed, params.sample_index, params.position, token.id, kResidualStream);
      if (score > best) {
        best = score;
        best_id = token.id;
      }
    }
    if (best_id >= 0) {
      return best_id;
    }
  }
  BALEEN_CHECK(false, "a law without tokens");
  return -1;
}

}  // namespace

bool has_penalties(const engine::SamplingRow& sampling) {
  return sampling.frequency_penalty != 0.0F || sampling.presence_penalty != 0.0F ||
         sampling.repetition_penalty != 1.0F;
}

void add_token(const kernels::SampledToken& token,
               std::span<const kernels::ScoredToken> top,
               const engine::SamplingRow& sampling,
               engine::RowResult& result) {
  result.ids.push_back(token.id);
  if (sampling.want_logprobs) {
    result.logprobs.push_back(token.logprob);
    auto& list = result.top_logprobs.emplace_back();
    for (const kernels::ScoredToken& scored : top) {
      list.push_back({scored.id, scored.logprob});
    }
  }
}

bool ChainSampler::propose(const engine::SamplingRow& sampling,
                           int64_t first_position,
                           std::span<const float> logits,
                           std::vector<int32_t>& counts,
                           DraftChain& chain) {
  make_counts(sampling, logits.size(), counts);
  kernels::SamplingParams params =
      sampling_params(sampling, first_position + static_cast<int64_t>(chain.ids.size()));
  params.want_logprob = false;
  params.top_logprobs = 0;
  const bool keeps_law = sampling_ == DraftSampling::kRejection && sampling.temperature > 0.0F;
  if (keeps_law) {
    params.stream = kDraftStream;
  }
  const auto count_drafts = [&](int32_t amount) {
    if (!counts.empty()) {
      for (const int32_t id : chain.ids) {
        counts[static_cast<size_t>(id)] += amount;
      }
    }
  };
  count_drafts(1);
  const kernels::SampledToken token =
      kernels::sample_token(logits, params, counts, workspace_, nullptr);
  if (keeps_law && token.status == kernels::SamplingStatus::kDrawn) {
    kernels::token_law(logits, params, counts, workspace_, chain.laws.emplace_back());
  }
  count_drafts(-1);
  if (token.status != kernels::SamplingStatus::kDrawn) {
    return false;
  }
  chain.ids.push_back(token.id);
  return true;
}

kernels::SampledToken ChainSampler::score(std::span<const float> logits,
                                          kernels::SamplingParams params,
                                          std::span<const int32_t> counts,
                                          int32_t id) {
  params.forced_id = id;
  top_.clear();
  return kernels::sample_token(logits, params, counts, workspace_, &top_);
}

ChainSampler::Drawn ChainSampler::draw(std::span<const float> logits,
                                       const kernels::SamplingParams& params,
                                       const DraftChain& chain,
                                       size_t index,
                                       std::span<const int32_t> counts) {
  const bool has_draft = index < chain.ids.size();
  if (has_draft && index < chain.laws.size()) {
    const std::vector<kernels::TokenProbability>& q = chain.laws[index];
    const kernels::SamplingStatus status =
        kernels::token_law(logits, params, counts, workspace_, law_);
    if (status != kernels::SamplingStatus::kDrawn) {
      return {{status, -1, 0.0F}, false};
    }
    const int32_t draft = chain.ids[index];
    const bool stands = coin(params) * probability_of(q, draft) < probability_of(law_, draft);
    const int32_t id = stands ? draft : draw_residual(law_, q, params);
    return {score(logits, params, counts, id), stands};
  }
  top_.clear();
  const kernels::SampledToken token =
      kernels::sample_token(logits, params, counts, workspace_, &top_);
  return {token, has_draft && token.id == chain.ids[index]};
}

void ChainSampler::accept(const ChainLogits& target,
                          const engine::SamplingRow& sampling,
                          const DraftChain& chain,
                          std::vector<int32_t>& counts,
                          engine::RowResult& result) {
  const size_t most =
      std::min(chain.ids.size() + 1, static_cast<size_t>(std::max(sampling.accept_limit, 1)));
  for (size_t i = 0; i < most; ++i) {
    const std::span<const float> logits = target.row(static_cast<int32_t>(i));
    make_counts(sampling, logits.size(), counts);
    kernels::SamplingParams params =
        sampling_params(sampling, target.first_position + static_cast<int64_t>(i));
    params.allowed_bits = target.allowed_bits;
    const bool simulated =
        i < chain.ids.size() && static_cast<int32_t>(i) < target.simulated_drafts;
    Drawn drawn = simulated ? Drawn{score(logits, params, counts, chain.ids[i]), true}
                            : draw(logits, params, chain, i, counts);
    if (drawn.token.status != kernels::SamplingStatus::kDrawn) {
      // What stands so far is the plain run's; it meets these logits again as its first.
      result.nan_logits = i == 0;
      break;
    }
    if (!counts.empty()) {
      ++counts[static_cast<size_t>(drawn.token.id)];
    }
    add_token(drawn.token, top_, sampling, result);
    if (!drawn.stands || (!simulated && target.simulated_drafts >= 0)) {
      break;
    }
  }
}

}  // namespace baleen::runner
