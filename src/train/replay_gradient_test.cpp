// Gradients through experts that the trainer would not have chosen itself.

#include <cmath>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "train/choice_replay_test.h"

namespace baleen::train {
namespace {

/// In double, so that central differences mean something.
class ReplayGradientTest : public ChoiceReplayTest {
 protected:
  ReplayGradientTest() : ChoiceReplayTest(at::kDouble, "plain") {}
};

TEST_F(ReplayGradientTest, ExpertsThatTheTrainerWouldNotChooseLearn) {
  const std::vector<Sample> samples = {some_sample(1, 12, 32), some_sample(2, 20, 32)};
  // The trainer's own choices, turned to experts that it did not choose.
  ChoiceReplay own(masters_.config(), {});
  run({samples}, own, ReplayMode::kRecord);
  ChoiceReplay other(masters_.config(), {});
  for (const Sample& sample : samples) {
    cache::ChoiceRecords records = own.records_of(sample.number);
    for (std::size_t i = 0; i < records.routes.size(); i += 2) {
      std::vector<uint8_t> free;
      for (uint8_t e = 0; e < 8; ++e) {
        if (e != records.routes[i] && e != records.routes[i + 1]) {
          free.push_back(e);
        }
      }
      records.routes[i] = free[0];
      records.routes[i + 1] = free[1];
    }
    other.add(sample, records);
  }
  const auto loss = [&] {
    const at::NoGradGuard no_grad;
    const PackedBatch batch = packed(samples);
    const PackedForward out =
        replayed_forward(masters_.leaves(), batch, options(), other, ReplayMode::kPlay);
    return row_logprobs(
               out.hidden, masters_.leaves().head, batch.main.targets, {.numerics = numerics_})
        .logprobs.sum()
        .item<double>();
  };
  run({samples}, other, ReplayMode::kPlay);
  for (const std::string name : {"layers.1.ffn.gate.weight",
                                 "layers.3.ffn.experts.*.w1.weight",
                                 "layers.1.ffn.experts.*.w2.weight"}) {
    for (TrainedTensor& tensor : masters_.trained()) {
      if (tensor.info.name != name) {
        continue;
      }
      // Along the gradient of one given expert (row of the gate, member of the stack).
      for (const int64_t expert : {0, 1}) {
        at::Tensor gradient = tensor.gradient[expert].clone();
        const double norm = gradient.norm().item<double>();
        ASSERT_GT(norm, 1e-4) << name << " expert " << expert;
        const at::Tensor direction = gradient / norm;
        const at::Tensor place = tensor.value[expert];
        const double step = 1e-5;
        place.add_(direction, step);
        const double above = loss();
        place.sub_(direction, 2 * step);
        const double below = loss();
        place.add_(direction, step);
        EXPECT_NEAR((above - below) / (2 * step) / norm, 1.0, 1e-6) << name << " expert " << expert;
      }
    }
  }
}

}  // namespace
}  // namespace baleen::train
