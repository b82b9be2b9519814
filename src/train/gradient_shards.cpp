#include "train/gradient_shards.h"

#include <exception>
#include <thread>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

namespace baleen::train {

GradientShards::GradientShards(const Masters& masters, std::size_t count) {
  while (more_.size() + 1 < count) {
    more_.push_back(masters.new_shard());
  }
}

void GradientShards::run(Masters& masters, std::size_t num_parts, const Work& work) {
  std::vector<std::exception_ptr> faults(count());
  const auto run_shard = [&](std::size_t shard) {
    const model::ModelParameters& leaves = shard == 0 ? masters.leaves() : more_[shard - 1].leaves;
    try {
      for (std::size_t part = shard; part < num_parts; part += count()) {
        work(leaves, part);
      }
    } catch (...) {  // kept for the caller
      faults[shard] = std::current_exception();
    }
  };
  const int operator_threads = at::get_num_threads();
  {
    std::vector<std::jthread> threads;
    for (std::size_t shard = 1; shard < count() && shard < num_parts; ++shard) {
      threads.emplace_back([&, shard] {
        at::set_num_threads(operator_threads);  // of this thread
        run_shard(shard);
      });
    }
    run_shard(0);
  }
  for (const std::exception_ptr& fault : faults) {
    if (fault) {
      std::rethrow_exception(fault);
    }
  }
  const at::NoGradGuard no_grad;
  for (Masters::Shard& shard : more_) {
    masters.flat_gradients().add_(shard.flat_gradients);
    shard.flat_gradients.zero_();
  }
}

}  // namespace baleen::train
