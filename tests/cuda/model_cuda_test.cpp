// The model on CUDA through the tensor operators equals the model on the CPU: in double up to the
// order of summation, in float up to float rounding; and rows in device memory have the bytes of
// rows on the host.

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "model/device_storage.h"
#include "model/forward.h"
#include "model/hash_fill.h"
#include "model/row_bytes.h"
#include "model/small_models_for_tests.h"
#include "ops/fake_quantize.h"

namespace baleen::model {
namespace {

const at::Device kCuda(at::kCUDA, 0);

// Sums of up to a few thousand terms of size 1, in another order: 2^-53 a term, grown over the
// layers. The same bound holds between chunkings on the CPU.
constexpr double kDoubleTolerance = 1e-10;
// As for the golden toy in float on the CPU.
constexpr double kFloatTolerance = 2e-5;

at::Tensor toy_ids() {
  return (at::arange(20, at::kLong) * 7 + 3).remainder(32).unsqueeze(0);
}

TrainingOutput run_toy(at::ScalarType dtype, at::Device device) {
  ModelParameters params = make_hash_filled(golden_toy_config(), {}, at::TensorOptions(dtype));
  convert_parameters(params, dtype, device);
  const ForwardOptions options{.numerics = ops::Numerics::plain(), .with_mtp = true};
  const at::NoGradGuard no_grad;
  return forward_training(params, toy_ids().to(device), options);
}

double worst_difference(const at::Tensor& a, const at::Tensor& b) {
  return max_difference(a.to(at::kCPU, at::kDouble), b.to(at::kCPU, at::kDouble));
}

TEST(GoldenToyGpu, EqualsTheDoubleReferenceInDoubleAndInFloat) {
  const TrainingOutput reference = run_toy(at::kDouble, at::kCPU);
  const TrainingOutput in_double = run_toy(at::kDouble, kCuda);
  EXPECT_LE(worst_difference(in_double.logits, reference.logits), kDoubleTolerance);
  EXPECT_LE(worst_difference(in_double.mtp_logits, reference.mtp_logits), kDoubleTolerance);
  const TrainingOutput in_float = run_toy(at::kFloat, kCuda);
  EXPECT_LE(worst_difference(in_float.logits, reference.logits), kFloatTolerance);
  EXPECT_LE(worst_difference(in_float.mtp_logits, reference.mtp_logits), kFloatTolerance);
  std::printf("golden toy: double %.2e float %.2e\n",
              worst_difference(in_double.logits, reference.logits),
              worst_difference(in_float.logits, reference.logits));
}

TEST(RowBytesGpu, DeviceMemoryHoldsTheBytesOfHostMemory) {
  const auto storage = device_storage(kCuda);
  for (const cache::EntryCodec& codec :
       {cache::EntryCodec::kv(cache::KvFormat::kPacked, 512, 64),
        cache::EntryCodec::kv(cache::KvFormat::kPacked, 70, 6),
        cache::EntryCodec::index(cache::IndexFormat::kFp8, 128, cache::IndexRounding::kE2m1),
        cache::EntryCodec::index(cache::IndexFormat::kFp8, 32, cache::IndexRounding::kE4m3),
        cache::EntryCodec::ring(40, 4)}) {
    const int64_t rows = 33;
    const int64_t stride = codec.value_bytes() + codec.scale_bytes();
    const at::Tensor numbers = ops::quantize_fp4_block(
        at::arange(rows * codec.width(), at::kFloat).mul(0.37).sin().view({rows, codec.width()}),
        32);
    std::vector<uint8_t> host(static_cast<std::size_t>(rows * stride));
    const std::shared_ptr<uint8_t> device = storage->allocate(rows * stride);
    std::vector<cache::RowPlace> host_places;
    std::vector<cache::RowPlace> device_places;
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t at = (i * 7 + 3) % rows * stride;
      host_places.push_back({host.data() + at, host.data() + at + codec.value_bytes()});
      device_places.push_back({device.get() + at, device.get() + at + codec.value_bytes()});
    }
    write_rows(codec, numbers, host_places);
    write_rows(codec, numbers.to(kCuda), device_places);
    const at::Tensor bytes = bytes_at(device.get(), rows * stride, kCuda).to(at::kCPU);
    EXPECT_EQ(std::vector<uint8_t>(bytes.const_data_ptr<uint8_t>(),
                                   bytes.const_data_ptr<uint8_t>() + bytes.numel()),
              host)
        << "width " << codec.width();
    EXPECT_TRUE(at::equal(
        read_rows(codec, device_places, at::TensorOptions(at::kFloat).device(kCuda)).to(at::kCPU),
        read_rows(codec, host_places, at::kFloat)));
  }
}

struct Logits {
  std::vector<double> values;
  double rms_from(const Logits& other) const {
    double sum = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      sum += (values[i] - other.values[i]) * (values[i] - other.values[i]);
    }
    return std::sqrt(sum / static_cast<double>(values.size()));
  }
};

/// Logits of abacus for a prompt of 150 tokens in two chunks, then 60 tokens one by one.
Logits run_abacus(const std::string& device, ComputeType compute, const std::string& numerics) {
  ForwardConfig config;
  config.device = device;
  config.compute = compute;
  config.numerics = numerics;
  Model model = Model::load("models/abacus", config);
  Sequence sequence = model.new_sequence();
  const at::Tensor tensor = some_ids(210, model.config().vocab_size, 3);
  const std::vector<int32_t> ids(tensor.const_data_ptr<int64_t>(),
                                 tensor.const_data_ptr<int64_t>() + tensor.numel());
  Logits out;
  ForwardOutput output;
  for (std::size_t begin = 0; begin < ids.size();) {
    const std::size_t count = begin == 0 ? 101 : begin < 150 ? 49 : 1;
    const RowInput row{.sequence = &sequence,
                       .first_position = static_cast<int64_t>(begin),
                       .ids = std::span(ids).subspan(begin, count),
                       .logits = LogitsWanted::kAll};
    model.forward({&row, 1}, output);
    out.values.insert(out.values.end(), output.logits.begin(), output.logits.end());
    out.values.insert(out.values.end(), output.logits_f64.begin(), output.logits_f64.end());
    begin += count;
  }
  return out;
}

TEST(AbacusGpu, PlainNumericsEqualTheDoubleReference) {
  const Logits reference = run_abacus("cpu", ComputeType::kFloat64, "plain");
  const Logits in_double = run_abacus("cuda", ComputeType::kFloat64, "plain");
  const Logits in_float = run_abacus("cuda", ComputeType::kFloat32, "plain");
  const Logits cpu_float = run_abacus("cpu", ComputeType::kFloat32, "plain");
  std::printf(
      "abacus plain, rms from CPU double: CUDA double %.2e, CUDA float %.2e, CPU float %.2e\n",
      in_double.rms_from(reference),
      in_float.rms_from(reference),
      cpu_float.rms_from(reference));
  EXPECT_LE(in_double.rms_from(reference), kDoubleTolerance);
  // Both floats round as often; only the order of their sums differs.
  EXPECT_LE(in_float.rms_from(reference), 3 * cpu_float.rms_from(reference));
}

TEST(AbacusGpu, ReferenceNumericsAreAsFarFromDoubleAsOnTheCpu) {
  // A last-bit difference now and then turns into a whole step of a rounding, on the GPU as often
  // as in float on the CPU.
  const Logits reference = run_abacus("cpu", ComputeType::kFloat64, "reference");
  const Logits cpu_float = run_abacus("cpu", ComputeType::kFloat32, "reference");
  const Logits in_double = run_abacus("cuda", ComputeType::kFloat64, "reference");
  const Logits in_float = run_abacus("cuda", ComputeType::kFloat32, "reference");
  std::printf(
      "abacus reference, rms from CPU double: CUDA double %.2e, CUDA float %.2e, CPU float %.2e\n",
      in_double.rms_from(reference),
      in_float.rms_from(reference),
      cpu_float.rms_from(reference));
  EXPECT_LE(in_double.rms_from(reference), 2 * cpu_float.rms_from(reference));
  EXPECT_LE(in_float.rms_from(reference), 2 * cpu_float.rms_from(reference));
}

}  // namespace
}  // namespace baleen::model
