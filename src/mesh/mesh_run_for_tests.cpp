#include "mesh/mesh_run_for_tests.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <mutex>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "comm/thread_world.h"
#include "mesh/mesh_model.h"
#include "mesh/rank_tensors.h"
#include "mesh/zero_ranges.h"
#include "model/whole_model.h"
#include "ops/token_loss.h"

namespace baleen::mesh {
namespace {

constexpr double kMtpShare = 0.3;

/// Tensors put together from the parts of all ranks. Whoever brings a part a second time must bring
/// the same bits.
class Assembly {
 public:
  void put_part(const std::string& name,
                const std::vector<int64_t>& sizes,
                const ParameterShard& shard,
                const at::Tensor& part) {
    const std::lock_guard<std::mutex> lock(mutex_);
    at::Tensor& whole = entry(name, sizes, part);
    at::Tensor place = whole.narrow(shard.dim, shard.part.begin, shard.part.count());
    note_difference(name, place, part);
    place.copy_(part);
  }

  void put_rows(const std::string& name,
                int64_t count,
                const at::Tensor& index,
                const at::Tensor& rows) {
    const std::lock_guard<std::mutex> lock(mutex_);
    at::Tensor& whole = entry(name, {count}, rows);
    note_difference(name, whole.index_select(0, index), rows);
    whole.index_copy_(0, index, rows);
  }

  void disagree(const std::string& what) {
    const std::lock_guard<std::mutex> lock(mutex_);
    disagreements_.push_back(what);
  }

  std::map<std::string, at::Tensor> take() { return std::move(whole_); }
  const std::vector<std::string>& disagreements() const { return disagreements_; }

 private:
  at::Tensor& entry(const std::string& name,
                    const std::vector<int64_t>& sizes,
                    const at::Tensor& like) {
    auto [found, fresh] = whole_.try_emplace(name);
    if (fresh) {
      found->second = at::full(sizes, std::numeric_limits<double>::quiet_NaN(), like.options());
    }
    return found->second;
  }
  void note_difference(const std::string& name, const at::Tensor& place, const at::Tensor& part) {
    if (!place.isnan().all().item<bool>() && !at::equal(place, part)) {
      disagreements_.push_back(name + " differs between ranks that hold it");
    }
  }

  std::mutex mutex_;
  std::map<std::string, at::Tensor> whole_;
  std::vector<std::string> disagreements_;
};

model::ModelParameters with_gradients(model::ModelParameters params) {
  model::for_each_parameter(params, [](const model::ParameterInfo& info, at::Tensor& value) {
    if (value.defined() && info.trainable()) {
      value = value.detach().clone().requires_grad_(true);
    }
  });
  return params;
}

at::Tensor loss_of(const at::Tensor& weights,
                   const at::Tensor& logprobs,
                   const at::Tensor& mtp_weights,
                   const at::Tensor& mtp_logprobs) {
  return -(weights * logprobs).sum() - (mtp_weights * mtp_logprobs).sum();
}

struct Job {
  const MeshCase& mesh_case;
  const model::ModelParameters& whole;
  const MeshBatch& batch;
  const ops::Numerics& numerics;
};

/// AdamW by its formula, element by element, over what a rank owns.
class PlainAdamW {
 public:
  explicit PlainAdamW(std::vector<ZeroPiece>& pieces) : pieces_(pieces) {
    for (const ZeroPiece& piece : pieces_) {
      m_.push_back(at::zeros_like(piece.value));
      v_.push_back(at::zeros_like(piece.value));
    }
  }
  void step(double gradient_scale) {
    ++step_;
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
      const at::Tensor g = pieces_[i].gradient * gradient_scale;
      m_[i] = m_[i] * 0.9 + g * 0.1;
      v_[i] = v_[i] * 0.98 + g * g * 0.02;
      const at::Tensor m_hat = m_[i] / (1.0 - std::pow(0.9, step_));
      const at::Tensor v_hat = v_[i] / (1.0 - std::pow(0.98, step_));
      pieces_[i]
          .value.mul_(1.0 - kLearningRate * 0.1)
          .sub_(m_hat / (v_hat.sqrt() + 1e-8) * kLearningRate);
    }
  }

 private:
  static constexpr double kLearningRate = 1e-3;

  std::vector<ZeroPiece>& pieces_;
  std::vector<at::Tensor> m_;
  std::vector<at::Tensor> v_;
  int step_ = 0;
};

/// One rank of a job.
class RankRun {
 public:
  RankRun(const Job& job, comm::World& world, Assembly& assembly)
      : job_(job),
        assembly_(assembly),
        mesh_(world, job.mesh_case.shape),
        stages_(StageSplit::even(job.whole.config.num_hidden_layers,
                                 mesh_.shape().pp,
                                 job.mesh_case.chunks_per_rank,
                                 true)),
        leaves_(with_gradients(own_parameters(job.whole, mesh_, stages_))),
        tensors_(rank_tensors(leaves_, mesh_, stages_)),
        rows_(job.batch.num_rows / mesh_.shape().dp / job.mesh_case.micro_batches),
        plans_(TokenLayout({{.batch = rows_, .samples = job.batch.samples}},
                           {.context_ranks = mesh_.shape().cp,
                            .tensor_ranks = mesh_.shape().sequence_parallel ? mesh_.shape().tp : 1,
                            .zig_zag = job.mesh_case.zig_zag}),
               job.whole.config,
               mesh_),
        tables_(model::make_rope_tables(
            job.whole.config, job.batch.row_tokens(), job.whole.embed, job.numerics)) {}

  /// All steps; the first one's log-probabilities and gradients, the last one's values.
  void run(MeshOutcome& outcome) {
    ZeroRanges ranges(tensors_, mesh_);
    PlainAdamW optimizer(ranges.pieces());
    for (int step = 0; step < job_.mesh_case.steps; ++step) {
      for (RankTensor& tensor : tensors_) {
        tensor.gradient.zero_();
      }
      const double loss = forward_and_backward(step == 0);
      std::vector<RankTensor> summed = step == 0 ? summed_gradients() : std::vector<RankTensor>();
      ranges.reduce_gradients();
      if (step == 0) {
        compare_owned(ranges.pieces(), summed);
        put_parts(summed, "", [](const RankTensor& tensor) { return tensor.gradient; });
      }
      const double norm = ranges.gradient_norm();
      optimizer.step(std::min(1.0, 1.0 / (norm + 1e-6)));
      ranges.gather_values();
      if (mesh_.rank() == 0) {
        outcome.losses.push_back(loss);
        outcome.gradient_norms.push_back(norm);
      }
    }
    put_parts(tensors_, "value:", [](const RankTensor& tensor) { return tensor.value; });
  }

 private:
  int64_t first_row(int micro_batch) const {
    return (mesh_.place().dp * job_.mesh_case.micro_batches + micro_batch) * rows_;
  }

  double forward_and_backward(bool keep_logprobs) {
    const MeshBatch& batch = job_.batch;
    const auto rows_of = [&](const at::Tensor& all, int m) {
      return all.narrow(0, first_row(m), rows_).reshape({-1});
    };
    std::vector<MicroBatch> batches;
    for (int m = 0; m < job_.mesh_case.micro_batches; ++m) {
      batches.push_back({.plans = &plans_,
                         .ids = rows_of(batch.ids, m),
                         .next_ids = rows_of(batch.next_ids, m),
                         .after_next_ids = rows_of(batch.after_next_ids, m)});
    }
    double share = 0.0;
    MeshModel model(
        leaves_, mesh_, stages_, tables_, {.numerics = job_.numerics, .with_mtp = true});
    model.run(batches, job_.mesh_case.order, [&](int m, const TokenRows& seen) {
      const int64_t count = batch.ids.numel();
      const at::Tensor index = seen.token_index + first_row(m) * batch.row_tokens();
      if (keep_logprobs) {
        assembly_.put_rows("logprobs", count, index, seen.logprobs.detach());
        assembly_.put_rows("mtp_logprobs", count, index, seen.mtp_logprobs.detach());
      }
      const auto here = [&](const at::Tensor& all) {
        return all.view({-1}).index_select(0, index);
      };
      const at::Tensor loss =
          loss_of(here(batch.weights), seen.logprobs, here(batch.mtp_weights), seen.mtp_logprobs);
      share += loss.item<double>();
      return loss;
    });
    return model.sum_of_shares(share);
  }

  std::vector<RankTensor> summed_gradients() const {
    std::vector<RankTensor> summed = tensors_;
    for (RankTensor& tensor : summed) {
      tensor.gradient = tensor.gradient.clone();
    }
    sum_gradients(summed, mesh_);
    return summed;
  }

  /// The owners' sums and the sums on every rank: two ways that must meet.
  void compare_owned(const std::vector<ZeroPiece>& pieces, const std::vector<RankTensor>& summed) {
    for (const ZeroPiece& piece : pieces) {
      const at::Tensor all = summed[piece.tensor].gradient.reshape({-1});
      if (!at::equal(piece.gradient, all.narrow(0, piece.begin, piece.gradient.size(0)))) {
        assembly_.disagree(piece.name + ": the owner's sum is not the sum");
      }
    }
  }

  void put_parts(const std::vector<RankTensor>& tensors,
                 const std::string& prefix,
                 const std::function<at::Tensor(const RankTensor&)>& part) {
    std::size_t next = 0;
    model::for_each_parameter(leaves_, [&](const model::ParameterInfo& info, at::Tensor&) {
      if (next < tensors.size() && tensors[next].name == info.name) {
        assembly_.put_part(
            prefix + info.name, info.shape, shard_of(info, mesh_), part(tensors[next++]));
      }
    });
  }

  const Job& job_;
  Assembly& assembly_;
  const comm::Mesh mesh_;
  const StageSplit stages_;
  model::ModelParameters leaves_;
  std::vector<RankTensor> tensors_;
  int64_t rows_;
  const StepPlans plans_;
  const model::RopeTables tables_;
};

/// The token `ahead` behind each, within its sample, else 0.
at::Tensor shifted(const at::Tensor& ids, const std::vector<int64_t>& samples, int64_t ahead) {
  at::Tensor result = at::zeros_like(ids);
  int64_t begin = 0;
  for (const int64_t tokens : samples) {
    if (tokens > ahead) {
      result.narrow(1, begin, tokens - ahead).copy_(ids.narrow(1, begin + ahead, tokens - ahead));
    }
    begin += tokens;
  }
  return result;
}

/// Uneven weights, none for every fifth token and where there is no target; they add up to `sum`.
at::Tensor weights_for(int64_t rows,
                       const std::vector<int64_t>& samples,
                       int64_t ahead,
                       double sum) {
  std::vector<double> weights;
  for (int64_t row = 0; row < rows; ++row) {
    for (const int64_t tokens : samples) {
      for (int64_t t = 0; t < tokens; ++t) {
        const auto i = static_cast<int64_t>(weights.size());
        const bool counts = t + ahead < tokens && (3 * i + row) % 5 != 0;
        weights.push_back(counts ? 1.0 + static_cast<double>(i % 3) : 0.0);
      }
    }
  }
  const at::Tensor raw = at::tensor(weights, at::kDouble).view({rows, -1});
  return raw * (sum / raw.sum().item<double>());
}

}  // namespace

MeshBatch make_batch(int64_t num_rows, const std::vector<int64_t>& samples, int64_t vocab_size) {
  int64_t tokens = 0;
  for (const int64_t sample : samples) {
    tokens += sample;
  }
  MeshBatch batch;
  batch.num_rows = num_rows;
  batch.samples = samples;
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(uint64_t{11});
  batch.ids = at::randint(0, vocab_size, {num_rows, tokens}, generator, at::kLong);
  batch.next_ids = shifted(batch.ids, samples, 1);
  batch.after_next_ids = shifted(batch.ids, samples, 2);
  batch.weights = weights_for(num_rows, samples, 1, 1.0);
  batch.mtp_weights = weights_for(num_rows, samples, 2, kMtpShare);
  return batch;
}

MeshOutcome run_on_mesh(const MeshCase& mesh_case,
                        const model::ModelParameters& whole,
                        const MeshBatch& batch,
                        const ops::Numerics& numerics) {
  MeshOutcome outcome;
  Assembly assembly;
  const Job job{mesh_case, whole, batch, numerics};
  comm::run_ranks(mesh_case.shape.world_size(), {}, [&](comm::World& world) {
    at::set_num_threads(1);  // of this thread's operators
    RankRun(job, world, assembly).run(outcome);
  });
  outcome.disagreements = assembly.disagreements();
  for (auto& [name, tensor] : assembly.take()) {
    if (name == "logprobs" || name == "mtp_logprobs") {
      (name == "logprobs" ? outcome.logprobs : outcome.mtp_logprobs) =
          tensor.view({batch.num_rows, batch.row_tokens()});
    } else if (name.starts_with("value:")) {
      outcome.values[name.substr(6)] = tensor;
    } else {
      outcome.gradients[name] = tensor;
    }
  }
  return outcome;
}

MeshOutcome run_plainly(const model::ModelParameters& whole,
                        const MeshBatch& batch,
                        const ops::Numerics& numerics) {
  MeshOutcome outcome;
  model::ModelParameters leaves = with_gradients(whole);
  outcome.logprobs = at::zeros(batch.ids.sizes(), whole.embed.options());
  outcome.mtp_logprobs = at::zeros_like(outcome.logprobs);
  double total = 0.0;
  int64_t begin = 0;
  for (const int64_t tokens : batch.samples) {
    const auto part = [&](const at::Tensor& all, int64_t count) {
      return all.narrow(1, begin, count);
    };
    const model::TrainingOutput output = model::forward_training(
        leaves, part(batch.ids, tokens), {.numerics = numerics, .with_mtp = tokens > 1});
    const at::Tensor logprobs = ops::token_logprobs(output.logits, part(batch.next_ids, tokens));
    at::Tensor loss = -(part(batch.weights, tokens) * logprobs).sum();
    part(outcome.logprobs, tokens).copy_(logprobs.detach());
    if (tokens > 1) {
      const int64_t pairs = tokens - 1;
      const at::Tensor mtp =
          ops::token_logprobs(output.mtp_logits, part(batch.after_next_ids, pairs));
      loss = loss - (part(batch.mtp_weights, pairs) * mtp).sum();
      part(outcome.mtp_logprobs, pairs).copy_(mtp.detach());
    }
    total += loss.item<double>();
    loss.backward();
    begin += tokens;
  }
  double squares = 0.0;
  model::for_each_parameter(leaves, [&](const model::ParameterInfo& info, at::Tensor& value) {
    if (info.trainable()) {
      outcome.gradients[info.name] = value.grad().defined() ? value.grad() : at::zeros_like(value);
      squares += outcome.gradients[info.name].to(at::kDouble).square().sum().item<double>();
    }
  });
  outcome.losses = {total};
  outcome.gradient_norms = {std::sqrt(squares)};
  return outcome;
}

double largest_difference(const TensorsByName& a, const TensorsByName& b, std::string* worst) {
  double largest = 0.0;
  for (const auto& [name, tensor] : a) {
    const auto found = b.find(name);
    if (found == b.end()) {
      *worst = name + " is missing";
      return std::numeric_limits<double>::infinity();
    }
    const double scale = tensor.abs().max().item<double>();
    const double difference = (tensor - found->second).abs().max().item<double>();
    const double relative = scale > 0.0 ? difference / scale : difference;
    if (!(relative <= largest)) {
      largest = relative;
      *worst = name;
    }
  }
  return largest;
}

}  // namespace baleen::mesh
