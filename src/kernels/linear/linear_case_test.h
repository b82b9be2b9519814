#pragma once
// One random linear for GPU tests: weights and activations on host and device, the task that names
// them, and the oracle's answer for chosen outputs with the bound on its error. Test support.
//
//   LinearCase one({.outputs = 128, .inputs = 512}, /*max_tokens=*/9, /*seed=*/1);
//   launch_linear(params_of({one.task()}, 9), stream());
//   EXPECT_TRUE(one.agrees(one.y_float(), 9));

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "device/buffer.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/linear_oracle.h"
#include "kernels/linear/linear_pack.h"
#include "kernels/testing/random_values.h"
#include "numerics/float8.h"

namespace baleen::kernels::testing {

struct LinearCaseShape {
  int32_t outputs = 128;
  int32_t inputs = 512;
  int32_t groups = 1;
  WeightFormat format = WeightFormat::kE4m3;
};

class LinearCase {
 public:
  LinearCase(const LinearCaseShape& shape, int32_t max_tokens, uint64_t seed)
      : shape_(shape), max_tokens_(max_tokens) {
    RandomValues random(seed);
    const bool bf16_x = shape.format != WeightFormat::kE4m3;
    const bool bf16_weight = shape.format == WeightFormat::kBf16;
    weight_ =
        bf16_weight ? bf16_bytes(random, rows() * inputs()) : code_bytes(random, rows() * inputs());
    x_ = bf16_x ? bf16_bytes(random, max_tokens * width())
                : code_bytes(random, max_tokens * width());
    weight_scales_ = random.bytes((rows() + 127) / 128 * blocks(), 118, 124);
    x_scales_ = random.bytes(max_tokens * blocks(), 118, 124);
    upload();
  }

  /// Copies host values that a test changed to the device, and paints the outputs with NaN.
  void upload() {
    const WeightShape packed_shape{rows(), inputs(), shape_.format};
    std::vector<uint8_t> packed(static_cast<std::size_t>(packed_weight_bytes(packed_shape)));
    pack_weight(packed_shape, weight_, packed);
    device_weight_ = device::Buffer<uint8_t>::from_host(packed);
    device_weight_scales_ = device::Buffer<uint8_t>::from_host(weight_scales_);
    upload_x();
  }
  void upload_x() {
    device_x_ = device::Buffer<uint8_t>::from_host(x_);
    device_x_scales_ = device::Buffer<uint8_t>::from_host(x_scales_);
    device_y_ = device::Buffer<float>((max_tokens_ + 1) * rows());
    device_y_scales_ = device::Buffer<uint8_t>((max_tokens_ + 1) * (rows() / 128 + 1));
    paint();
  }
  void paint() {
    device_y_.fill_bytes(0xFF);
    device_y_scales_.fill_bytes(0xFF);
  }

  LinearTask task(LinearOutput output = LinearOutput::kFloat32, int32_t leaves = 0) {
    LinearTask task;
    task.weight = device_weight_.data();
    task.weight_scales =
        shape_.format == WeightFormat::kBf16 ? nullptr : device_weight_scales_.data();
    task.x = device_x_.data();
    task.x_scales = shape_.format == WeightFormat::kE4m3 ? device_x_scales_.data() : nullptr;
    task.y = device_y_.data();
    task.y_scales = device_y_scales_.data();
    task.x_stride = width();
    task.y_stride = rows();
    task.x_scale_stride = blocks();
    task.num_outputs = shape_.outputs;
    task.num_inputs = shape_.inputs;
    task.groups = shape_.groups;
    task.format = shape_.format;
    task.output = output;
    task.leaves = leaves;
    return task;
  }

  std::vector<float> y_float() const { return device_y_.to_host(); }
  std::vector<uint16_t> y_bf16() const {
    std::vector<float> raw = device_y_.to_host();
    std::vector<uint16_t> values(raw.size() * 2);
    std::memcpy(values.data(), raw.data(), raw.size() * 4);
    return values;
  }
  std::vector<uint8_t> y_bytes() const {
    std::vector<float> raw = device_y_.to_host();
    std::vector<uint8_t> values(raw.size() * 4);
    std::memcpy(values.data(), raw.data(), raw.size() * 4);
    return values;
  }
  std::vector<uint8_t> y_scales() const { return device_y_scales_.to_host(); }

  int64_t rows() const { return int64_t{shape_.outputs} * shape_.groups; }
  int64_t inputs() const { return shape_.inputs; }
  int64_t width() const { return int64_t{shape_.inputs} * shape_.groups; }
  int64_t blocks() const { return shape_.inputs / 128; }
  std::vector<uint8_t>& x() { return x_; }
  std::vector<uint8_t>& weight() { return weight_; }
  std::vector<uint8_t>& x_scales() { return x_scales_; }
  std::vector<uint8_t>& weight_scales() { return weight_scales_; }

  /// The oracle for one token and one row, in double: the sum and the sum of magnitudes.
  struct Reference {
    double sum = 0;
    double magnitude = 0;
  };
  Reference reference(int64_t token, int64_t row) const {
    std::vector<double> x = x_row(token, row / shape_.outputs);
    std::vector<double> w = weight_row(row);
    Reference result;
    result.sum = linear_oracle(x, w, {})[0];
    for (double& value : x) {
      value = std::abs(value);
    }
    for (double& value : w) {
      value = std::abs(value);
    }
    result.magnitude = linear_oracle(x, w, {})[0];
    return result;
  }

  /// `y` [tokens, rows] against the oracle. The tensor core keeps 13 fraction bits of a running FP8
  /// sum of 128: relative to the sum of magnitudes an error of 2^-13 * 4 is the worst that four
  /// truncated steps leave, far inside 2e-3; over many outputs errors average to below 5e-4 of the
  /// norm. bf16 products in FP32 accumulators stay far below both.
  ::testing::AssertionResult agrees(const std::vector<float>& y,
                                    int32_t tokens,
                                    int64_t most_checks = 20'000) const {
    const int64_t total = tokens * rows();
    // A step without a common factor with the rows meets every row position and token.
    int64_t step = std::max<int64_t>(1, total / most_checks);
    step += step > 1 && step % 2 == 0 ? 1 : 0;
    double error_square = 0;
    double square = 0;
    double worst = 0;
    std::string first_bad;
    int64_t bad = 0;
    for (int64_t at = 0; at < total; at += step) {
      const Reference expected = reference(at / rows(), at % rows());
      const double actual = y[static_cast<std::size_t>(at)];
      const double error = std::abs(actual - expected.sum);
      worst = std::max(worst, error / (expected.magnitude + 1e-300));
      error_square += error * error;
      square += expected.sum * expected.sum;
      if (!(error <= 2e-3 * expected.magnitude + 1e-30)) {
        if (bad++ < 6) {
          first_bad += " [token " + std::to_string(at / rows()) + " row " +
                       std::to_string(at % rows()) + "] " + std::to_string(actual) + " for " +
                       std::to_string(expected.sum);
        }
      }
    }
    const double relative = std::sqrt(error_square / (square + 1e-300));
    const std::string text = "worst error over sum of magnitudes " + std::to_string(worst) +
                             ", relative norm " + std::to_string(relative) + ", bad " +
                             std::to_string(bad) + ":" + first_bad;
    if (bad == 0 && relative <= 5e-4) {
      return ::testing::AssertionSuccess() << text;
    }
    return ::testing::AssertionFailure() << text;
  }

 private:
  /// A prime period, so that rows and tiles do not repeat.
  static constexpr int64_t kPeriod = 100'003;

  static std::vector<uint8_t> code_bytes(RandomValues& random, int64_t count) {
    const std::vector<uint8_t> base = random.e4m3_codes(std::min(count, kPeriod), 16);
    std::vector<uint8_t> values(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = base[i % base.size()];
    }
    return values;
  }
  static std::vector<uint8_t> bf16_bytes(RandomValues& random, int64_t count) {
    const std::vector<uint16_t> base = random.bf16_normals(std::min(count, kPeriod));
    std::vector<uint8_t> values(static_cast<std::size_t>(2 * count));
    for (int64_t i = 0; i < count; ++i) {
      std::memcpy(&values[static_cast<std::size_t>(2 * i)],
                  &base[static_cast<std::size_t>(i) % base.size()],
                  2);
    }
    return values;
  }

  static std::vector<double> bf16_values(const std::vector<uint8_t>& bytes,
                                         int64_t begin,
                                         int64_t count) {
    std::vector<double> values(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < values.size(); ++i) {
      uint16_t code;
      std::memcpy(&code, &bytes[2 * (static_cast<std::size_t>(begin) + i)], 2);
      values[i] = static_cast<double>(numerics::bf16_to_float(code));
    }
    return values;
  }
  static std::span<const uint8_t> part(const std::vector<uint8_t>& bytes,
                                       int64_t begin,
                                       int64_t count) {
    return std::span<const uint8_t>(bytes).subspan(static_cast<std::size_t>(begin),
                                                   static_cast<std::size_t>(count));
  }
  std::vector<double> x_row(int64_t token, int64_t group) const {
    const int64_t begin = token * width() + group * inputs();
    return shape_.format == WeightFormat::kE4m3
               ? dequantised_row(part(x_, begin, inputs()),
                                 part(x_scales_, token * blocks(), blocks()))
               : bf16_values(x_, begin, inputs());
  }
  std::vector<double> weight_row(int64_t row) const {
    return shape_.format == WeightFormat::kBf16
               ? bf16_values(weight_, row * inputs(), inputs())
               : dequantised_row(part(weight_, row * inputs(), inputs()),
                                 part(weight_scales_, row / 128 * blocks(), blocks()));
  }

  LinearCaseShape shape_;
  int32_t max_tokens_;
  std::vector<uint8_t> weight_;
  std::vector<uint8_t> weight_scales_;
  std::vector<uint8_t> x_;
  std::vector<uint8_t> x_scales_;
  device::Buffer<uint8_t> device_weight_;
  device::Buffer<uint8_t> device_weight_scales_;
  device::Buffer<uint8_t> device_x_;
  device::Buffer<uint8_t> device_x_scales_;
  device::Buffer<float> device_y_;
  device::Buffer<uint8_t> device_y_scales_;
};

inline LinearParams params_of(const std::vector<LinearTask>& tasks,
                              int32_t tokens,
                              LinearMode mode = LinearMode::kFast) {
  LinearParams params;
  std::copy(tasks.begin(), tasks.end(), params.tasks.begin());
  params.num_tasks = static_cast<int32_t>(tasks.size());
  params.num_tokens = tokens;
  params.mode = mode;
  return params;
}

/// UE8M0 codes on the device as the floats they stand for.
inline device::Buffer<float> as_floats(const std::vector<uint8_t>& codes) {
  std::vector<float> values;
  values.reserve(codes.size());
  for (const uint8_t code : codes) {
    values.push_back(numerics::ue8m0_to_float(code));
  }
  return device::Buffer<float>::from_host(values);
}

}  // namespace baleen::kernels::testing
