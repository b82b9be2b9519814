#include "model/contract.h"

#include <gtest/gtest.h>

#include "model/small_models_for_tests.h"

namespace baleen::model {
namespace {

TEST(ContractTest, EveryOptionThatChangesATokenChangesIt) {
  const ModelParameters params = small_model(small_config({0, 4, 128}), at::kFloat);
  const ops::Numerics numerics = ops::Numerics::by_name("reference+invariant");
  const std::string expected = contract_digest(params, numerics);
  EXPECT_EQ(expected.size(), 32U);
  EXPECT_EQ(contract_digest(params, numerics), expected);
  EXPECT_NE(execution_contract(params, numerics).find("sums lanes_8_tree\n"), std::string::npos);

  const auto with_numerics = [&](auto change) {
    ops::Numerics other = numerics;
    change(other);
    return contract_digest(params, other);
  };
  EXPECT_NE(with_numerics([](ops::Numerics& n) { n.summation = ops::Summation::kFast; }), expected);
  EXPECT_NE(with_numerics([](ops::Numerics& n) { n.kv_s8 = false; }), expected);
  EXPECT_NE(with_numerics([](ops::Numerics& n) { n.shared_expert_clamp = false; }), expected);
  EXPECT_NE(with_numerics([](ops::Numerics& n) { n.index_score = ops::IndexScore::kCompute; }),
            expected);

  ModelParameters other = params;
  other.config.swiglu_limit = 3.0;
  EXPECT_NE(contract_digest(other, numerics), expected);
  other = params;
  set_formats(other, {ops::LinearFormat::kFp8, ops::LinearFormat::kFp4});
  EXPECT_NE(contract_digest(other, numerics), expected);
  EXPECT_NE(contract_digest(small_model(params.config, at::kDouble), numerics), expected);

  // Values are not part of it, nor is the MTP block.
  other = small_model(params.config, at::kFloat);
  other.embed = other.embed + 1;
  other.mtp.clear();
  other.config.num_nextn_predict_layers = 0;
  other.config.layers.pop_back();
  EXPECT_EQ(contract_digest(other, numerics), expected);
}

}  // namespace
}  // namespace baleen::model
