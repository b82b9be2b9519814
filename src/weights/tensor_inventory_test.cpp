#include "weights/tensor_inventory.h"

#include <map>

#include <gtest/gtest.h>

#include "weights/model_presets.h"

namespace baleen::weights {
namespace {

struct Totals {
  std::size_t tensors = 0;
  int64_t bytes = 0;
};

Totals below(const std::vector<TensorSpec>& tensors, const std::string& prefix) {
  Totals totals;
  for (const TensorSpec& tensor : tensors) {
    if (tensor.name.starts_with(prefix)) {
      ++totals.tensors;
      totals.bytes += tensor.num_bytes();
    }
  }
  return totals;
}

void expect_totals(const Totals& found, std::size_t tensors, int64_t bytes) {
  EXPECT_EQ(found.tensors, tensors);
  EXPECT_EQ(found.bytes, bytes);
}

struct ByType {
  DType dtype;
  std::size_t tensors;
  int64_t bytes;
};

void expect_by_type(const std::vector<TensorSpec>& tensors, const std::vector<ByType>& expected) {
  std::map<DType, Totals> found;
  for (const TensorSpec& tensor : tensors) {
    ++found[tensor.dtype].tensors;
    found[tensor.dtype].bytes += tensor.num_bytes();
  }
  EXPECT_EQ(found.size(), expected.size());
  for (const ByType& type : expected) {
    SCOPED_TRACE(dtype_name(type.dtype));
    expect_totals(found[type.dtype], type.tensors, type.bytes);
  }
}

int64_t logical_parameters(const ModelConfig& config, bool mtp) {
  int64_t count = 0;
  for (const Parameter& parameter : parameter_inventory(config)) {
    if (parameter.kind != ParameterKind::kTable && parameter.name.starts_with("mtp.") == mtp) {
      count += parameter.num_elements();
    }
  }
  return count;
}

TEST(TensorInventoryTest, FlashTotals) {
  const ModelConfig config = flash_config();
  const std::vector<TensorSpec> tensors = stored_tensors(config, {});
  expect_totals(below(tensors, ""), 69187, 159609485896);
  expect_by_type(tensors,
                 {{DType::kBf16, 433, 2830518528},
                  {DType::kF32, 417, 144672072},
                  {DType::kF8E4m3, 375, 6023020544},
                  {DType::kF8E8m0, 34167, 8858737664},
                  {DType::kI64, 3, 18616320},
                  {DType::kI8, 33792, 141733920768}});
  expect_totals(below(tensors, "mtp.0."), 1575, 3593787756);
  expect_totals(below(tensors, "layers.0."), 1565, 3566148952);
  expect_totals(below(tensors, "layers.1."), 1565, 3566148952);
  expect_totals(below(tensors, "layers.2."), 1576, 3596055640);
  expect_totals(below(tensors, "layers.3."), 1569, 3568596312);
  expect_totals(below(tensors, "layers.42."), 1576, 3589851224);
  EXPECT_EQ(logical_parameters(config, false), 284332240471);
  EXPECT_EQ(logical_parameters(config, true), 6610048891);
}

TEST(TensorInventoryTest, ProTotals) {
  const ModelConfig config = pro_config();
  const std::vector<TensorSpec> tensors = stored_tensors(config, {});
  expect_totals(below(tensors, ""), 145116, 864704792696);
  expect_by_type(tensors,
                 {{DType::kBf16, 619, 5633798656},
                  {DType::kF32, 590, 351105656},
                  {DType::kF8E4m3, 528, 23169335296},
                  {DType::kF8E8m0, 71952, 49150268416},
                  {DType::kI64, 3, 18616320},
                  {DType::kI8, 71424, 786381668352}});
  expect_totals(below(tensors, "mtp.0."), 2343, 13956587692);
  expect_totals(below(tensors, "layers.0."), 2337, 13874466328);
  expect_totals(below(tensors, "layers.2."), 2344, 13909746200);
  expect_totals(below(tensors, "layers.3."), 2337, 13868262424);
  expect_totals(below(tensors, "layers.60."), 2344, 13903542296);
  EXPECT_EQ(logical_parameters(config, false), 1572997201763);
  EXPECT_EQ(logical_parameters(config, true), 25840145979);
}

TEST(TensorInventoryTest, FormatsOfAnExpertAndAPartialTile) {
  const Parameter expert{
      "layers.0.ffn.experts.0.w1.weight", ParameterKind::kExpertMatrix, {130, 64}, {}};
  const auto fp8 = stored_forms(expert, WeightFormat::kFp8);
  ASSERT_EQ(fp8.size(), 2U);
  EXPECT_EQ(fp8[1].name, "layers.0.ffn.experts.0.w1.scale");
  EXPECT_EQ(fp8[1].shape, (std::vector<int64_t>{2, 1}));
  const auto fp4 = stored_forms(expert, WeightFormat::kFp4);
  EXPECT_EQ(fp4[0].shape, (std::vector<int64_t>{130, 32}));
  EXPECT_EQ(fp4[1].shape, (std::vector<int64_t>{130, 2}));
  EXPECT_EQ(stored_forms(expert, WeightFormat::kBf16).size(), 1U);
}

}  // namespace
}  // namespace baleen::weights
