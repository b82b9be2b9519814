#include "runner/decode/decode_shapes.h"

#include <vector>

#include <gtest/gtest.h>

namespace baleen::runner {
namespace {

TEST(DecodeShapesTest, CoverEveryStepWithinTwiceItsRequests) {
  for (const int32_t most : {1, 2, 3, 5, 8, 48, 64}) {
    for (const int64_t longest : {300L, 4096L, 4097L, 65536L, 1048576L}) {
      const std::vector<DecodeShape> shapes = decode_shapes(most, longest);
      for (int32_t requests = 1; requests <= most; ++requests) {
        for (const int64_t context : {int64_t{1}, int64_t{255}, int64_t{4096}, longest}) {
          if (context > longest) {
            continue;
          }
          const DecodeShape& shape = shapes[smallest_shape(shapes, requests, context)];
          EXPECT_GE(shape.requests, requests);
          EXPECT_LT(shape.requests, 2 * requests);
          EXPECT_GE(shape.context, context);
          EXPECT_LE(shape.context, longest);
          EXPECT_TRUE(shape.context <= 4096 || shape.context < 4 * context ||
                      shape.context == longest);
        }
      }
      EXPECT_EQ(shapes.back(), (DecodeShape{most, longest}));
    }
  }
}

TEST(DecodeShapesTest, AreFew) {
  EXPECT_EQ(decode_shapes(1, 100), (std::vector<DecodeShape>{{1, 100}}));
  EXPECT_EQ(
      decode_shapes(3, 5000),
      (std::vector<DecodeShape>{{1, 4096}, {2, 4096}, {3, 4096}, {1, 5000}, {2, 5000}, {3, 5000}}));
  EXPECT_EQ(decode_shapes(64, 1048576).size(), 35U);
}

TEST(DecodeShapesDeathTest, NoShapeHoldsALongerStep) {
  const std::vector<DecodeShape> shapes = decode_shapes(4, 1000);
  EXPECT_DEATH(smallest_shape(shapes, 5, 10), "no shape for 5 requests of 10 tokens");
  EXPECT_DEATH(smallest_shape(shapes, 1, 1001), "no shape");
}

}  // namespace
}  // namespace baleen::runner
