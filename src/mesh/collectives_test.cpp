// Forward of each collective by its definition, and backward as its adjoint: with f linear over all
// ranks, sum over ranks of <y, f(x)> equals the sum over ranks of <f'(y), x> for any x and y. For
// the two whose loss counts once or whose input is one value on all ranks, by what they are for.

#include "mesh/collectives.h"

#include <mutex>
#include <numeric>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "comm/thread_world.h"
#include "mesh/row_exchange.h"
#include "mesh/vocabulary.h"

namespace baleen::mesh {
namespace {

std::unique_ptr<comm::Group> all_ranks(comm::World& world) {
  std::vector<int> members(static_cast<std::size_t>(world.size()));
  std::iota(members.begin(), members.end(), 0);
  return world.group(members);
}

at::Tensor numbers(at::IntArrayRef sizes, int seed) {
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(seed));
  return at::randn(sizes, generator, at::kDouble);
}

double inner_product(const at::Tensor& a, const at::Tensor& b) {
  return (a * b).sum().item<double>();
}

using Linear = std::function<at::Tensor(const at::Tensor& x, comm::Group& group)>;

/// Largest difference between the two sides for `f` on x of `rows` rows, on 2, 3 and 4 ranks.
void expect_adjoint(const char* name,
                    const std::function<int64_t(int rank, int size)>& rows,
                    const Linear& f) {
  for (const int size : {2, 3, 4}) {
    comm::run_ranks(size, {}, [&](comm::World& world) {
      at::set_num_threads(1);
      const auto group = all_ranks(world);
      at::Tensor x = numbers({rows(group->rank(), size), 3}, 10 + group->rank());
      x.requires_grad_(true);
      const at::Tensor result = f(x, *group);
      const at::Tensor y = numbers(result.sizes(), 50 + group->rank());
      (y * result).sum().backward();
      ASSERT_TRUE(x.grad().defined()) << name;
      const double forward = sum_of_numbers(inner_product(y, result), *group);
      const double backward = sum_of_numbers(inner_product(x.grad(), x), *group);
      EXPECT_NEAR(forward, backward, 1e-12 * std::max(1.0, std::abs(forward)))
          << name << " on " << size << " ranks";
    });
  }
}

int64_t count_for(int from, int to) {
  return (2 * from + 3 * to) % 4;  // often none
}

TEST(CollectivesTest, BackwardIsTheAdjoint) {
  const auto four = [](int, int) { return int64_t{4}; };
  expect_adjoint("all_gather", four, [](const at::Tensor& x, comm::Group& group) {
    return all_gather_rows(x, group);
  });
  expect_adjoint(
      "reduce_scatter",
      [](int, int size) { return int64_t{2} * size; },
      [](const at::Tensor& x, comm::Group& group) { return reduce_scatter_rows(x, group); });
  expect_adjoint("broadcast", four, [](const at::Tensor& x, comm::Group& group) {
    return broadcast_from(x, 1, group);
  });
  const auto sent_rows = [](int rank, int size) {
    int64_t rows = 0;
    for (int to = 0; to < size; ++to) {
      rows += count_for(rank, to);
    }
    return rows;
  };
  expect_adjoint("exchange", sent_rows, [](const at::Tensor& x, comm::Group& group) {
    std::vector<int64_t> sent;
    std::vector<int64_t> received;
    for (int peer = 0; peer < group.size(); ++peer) {
      sent.push_back(count_for(group.rank(), peer));
      received.push_back(count_for(peer, group.rank()));
    }
    return exchange_rows(x, sent, received, group);
  });
  // Rank r takes r + 1 rows from everybody.
  expect_adjoint(
      "exchange_and_sum",
      [](int, int size) { return int64_t{size} * (size + 1) / 2; },
      [](const at::Tensor& x, comm::Group& group) {
        std::vector<int64_t> sent(static_cast<std::size_t>(group.size()));
        std::iota(sent.begin(), sent.end(), 1);
        return exchange_and_sum(x, sent, group.rank() + 1, group);
      });
}

TEST(CollectivesTest, RowsMoveToTheirPlaces) {
  comm::run_ranks(3, {}, [](comm::World& world) {
    const auto group = all_ranks(world);
    const int rank = group->rank();
    const at::Tensor own = at::full({2, 1}, 10.0 * rank, at::kDouble) + at::arange(2).view({2, 1});
    EXPECT_TRUE(at::equal(all_gather_rows(own, *group).flatten(),
                          at::tensor({0.0, 1.0, 10.0, 11.0, 20.0, 21.0}, at::kDouble)));
    const at::Tensor blocks = at::arange(3, at::kDouble).view({3, 1});
    EXPECT_EQ(reduce_scatter_rows(blocks, *group).item<double>(), 3.0 * rank);
    EXPECT_EQ(broadcast_from(own, 2, *group)[1].item<double>(), 21.0);
  });
}

TEST(CollectivesTest, PartialSumsAndSharedInputsGiveTheGradientOfOneLoss) {
  // loss = sum((w * x)^2), w cut over the ranks, x on all of them: as one rank would compute it.
  const at::Tensor w = numbers({4, 5}, 1);
  at::Tensor x = numbers({5}, 2).requires_grad_(true);
  at::Tensor weight = w.clone().requires_grad_(true);
  at::Tensor product = weight * x;  // [4, 5]
  product.sum(1).square().sum().backward();
  comm::run_ranks(2, {}, [&](comm::World& world) {
    const auto group = all_ranks(world);
    const int64_t first = group->rank() == 0 ? 0 : 2;
    const int64_t count = group->rank() == 0 ? 2 : 3;
    at::Tensor own_w = w.narrow(1, first, count).clone().requires_grad_(true);
    at::Tensor own_x = x.detach().clone().requires_grad_(true);
    const at::Tensor shared = shared_by_ranks(own_x, *group);
    const at::Tensor partial = (own_w * shared.narrow(0, first, count)).sum(1);
    sum_over_ranks(partial, *group).square().sum().backward();
    EXPECT_LT((own_w.grad() - weight.grad().narrow(1, first, count)).abs().max().item<double>(),
              1e-12);
    EXPECT_LT((own_x.grad() - x.grad()).abs().max().item<double>(), 1e-12);
  });
}

TEST(CollectivesTest, CollectivesInBackwardMeetWhateverTheOrderOfTheGraph) {
  // Ranks use the results in different orders and one of them not at all: every rank still runs the
  // adjoints in one order, or this would end by the time limit.
  comm::run_ranks(4, {.wait_timeout_ms = 20'000}, [](comm::World& world) {
    at::set_num_threads(1);
    const auto group = all_ranks(world);
    at::Tensor x = numbers({4, 2}, group->rank()).requires_grad_(true);
    std::vector<at::Tensor> results;
    for (int i = 0; i < 12; ++i) {
      results.push_back(i % 2 == 0 ? all_gather_rows(x * (i + 1), *group)
                                   : shared_by_ranks(x.sin() * i, *group));
    }
    at::Tensor loss = at::zeros({}, at::kDouble);
    for (int i = 0; i < 12; ++i) {
      const int use = group->rank() % 2 == 0 ? i : 11 - i;
      if (use == 5 && group->rank() == 3) {
        loss = attached(loss, {results[5]});
        continue;
      }
      loss = loss + results[static_cast<std::size_t>(use)].square().sum();
    }
    loss.backward();
    EXPECT_TRUE(x.grad().isfinite().all().item<bool>());
  });
}

TEST(CollectivesTest, AnErrorInOneBackwardEndsAllRanks) {
  EXPECT_THROW(comm::run_ranks(3,
                               {},
                               [](comm::World& world) {
                                 const auto group = all_ranks(world);
                                 at::Tensor x = numbers({2, 2}, 1).requires_grad_(true);
                                 const at::Tensor loss = all_gather_rows(x, *group).sum();
                                 if (group->rank() == 1) {
                                   throw ConfigError("rank 1 has enough");
                                 }
                                 loss.backward();
                               }),
               ConfigError);
}

TEST(RowExchangeTest, GivesWhatIsWantedAndReturnsGradientsToTheOwner) {
  // Rank 0 holds ids 0..3, rank 1 ids 4..6 backwards, rank 2 id 7; repeats and own rows are wanted.
  const std::vector<IdList> own = {{0, 1, 2, 3}, {6, 5, 4}, {7}};
  const std::vector<IdList> wanted = {{0, 1}, {3, 4, 4, 6, 0}, {}};
  comm::run_ranks(3, {}, [&](comm::World& world) {
    const auto group = all_ranks(world);
    const auto rank = static_cast<std::size_t>(group->rank());
    const RowOwners owners(8, own);
    const RowExchange exchange(owners, wanted, group->rank());
    EXPECT_TRUE(exchange.is_needed());
    at::Tensor rows = at::tensor(own[rank], at::kDouble).unsqueeze(1).requires_grad_(true);
    const at::Tensor got = exchange.run(rows, *group);
    EXPECT_TRUE(at::equal(got.detach().flatten(), at::tensor(wanted[rank], at::kDouble)));
    const at::Tensor weight = at::tensor(wanted[rank], at::kDouble).unsqueeze(1) + 1.0;
    (got * weight).sum().backward();
    for (std::size_t i = 0; i < own[rank].size(); ++i) {
      double expected = 0.0;
      for (const IdList& list : wanted) {
        for (const int64_t id : list) {
          expected += id == own[rank][i] ? static_cast<double>(id) + 1.0 : 0.0;
        }
      }
      EXPECT_EQ(rows.grad()[static_cast<int64_t>(i)].item<double>(), expected);
    }
  });
}

TEST(RowExchangeTest, NobodysRowsNeedNoExchange) {
  const std::vector<IdList> own = {{0, 1}, {2, 3}};
  const RowOwners owners(4, own);
  EXPECT_FALSE(RowExchange(owners, own, 0).is_needed());
  EXPECT_FALSE(RowExchange(owners, {{}, {}}, 0).is_needed());
  EXPECT_TRUE(RowExchange(owners, {{0, 1}, {3, 2}}, 0).is_needed());
  EXPECT_TRUE(RowExchange(owners, {{0}, {2, 3}}, 0).is_needed());
}

TEST(VocabularyTest, EqualsTheWholeSoftmaxOnAnyNumberOfRanks) {
  const int64_t vocab = 11;  // no multiple of the ranks
  const at::Tensor targets = at::tensor({0, 10, 3, 5, 7}, at::kLong);
  at::Tensor logits = (numbers({5, vocab}, 3) * 4.0).requires_grad_(true);
  const at::Tensor log_p = at::log_softmax(logits, -1);
  const at::Tensor expected = log_p.gather(1, targets.unsqueeze(1)).squeeze(1);
  const at::Tensor entropy = -(log_p.exp() * log_p).sum(-1);
  const at::Tensor a = numbers({5}, 4);
  const at::Tensor b = numbers({5}, 5);
  (a * expected + b * entropy).sum().backward();
  for (const int size : {1, 2, 4}) {
    comm::run_ranks(size, {}, [&](comm::World& world) {
      const auto group = all_ranks(world);
      const Part part = part_of(vocab, group->rank(), size);
      at::Tensor own =
          logits.detach().narrow(1, part.begin, part.count()).clone().requires_grad_(true);
      const TokenLogprobs result = vocabulary_logprobs(own, targets, part, *group);
      EXPECT_LT((result.logprobs - expected).abs().max().item<double>(), 1e-13);
      EXPECT_LT((result.entropy - entropy).abs().max().item<double>(), 1e-13);
      (a * result.logprobs + b * result.entropy).sum().backward();
      EXPECT_LT((own.grad() - logits.grad().narrow(1, part.begin, part.count()))
                    .abs()
                    .max()
                    .item<double>(),
                1e-13);
    });
  }
}

TEST(VocabularyTest, KnownAnswer) {
  comm::run_ranks(2, {}, [](comm::World& world) {
    const auto group = all_ranks(world);
    const Part part = part_of(4, group->rank(), 2);
    at::Tensor logits = at::tensor({1.0, 2.0, 3.0, 4.0}, at::kDouble)
                            .narrow(0, part.begin, 2)
                            .unsqueeze(0)
                            .clone()
                            .requires_grad_(true);
    const TokenLogprobs result =
        vocabulary_logprobs(logits, at::tensor({2}, at::kLong), part, *group);
    EXPECT_NEAR(result.logprobs.item<double>(), -1.440189699, 1e-9);
    EXPECT_NEAR(result.entropy.item<double>(), 0.947536964, 1e-9);
    result.logprobs.sum().backward();
    const double expected[] = {-0.0320586033, -0.0871443187, 0.7631171819, -0.6439142599};
    for (int64_t i = 0; i < 2; ++i) {
      EXPECT_NEAR(logits.grad()[0][i].item<double>(), expected[part.begin + i], 1e-9);
    }
  });
}

}  // namespace
}  // namespace baleen::mesh
