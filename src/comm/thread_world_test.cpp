// Failure: whatever goes wrong on one rank ends all of them, with the error that came first.

#include "comm/thread_world.h"

#include <atomic>
#include <stdexcept>
#include <string>

#include <gtest/gtest.h>

#include "base/error.h"
#include "comm/mesh.h"

namespace baleen::comm {
namespace {

const MeshShape kFour{.tp = 4};

/// Runs four ranks and returns the text of what came out.
template <class Exception>
std::string error_of(const std::function<void(Mesh&)>& body, int64_t timeout_ms = 60'000) {
  try {
    run_ranks(4, {.wait_timeout_ms = timeout_ms}, [&](World& world) {
      Mesh mesh(world, kFour);
      body(mesh);
    });
  } catch (const Exception& error) {
    return error.what();
  }
  return "no error";
}

void meet_twice(Mesh& mesh) {
  mesh.group(Axis::kTp).barrier();
  mesh.group(Axis::kTp).barrier();
}

TEST(ThreadWorldTest, AnErrorOfOneRankEndsAllAndKeepsItsType) {
  std::atomic<int> ended_by_it = 0;
  const std::string text = error_of<std::domain_error>([&](Mesh& mesh) {
    if (mesh.rank() == 2) {
      mesh.group(Axis::kTp).barrier();
      throw std::domain_error("loss is not finite");
    }
    try {
      meet_twice(mesh);
    } catch (const CommError& error) {
      EXPECT_NE(std::string(error.what()).find("rank 2: loss is not finite"), std::string::npos);
      ++ended_by_it;
      throw;
    }
  });
  EXPECT_EQ(text, "loss is not finite");
  EXPECT_EQ(ended_by_it, 3);
}

TEST(ThreadWorldTest, AnErrorReachesRanksThatWaitInOtherGroupsAndForMessages) {
  const MeshShape shape{.pp = 2, .tp = 2};
  try {
    run_ranks(4, {}, [&](World& world) {
      Mesh mesh(world, shape);
      if (mesh.rank() == 0) {
        throw ConfigError("bad key");
      }
      if (mesh.rank() == 1) {
        mesh.group(Axis::kTp).barrier();  // with rank 0
      }
      double number = 0.0;
      mesh.group(Axis::kPp).receive(&number, sizeof(number), 0);  // from ranks 0 and 1
    });
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "bad key");
  }
}

TEST(ThreadWorldTest, ARankThatEndedIsNotWaitedFor) {
  const std::string text = error_of<CommError>([](Mesh& mesh) {
    if (mesh.rank() != 3) {
      mesh.group(Axis::kTp).barrier();
    }
  });
  EXPECT_NE(text.find("in barrier of ranks [0, 1, 2, 3], but rank 3 has ended"), std::string::npos)
      << text;
}

TEST(ThreadWorldTest, DifferentCallsAreNamed) {
  const std::string text = error_of<CommError>([](Mesh& mesh) {
    double data[8] = {};
    Group& group = mesh.group(Axis::kTp);
    group.all_reduce(data, data, mesh.rank() == 1 ? 4 : 8, Element::kFloat64, Reduction::kSum);
  });
  EXPECT_NE(text.find("rank 0 calls all_reduce of 8 float64 (reduction sum, root 0), rank 1 calls "
                      "all_reduce of 4 float64"),
            std::string::npos)
      << text;
}

TEST(ThreadWorldTest, PartsOfUnexpectedSizeAreNamed) {
  const std::string text = error_of<CommError>([](Mesh& mesh) {
    std::vector<std::byte> memory(64);
    const std::vector<int64_t> in(4, 8);
    std::vector<int64_t> out(4, 8);
    out[2] = mesh.rank() == 1 ? 16 : 8;
    mesh.group(Axis::kTp).all_to_all(memory.data(), in, memory.data() + 32, out);
  });
  EXPECT_NE(text.find("rank 2 sends 8 bytes to rank 1, which expects 16"), std::string::npos)
      << text;
}

TEST(ThreadWorldTest, AMessageOfUnexpectedSizeIsNamed) {
  const std::string text = error_of<CommError>([](Mesh& mesh) {
    double data[2] = {};
    if (mesh.rank() == 0) {
      mesh.group(Axis::kTp).send(data, 8, 1);
    } else if (mesh.rank() == 1) {
      mesh.group(Axis::kTp).receive(data, 16, 0);
    }
  });
  EXPECT_NE(text.find("rank 1 expects a message of 16 bytes from rank 0, got 8"), std::string::npos)
      << text;
}

TEST(ThreadWorldTest, RanksThatWaitForEachOtherInDifferentCallsEndByTheTimeLimit) {
  const std::string text = error_of<CommError>(
      [](Mesh& mesh) {
        double data = 0.0;
        if (mesh.rank() < 2) {
          mesh.group(Axis::kTp).receive(&data, 8, 1 - mesh.rank());
        } else {
          mesh.group(Axis::kTp).barrier();
        }
      },
      /*timeout_ms=*/50);
  EXPECT_NE(text.find("waited 50 ms in"), std::string::npos) << text;
}

TEST(ThreadWorldTest, AMeshOfTheWrongSizeIsRefused) {
  EXPECT_THROW(run_ranks(2, {}, [](World& world) { Mesh mesh(world, kFour); }), ConfigError);
}

}  // namespace
}  // namespace baleen::comm
