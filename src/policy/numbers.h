#pragma once
// A view of float or double values that reads as double: log-probabilities come in either, all
// arithmetic of this room is double. Does not own; the array must outlive the view.
//
//   Numbers logprobs = row_logprobs;      // std::vector<float>, std::vector<double> or a span
//   if (!logprobs.empty()) double l = logprobs[t];

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace baleen::policy {

class Numbers {
 public:
  Numbers() = default;
  Numbers(std::span<const float> values)  // NOLINT: a span is such a view
      : floats_(values.data()), count_(values.size()) {}
  Numbers(std::span<const double> values)  // NOLINT
      : doubles_(values.data()), count_(values.size()) {}
  Numbers(const std::vector<float>& values) : Numbers(std::span<const float>(values)) {}  // NOLINT
  Numbers(const std::vector<double>& values)
      : Numbers(std::span<const double>(values)) {}  // NOLINT
  Numbers(const std::vector<float>&& values) = delete;
  Numbers(const std::vector<double>&& values) = delete;

  size_t size() const { return count_; }
  bool empty() const { return count_ == 0; }
  double operator[](size_t index) const {
    return floats_ != nullptr ? static_cast<double>(floats_[index]) : doubles_[index];
  }

 private:
  const float* floats_ = nullptr;
  const double* doubles_ = nullptr;
  size_t count_ = 0;
};

/// Values by name, in the order they are written (the type of train::Metrics).
using Metrics = std::vector<std::pair<std::string, double>>;

/// The value of `name`, which must be there (checked); for tests and alarms.
double metric(const Metrics& metrics, const std::string& name);

}  // namespace baleen::policy
