#include "ops/hyper_connection.h"

#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "kernels/hyper_connection/hyper_connection_oracle.h"
#include "kernels/sinkhorn/sinkhorn_cpu.h"
#include "ops/gradcheck.h"
#include "ops/sinkhorn_steps.h"
#include "ops/tensor_checks.h"

namespace baleen::ops {
namespace {

const HcConfig kConfig;

HcWeights seeded_weights(
    int64_t n, int64_t width, int64_t outputs, int64_t scales, at::ScalarType dtype) {
  return {seeded({outputs, n * width}, 21, dtype),
          seeded({outputs}, 22, dtype),
          seeded({scales}, 23, dtype)};
}

/// The mixing numbers m_i = (i - 12) / 8 of the published example come from a stream vector of ones
/// (rho = 1 up to eps) and equal columns of fn.
HcWeights published_weights(const at::Tensor& streams) {
  const at::Tensor flat = streams.reshape({-1});
  const double rho = 1.0 / std::sqrt(flat.square().mean().item<double>() + kConfig.rms_norm_eps);
  const at::Tensor m = (at::arange(24, at::kDouble) - 12.0) / 8.0;
  const at::Tensor direction = flat / flat.square().sum();  // <direction, x> = 1
  at::Tensor base = at::zeros({24}, at::kDouble);
  base[0] = 0.5;
  base[9] = 3.0;
  base[18] = -1.0;
  return {m.unsqueeze(1) * direction.unsqueeze(0) / rho,
          base,
          at::tensor({1.0, 0.5, 2.0}, at::kDouble)};
}

TEST(HyperConnectionTest, PublishedExample) {
  const at::Tensor streams = at::tensor({1.0, 2.0, 3.0, 4.0}, at::kDouble).view({4, 1});
  const HcMix mix = hc_pre(streams, published_weights(streams), kConfig, Numerics::plain());
  EXPECT_LE(relative_error(mix.post, {0.7550814, 0.7846737, 0.8146668, 0.8450093}), 1e-7);
  EXPECT_LE(relative_error(mix.comb,
                           {0.0966100,
                            0.6823295,
                            0.1244507,
                            0.0966088,
                            0.2747377,
                            0.0966093,
                            0.3539141,
                            0.2747380,
                            0.3539137,
                            0.1244510,
                            0.1677201,
                            0.3539142,
                            0.2747377,
                            0.0966093,
                            0.3539141,
                            0.2747380}),
            2e-7);
  for (const double sum : values_of(mix.comb.sum(0))) {
    EXPECT_NEAR(sum, 0.999999, 1e-9);
  }
  EXPECT_NEAR(values_of(mix.y)[0], 2.321018, 5e-7);
  const at::Tensor out =
      hc_post(at::tensor({10.0}, at::kDouble), streams, mix.post, mix.comb, Numerics::plain());
  EXPECT_LE(relative_error(out, {10.35759, 9.482076, 10.89776, 11.25687}), 5e-7);
}

TEST(HyperConnectionTest, AgainstOracle) {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    for (const int64_t n : {1, 2, 4}) {
      for (const int variant : {0, 1, 2, 3}) {
        const bool rounded = variant % 2 == 1;
        const int64_t width = 24;
        Numerics numerics = Numerics::plain();
        numerics.round_activations = rounded;
        // Without gradients the CPU takes the fused kernels, with them the tensor code.
        const at::Tensor streams = seeded({2, 3, n, width}, 5, dtype).requires_grad_(variant >= 2);
        const at::Tensor sub = seeded({2, 3, width}, 6, dtype);
        const HcWeights w = seeded_weights(n, width, (2 + n) * n, 3, dtype);
        const HcWeights head = seeded_weights(n, width, n, 1, dtype);
        const std::vector<double> x = values_of(streams);
        const std::vector<double> y = values_of(sub);
        std::vector<double> mixed, post, comb, out, collapsed;
        const auto append = [](std::vector<double>& to, const std::vector<double>& from) {
          to.insert(to.end(), from.begin(), from.end());
        };
        for (int64_t token = 0; token < 6; ++token) {
          const auto row = part(x, token * n * width, n * width);
          const kernels::HcOracle mix = kernels::hc_pre_oracle(row,
                                                               static_cast<std::size_t>(n),
                                                               values_of(w.fn),
                                                               values_of(w.base),
                                                               values_of(w.scale),
                                                               1e-6,
                                                               1e-6,
                                                               20);
          append(mixed, mix.y);
          append(post, mix.post);
          append(comb, mix.comb);
          append(out,
                 kernels::hc_post_oracle(part(y, token * width, width), row, mix.post, mix.comb));
          append(collapsed,
                 kernels::hc_collapse_oracle(row,
                                             static_cast<std::size_t>(n),
                                             kernels::hc_mix_oracle(row, values_of(head.fn), 1e-6),
                                             values_of(head.base),
                                             values_of(head.scale)[0],
                                             1e-6));
        }
        // Logits reach a magnitude of about n * width / 3; their absolute error enters the
        // exponential.
        const double exact = error_bound(dtype, 4 * n * width);
        const double stored = rounded ? 0x1p-9 + exact : exact;
        const HcMix mix = hc_pre(streams, w, kConfig, numerics);
        EXPECT_LE(relative_error(mix.y, mixed), stored);
        EXPECT_LE(relative_error(mix.post, post), exact);
        EXPECT_LE(relative_error(mix.comb, comb), exact);
        EXPECT_LE(relative_error(hc_post(sub, streams, mix.post, mix.comb, numerics), out), stored);
        EXPECT_LE(relative_error(hc_head(streams, head, kConfig, numerics), collapsed), stored);
      }
    }
  }
}

TEST(HyperConnectionTest, NoTokens) {
  const HcWeights w = seeded_weights(4, 8, 24, 3, at::kDouble);
  const at::Tensor streams = at::zeros({1, 0, 4, 8}, at::kDouble);
  const HcMix mix = hc_pre(streams, w, kConfig, Numerics::plain());
  EXPECT_EQ(mix.y.sizes(), (at::IntArrayRef{1, 0, 8}));
  EXPECT_EQ(mix.comb.sizes(), (at::IntArrayRef{1, 0, 4, 4}));
  EXPECT_EQ(hc_post(mix.y, streams, mix.post, mix.comb, Numerics::plain()).numel(), 0);
}

TEST(HyperConnectionTest, GradientMatchesDifferences) {
  const HcWeights w = seeded_weights(4, 3, 24, 3, at::kDouble);
  const HcWeights head = seeded_weights(4, 3, 4, 1, at::kDouble);
  const auto report = gradcheck(
      [](const auto& in) {
        const Numerics plain = Numerics::plain();
        const HcMix mix = hc_pre(in[0], {in[1], in[2], in[3]}, kConfig, plain);
        return std::vector<at::Tensor>{mix.y,
                                       mix.post,
                                       mix.comb,
                                       hc_post(in[4], in[0], mix.post, mix.comb, plain),
                                       hc_head(in[0], {in[5], in[6], in[7]}, kConfig, plain)};
      },
      {seeded({2, 4, 3}, 1),
       w.fn,
       w.base,
       w.scale,
       seeded({2, 3}, 2),
       head.fn,
       head.base,
       head.scale});
  EXPECT_LT(report.worst, 1e-7) << report.where;
}

TEST(SinkhornTest, KernelAndTensorStepsAgreeForwardAndBackward) {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    for (const int64_t n : {1, 3, 4}) {
      const at::Tensor logits = seeded({700, n, n}, 9, dtype) * 4.0;
      const at::Tensor gradient = seeded({700, n, n}, 10, dtype);
      const SinkhornShape shape{700, n, 20, 1e-6};
      at::Tensor comb = at::empty_like(logits);
      at::Tensor dlogits = at::empty_like(logits);
      AT_DISPATCH_FLOATING_TYPES(dtype, "test", [&] {
        kernels::sinkhorn_cpu(
            logits.const_data_ptr<scalar_t>(), comb.mutable_data_ptr<scalar_t>(), shape);
        kernels::sinkhorn_backward_cpu(logits.const_data_ptr<scalar_t>(),
                                       gradient.const_data_ptr<scalar_t>(),
                                       dlogits.mutable_data_ptr<scalar_t>(),
                                       shape);
      });
      EXPECT_LE(relative_error(sinkhorn_steps(logits, shape), values_of(comb)),
                error_bound(dtype, 39));
      EXPECT_LE(
          relative_error(sinkhorn_steps_backward(logits, gradient, shape), values_of(dlogits)),
          error_bound(dtype, 156));
    }
  }
}

TEST(SinkhornTest, OneIterationIsSoftmaxAndOneColumnStep) {
  const at::Tensor logits =
      at::tensor({-4, 9, -2, -1, 0, 1, 2, 3, 4, 5, 2, 7, 8, 9, 10, 11}, at::kDouble).view({4, 4}) /
      4.0;
  const at::Tensor first = sinkhorn(logits, 1e-6, 1);
  EXPECT_LE(relative_error(first,
                           {0.0581286,
                            0.5534852,
                            0.0749274,
                            0.0581280,
                            0.2935890,
                            0.1391824,
                            0.3784379,
                            0.2935895,
                            0.3546915,
                            0.1681494,
                            0.1681952,
                            0.3546922,
                            0.2935890,
                            0.1391824,
                            0.3784379,
                            0.2935895}),
            2e-7);
}

}  // namespace
}  // namespace baleen::ops
