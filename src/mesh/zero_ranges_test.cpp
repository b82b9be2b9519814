// Steps of an optimizer that works element by element, on 1, 2 and 4 owners: the same bits, the
// same norm, every element once.

#include "mesh/zero_ranges.h"

#include <mutex>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "comm/thread_world.h"
#include "mesh/collectives.h"

namespace baleen::mesh {
namespace {

// Around the block of 1024 elements that stretches are made of, and inside of it.
const std::vector<std::vector<int64_t>> kShapes = {{3}, {31, 33}, {1}, {64, 80}, {2, 5, 7}, {1024}};

at::Tensor values_of(std::size_t i) {
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(uint64_t{100 + i});
  return at::randn(kShapes[i], generator, at::kFloat);
}

/// Gradient of the whole batch, in four equal shares of which owner r of R has 4 / R.
at::Tensor share_of(std::size_t i, int step, int quarter) {
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(
      static_cast<uint64_t>(1000 * step + 10 * static_cast<int>(i) + quarter));
  return at::randn(kShapes[i], generator, at::kFloat);
}

struct Result {
  std::vector<at::Tensor> values;
  std::vector<double> norms;
};

/// Five steps of momentum with clipping to a norm of 1.
Result run_steps(int owners) {
  Result result;
  std::mutex mutex;
  comm::run_ranks(owners, {}, [&](comm::World& world) {
    at::set_num_threads(1);
    const comm::Mesh mesh(world, {.dp = owners});
    std::vector<RankTensor> tensors(kShapes.size());
    for (std::size_t i = 0; i < kShapes.size(); ++i) {
      tensors[i].name = "tensor" + std::to_string(i);
      tensors[i].sharding = i == 3 ? Sharding::kTensor : Sharding::kWhole;
      tensors[i].value = values_of(i);
      tensors[i].gradient = at::zeros_like(tensors[i].value);
    }
    ZeroRanges ranges(tensors, mesh);
    int64_t owned = 0;
    for (const ZeroPiece& piece : ranges.pieces()) {
      owned += piece.value.size(0);
    }
    EXPECT_EQ(sum_of_numbers(static_cast<double>(owned), mesh.group(comm::Axis::kWorld)),
              3 + 31 * 33 + 1 + 64 * 80 + 70 + 1024);
    std::vector<at::Tensor> momentum;
    for (const ZeroPiece& piece : ranges.pieces()) {
      momentum.push_back(at::zeros_like(piece.value));
    }
    for (int step = 0; step < 5; ++step) {
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        // Shares are added in pairs, as the tree over four ranks does it.
        const auto quarter = [&](int q) { return share_of(i, step, q); };
        at::Tensor own;
        if (owners == 4) {
          own = quarter(mesh.rank());
        } else if (owners == 2) {
          own = quarter(2 * mesh.rank()) + quarter(2 * mesh.rank() + 1);
        } else {
          own = (quarter(0) + quarter(1)) + (quarter(2) + quarter(3));
        }
        tensors[i].gradient.copy_(own);
      }
      ranges.reduce_gradients();
      const double norm = ranges.gradient_norm();
      const double scale = std::min(1.0, 1.0 / (norm + 1e-6));
      for (std::size_t p = 0; p < ranges.pieces().size(); ++p) {
        ZeroPiece& piece = ranges.pieces()[p];
        momentum[p].mul_(0.9).add_(piece.gradient * scale);
        piece.value.sub_(momentum[p] * 0.01);
      }
      ranges.gather_values();
      if (mesh.rank() == 0) {
        result.norms.push_back(norm);
      }
    }
    const std::lock_guard<std::mutex> lock(mutex);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (result.values.size() <= i) {
        result.values.push_back(tensors[i].value);
      } else {
        EXPECT_TRUE(at::equal(result.values[i], tensors[i].value)) << i;
      }
    }
  });
  return result;
}

TEST(ZeroRangesTest, StepsHaveTheSameBitsOnAnyNumberOfOwners) {
  const Result one = run_steps(1);
  // By hand: the norm of the whole gradient of the first step.
  double squares = 0.0;
  for (std::size_t i = 0; i < kShapes.size(); ++i) {
    const at::Tensor whole =
        (share_of(i, 0, 0) + share_of(i, 0, 1)) + (share_of(i, 0, 2) + share_of(i, 0, 3));
    squares += whole.to(at::kDouble).square().sum().item<double>();
  }
  EXPECT_NEAR(one.norms[0], std::sqrt(squares), 1e-10 * one.norms[0]);
  EXPECT_FALSE(at::equal(one.values[3], values_of(3)));
  for (const int owners : {2, 4}) {
    const Result several = run_steps(owners);
    EXPECT_EQ(several.norms, one.norms) << owners;
    for (std::size_t i = 0; i < kShapes.size(); ++i) {
      EXPECT_TRUE(at::equal(several.values[i], one.values[i])) << i << " on " << owners;
    }
  }
}

}  // namespace
}  // namespace baleen::mesh
