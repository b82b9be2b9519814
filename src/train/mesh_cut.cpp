#include "train/mesh_cut.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <ATen/ATen.h>

#include "base/check.h"

namespace baleen::train {
namespace {

/// Smallest fill of `count` bins, longest sample first; empty where one bin would pass the limit.
std::vector<std::vector<std::size_t>> fill_bins(const std::vector<Sample>& samples,
                                                const std::vector<std::size_t>& longest_first,
                                                std::size_t count,
                                                int64_t max_tokens) {
  std::vector<std::vector<std::size_t>> bins(count);
  std::vector<int64_t> load(count, 0);
  for (const std::size_t i : longest_first) {
    const auto least =
        static_cast<std::size_t>(std::min_element(load.begin(), load.end()) - load.begin());
    const int64_t tokens = samples[i].fed_tokens();
    if (max_tokens > 0 && load[least] > 0 && load[least] + tokens > max_tokens) {
      return {};
    }
    load[least] += tokens;
    bins[least].push_back(i);
  }
  return bins;
}

/// Two tokens that no loss, balance or load counts.
Sample made_up_sample(int32_t id) {
  return {.number = -1, .ids = {id, id}, .weights = {0.0F, 0.0F}};
}

at::Tensor by_token(const at::Tensor& rows, const at::Tensor& values, int64_t num_rows) {
  return at::zeros({num_rows}, values.options()).index_copy(0, rows, values);
}

/// `ahead` tokens behind each fed one, `fill` where there is none.
at::Tensor ids_ahead(const PackedBatch& batch,
                     const std::map<int64_t, const Sample*>& by_number,
                     std::size_t ahead,
                     int32_t fill) {
  at::Tensor ids = at::full({batch.num_rows()}, fill, at::kLong);
  for (const PackedSample& packed : batch.samples) {
    const Sample& sample = *by_number.at(packed.number);
    int64_t* row = ids.mutable_data_ptr<int64_t>() + packed.row_begin;
    for (std::size_t t = 0; t + ahead < sample.ids.size(); ++t) {
      row[t] = sample.ids[t + ahead];
    }
  }
  return ids;
}

MeshPart make_part(std::vector<Sample> samples,
                   const LossDenominators& denominators,
                   const ModelConfig& config,
                   const comm::Mesh& mesh,
                   const CutOptions& options) {
  MeshPart part;
  part.counts = !samples.empty();
  if (samples.empty()) {
    samples.push_back(made_up_sample(options.pack.pad_id));
  }
  part.batch = pack(samples, denominators, options.pack);
  PackedBatch& batch = part.batch;
  if (!part.counts) {
    batch.real.zero_();
    batch.num_tokens = 0;
  }
  std::map<int64_t, const Sample*> by_number;
  for (const Sample& sample : samples) {
    by_number[sample.number] = &sample;
  }
  const int64_t rows = batch.num_rows();
  part.next_ids = ids_ahead(batch, by_number, 1, options.pack.pad_id);
  part.after_next_ids = ids_ahead(batch, by_number, 2, options.pack.pad_id);
  part.coefficients = by_token(batch.main.rows, batch.main.coefficients, rows);
  part.mtp_coefficients =
      by_token(batch.mtp_rows.index_select(0, batch.mtp.rows), batch.mtp.coefficients, rows);
  part.mtp_real = by_token(batch.mtp_rows, batch.mtp_real, rows);
  part.target_place = at::full({rows}, -1, at::kLong)
                          .index_copy(0, batch.main.rows, at::arange(batch.main.rows.size(0)));
  std::vector<mesh::TokenRow> token_rows;
  for (const model::SequenceGroup& group : batch.groups) {
    token_rows.push_back({.batch = group.batch, .samples = {group.tokens}});
  }
  const comm::MeshShape& shape = mesh.shape();
  part.plans = std::make_unique<mesh::StepPlans>(
      mesh::TokenLayout(std::move(token_rows),
                        {.context_ranks = shape.cp,
                         .tensor_ranks = shape.sequence_parallel ? shape.tp : 1,
                         .zig_zag = options.zig_zag}),
      config,
      mesh);
  return part;
}

/// Every piece of a row gives every tensor rank a token.
int64_t row_multiple(const comm::MeshShape& shape, const CutOptions& options) {
  const int64_t pieces = options.zig_zag ? 2 * shape.cp : shape.cp;
  return std::lcm(options.pack.pad_multiple, pieces * (shape.sequence_parallel ? shape.tp : 1));
}

}  // namespace

mesh::MicroBatch MeshPart::micro_batch() const {
  return {.plans = plans.get(),
          .ids = batch.ids,
          .next_ids = next_ids,
          .after_next_ids = after_next_ids,
          .wanted = target_place.ge(0),
          .mtp_wanted = mtp_coefficients.ne(0),
          .given = nullptr};
}

std::vector<std::vector<std::vector<Sample>>> cut_over_ranks(const std::vector<Sample>& samples,
                                                             int64_t data_ranks,
                                                             const CutOptions& options) {
  std::vector<std::size_t> longest_first(samples.size());
  std::iota(longest_first.begin(), longest_first.end(), 0);
  std::stable_sort(longest_first.begin(), longest_first.end(), [&](std::size_t a, std::size_t b) {
    return samples[a].fed_tokens() > samples[b].fed_tokens();
  });
  int64_t total = 0;
  for (const Sample& sample : samples) {
    // One above the limit goes alone and fills one micro-batch.
    total += options.max_tokens > 0 ? std::min(sample.fed_tokens(), options.max_tokens)
                                    : sample.fed_tokens();
  }
  const auto rounded = [&](int64_t batches) {
    return (batches + options.multiple - 1) / options.multiple * options.multiple;
  };
  const auto num_samples = static_cast<int64_t>(samples.size());
  int64_t batches = std::min(options.least_batches, (num_samples + data_ranks - 1) / data_ranks);
  if (options.max_tokens > 0) {
    const int64_t of_rank = options.max_tokens * data_ranks;
    batches = std::max(batches, (total + of_rank - 1) / of_rank);
  }
  batches = rounded(std::max<int64_t>(batches, 1));
  std::vector<std::vector<std::size_t>> bins;
  while (true) {
    bins = fill_bins(
        samples, longest_first, static_cast<std::size_t>(batches * data_ranks), options.max_tokens);
    if (!bins.empty()) {
      break;
    }
    batches = rounded(batches + 1);
  }
  std::vector<std::vector<std::vector<Sample>>> cut(static_cast<std::size_t>(data_ranks));
  for (std::size_t bin = 0; bin < bins.size(); ++bin) {
    std::vector<Sample>& own = cut[bin % static_cast<std::size_t>(data_ranks)].emplace_back();
    for (const std::size_t i : bins[bin]) {
      own.push_back(samples[i]);
    }
  }
  return cut;
}

StepCut::StepCut(const std::vector<Sample>& samples,
                 const LossDenominators& denominators,
                 const ModelConfig& config,
                 const comm::Mesh& mesh,
                 const CutOptions& given) {
  BALEEN_CHECK(!samples.empty(), "a step without samples");
  CutOptions options = given;
  options.pack.pad_multiple = row_multiple(mesh.shape(), given);
  first_token_.push_back(0);
  int64_t longest = 1;
  for (const Sample& sample : samples) {
    const bool fresh = index_of_.emplace(sample.number, numbers_.size()).second;
    BALEEN_CHECK(fresh && sample.number >= 0, "sample number {}", sample.number);
    numbers_.push_back(sample.number);
    first_token_.push_back(first_token_.back() + sample.fed_tokens());
    longest = std::max(longest, sample.fed_tokens());
  }
  const int64_t m = options.pack.pad_multiple;
  longest_row_ = (longest + m - 1) / m * m;
  auto cut = cut_over_ranks(samples, mesh.shape().dp, options);
  for (std::vector<Sample>& own : cut[static_cast<std::size_t>(mesh.place().dp)]) {
    parts_.push_back(make_part(std::move(own), denominators, config, mesh, options));
  }
}

}  // namespace baleen::train
