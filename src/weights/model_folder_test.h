#pragma once
// For tests: a folder with a small synthetic model whose stored tensors a test can change before it
// is opened.

#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "weights/checkpoint.h"
#include "weights/mapped_file.h"
#include "weights/model_presets.h"
#include "weights/safetensors.h"
#include "weights/safetensors_writer.h"
#include "weights/synth.h"

namespace baleen::weights {

struct EditableTensor {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::vector<std::byte> bytes;
};
using EditableTensors = std::map<std::string, EditableTensor>;

class ModelFolderTest : public testing::Test {
 protected:
  void SetUp() override {
    const testing::TestInfo* info = testing::UnitTest::GetInstance()->current_test_info();
    top_ = std::filesystem::path(testing::TempDir()) /
           (std::string(info->test_suite_name()) + "." + info->name());
    std::filesystem::remove_all(top_);
    std::filesystem::create_directories(top_);
    folder_ = top_ / "model";
  }
  void TearDown() override { std::filesystem::remove_all(top_); }

  /// Rewrites model.safetensors after `change`.
  void edit(const std::function<void(EditableTensors&)>& change) {
    EditableTensors tensors;
    {
      const SafetensorsFile file = SafetensorsFile::open(folder_ / "model.safetensors");
      for (const StoredTensor& tensor : file.tensors()) {
        const auto bytes = file.bytes(tensor);
        tensors[tensor.name] = {tensor.dtype, tensor.shape, {bytes.begin(), bytes.end()}};
      }
    }
    change(tensors);
    std::vector<TensorSpec> specs;
    for (const auto& [name, tensor] : tensors) {
      specs.push_back({name, tensor.dtype, tensor.shape});
    }
    SafetensorsWriter writer(folder_ / "model.safetensors", specs);
    for (const auto& [name, tensor] : tensors) {
      writer.append(name, tensor.bytes);
    }
    writer.finish();
  }

  std::string open_error(const OpenOptions& options = {}) {
    try {
      Checkpoint::open(folder_, options);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }

  static std::vector<float> values_of(const Checkpoint& checkpoint, const Parameter& parameter) {
    std::vector<float> values(static_cast<std::size_t>(parameter.num_elements()));
    checkpoint.read_float(parameter.name, values);
    return values;
  }

  std::filesystem::path top_;
  std::filesystem::path folder_;
};

}  // namespace baleen::weights
