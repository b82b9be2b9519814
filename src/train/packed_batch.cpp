#include "train/packed_batch.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include <ATen/ATen.h>

#include "base/check.h"

namespace baleen::train {
namespace {

at::Tensor upload(const std::vector<int64_t>& values, at::Device device) {
  at::Tensor host = at::empty({static_cast<int64_t>(values.size())}, at::kLong);
  std::copy(values.begin(), values.end(), host.mutable_data_ptr<int64_t>());
  return host.to(device);
}

at::Tensor upload(const std::vector<double>& values, const PackOptions& options) {
  at::Tensor host = at::empty({static_cast<int64_t>(values.size())}, at::kDouble);
  std::copy(values.begin(), values.end(), host.mutable_data_ptr<double>());
  return host.to(options.dtype).to(options.device);
}

/// Collects the rows of one step, main or MTP.
struct Rows {
  std::vector<int64_t> ids;
  std::vector<double> real;
  std::vector<int64_t> row_sample;
  std::vector<int64_t> target_rows;
  std::vector<int64_t> targets;
  std::vector<double> coefficients;
  std::vector<int64_t> samples;
  std::vector<int64_t> positions;
  std::vector<model::SequenceGroup> groups;

  int64_t count() const { return static_cast<int64_t>(ids.size()); }

  void begin_sample(int64_t tokens) {
    if (tokens == 0) {
      return;
    }
    if (groups.empty() || groups.back().tokens != tokens) {
      groups.push_back({.batch = 0, .tokens = tokens, .first_position = 0});
    }
    ++groups.back().batch;
  }

  void add(int64_t id, bool is_real, int64_t sample) {
    ids.push_back(id);
    row_sample.push_back(sample);
    real.push_back(is_real ? 1.0 : 0.0);
  }

  /// About the row that was added last.
  void add_target(int64_t target, double coefficient, int64_t sample, int64_t position) {
    if (coefficient == 0.0) {
      return;
    }
    target_rows.push_back(count() - 1);
    targets.push_back(target);
    coefficients.push_back(coefficient);
    samples.push_back(sample);
    positions.push_back(position);
  }

  TargetRows take_targets(const PackOptions& options) {
    return {.rows = upload(target_rows, options.device),
            .targets = upload(targets, options.device),
            .coefficients = upload(coefficients, options),
            .samples = std::move(samples),
            .positions = std::move(positions)};
  }
};

double weight_sum(const Sample& sample, std::size_t first) {
  double sum = 0.0;
  for (std::size_t t = first; t < sample.weights.size(); ++t) {
    sum += static_cast<double>(sample.weights[t]);
  }
  return sum;
}

}  // namespace

int64_t count_targets(std::span<const Sample> samples) {
  int64_t count = 0;
  for (const Sample& sample : samples) {
    count += std::count_if(sample.weights.begin() + 1, sample.weights.end(), [](float weight) {
      return weight != 0.0F;
    });
  }
  return count;
}

PackedBatch pack(std::span<const Sample> samples,
                 const LossDenominators& denominators,
                 const PackOptions& options) {
  BALEEN_CHECK(!samples.empty() && options.pad_multiple > 0, "{} samples", samples.size());
  std::vector<std::size_t> order(samples.size());
  std::iota(order.begin(), order.end(), 0);
  const auto padded = [&](std::size_t i) {
    const int64_t m = options.pad_multiple;
    return (samples[i].fed_tokens() + m - 1) / m * m;
  };
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return padded(a) < padded(b);
  });

  PackedBatch batch;
  Rows main;
  Rows mtp;
  std::vector<int64_t> mtp_rows;
  for (const std::size_t i : order) {
    const Sample& sample = samples[i];
    BALEEN_CHECK(sample.ids.size() >= 2 && sample.weights.size() == sample.ids.size(),
                 "sample {} has {} tokens and {} weights",
                 sample.number,
                 sample.ids.size(),
                 sample.weights.size());
    const auto place = static_cast<int64_t>(batch.samples.size());
    const int64_t fed = sample.fed_tokens();
    const int64_t tokens = padded(i);
    const double sum = weight_sum(sample, 1);
    const double mtp_sum = weight_sum(sample, 2);
    batch.samples.push_back({sample.number, main.count(), fed});
    batch.num_tokens += fed;
    main.begin_sample(tokens);
    mtp.begin_sample(tokens - 1);
    for (int64_t t = 0; t < tokens; ++t) {
      const auto at = static_cast<std::size_t>(t);
      const bool is_real = t < fed;
      main.add(is_real ? sample.ids[at] : options.pad_id, is_real, place);
      if (is_real) {
        const double weight = static_cast<double>(sample.weights[at + 1]);
        main.add_target(sample.ids[at + 1],
                        loss_coefficient(weight, sum, denominators.weight, denominators),
                        place,
                        t);
      }
      if (t + 1 >= tokens) {
        continue;
      }
      const bool has_next = t + 1 < fed;  // the token after the next is known too
      mtp_rows.push_back(main.count() - 1);
      mtp.add(has_next ? sample.ids[at + 1] : options.pad_id, has_next, place);
      if (has_next) {
        const double weight = static_cast<double>(sample.weights[at + 2]);
        mtp.add_target(sample.ids[at + 2],
                       loss_coefficient(weight, mtp_sum, denominators.mtp_weight, denominators),
                       place,
                       t);
      }
    }
  }
  batch.ids = upload(main.ids, options.device);
  batch.real = upload(main.real, options);
  batch.row_sample = upload(main.row_sample, options.device);
  batch.groups = main.groups;
  batch.main = main.take_targets(options);
  batch.mtp_rows = upload(mtp_rows, options.device);
  batch.mtp_ids = upload(mtp.ids, options.device);
  batch.mtp_real = upload(mtp.real, options);
  batch.mtp_row_sample = upload(mtp.row_sample, options.device);
  batch.mtp_groups = mtp.groups;
  batch.mtp = mtp.take_targets(options);
  return batch;
}

std::vector<std::vector<Sample>> micro_batches(std::vector<Sample> samples, int64_t max_tokens) {
  std::stable_sort(samples.begin(), samples.end(), [](const Sample& a, const Sample& b) {
    return a.fed_tokens() > b.fed_tokens();
  });
  int64_t total = 0;
  for (const Sample& sample : samples) {
    total += sample.fed_tokens();
  }
  auto count =
      static_cast<std::size_t>(std::max<int64_t>(1, (total + max_tokens - 1) / max_tokens));
  while (true) {
    std::vector<int64_t> load(count, 0);
    std::vector<std::size_t> place;
    bool fits = true;
    for (const Sample& sample : samples) {
      const auto least =
          static_cast<std::size_t>(std::min_element(load.begin(), load.end()) - load.begin());
      fits = fits && (load[least] == 0 || load[least] + sample.fed_tokens() <= max_tokens);
      load[least] += sample.fed_tokens();
      place.push_back(least);
    }
    if (!fits) {
      ++count;
      continue;
    }
    std::vector<std::vector<Sample>> batches(count);
    for (std::size_t i = 0; i < samples.size(); ++i) {
      batches[place[i]].push_back(std::move(samples[i]));
    }
    std::erase_if(batches, [](const std::vector<Sample>& batch) { return batch.empty(); });
    return batches;
  }
}

std::vector<std::vector<Sample>> cut_for_shards(std::vector<Sample> samples,
                                                int64_t max_tokens,
                                                int64_t shards) {
  int64_t total = 0;
  int64_t longest = 1;
  for (const Sample& sample : samples) {
    total += sample.fed_tokens();
    longest = std::max(longest, sample.fed_tokens());
  }
  if (max_tokens == 0 && shards == 1) {
    std::vector<std::vector<Sample>> whole;
    whole.push_back(std::move(samples));
    return whole;
  }
  // One sample more than an even share fits, so that even shares never need a further batch.
  const int64_t share = (total + shards - 1) / shards + (shards > 1 ? longest : 0);
  return micro_batches(std::move(samples), max_tokens == 0 ? share : std::min(share, max_tokens));
}

}  // namespace baleen::train
