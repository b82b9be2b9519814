// Runs the tests on the first CUDA device. Without one every suite is skipped and says so.

#include <cstdio>
#include <exception>

#include <gtest/gtest.h>

#include "model/device_choice.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  try {
    baleen::model::device_by_name("cuda");
  } catch (const std::exception& error) {
    std::printf("every suite is SKIPPED: %s\n", error.what());
    return 0;
  }
  return RUN_ALL_TESTS();
}
