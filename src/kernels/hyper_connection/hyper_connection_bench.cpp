// Rows of the fused hyper-connection: decode steps as plain launches with cold inputs, the same in
// a chain of programmatic launches, and the cluster of eight for comparison.
#include <memory>
#include <string>
#include <vector>

#include "kernels/benching/kernel_bench.h"
#include "kernels/hyper_connection/hyper_connection.h"
#include "kernels/hyper_connection/hyper_connection_scene.h"

namespace baleen::kernels::benching {
namespace {

void run(BenchContext& bench) {
  const struct {
    const char* name;
    int32_t width;
  } models[] = {{"flash", 4096}, {"pro", 7168}};
  for (const auto& model : models) {
    for (const int32_t tokens : {1, 4, 16, 64, 1024, 8192}) {
      const int64_t h = model.width;
      const int64_t m = tokens;
      // fn and the norm's weight; read part and residual, write streams, y and codes.
      const int64_t bytes = (kHcRows * 4 + 1) * h * 4 + m * h * (2 + 8 + 8 + 2 + 1);
      const double flop = 2.0 * static_cast<double>(m) * 4.0 * static_cast<double>(h) * kHcRows;
      const std::string suffix = std::string(model.name) + "/tokens:" + std::to_string(tokens);
      const std::string row = "hyper_connection/decode/" + suffix;
      const std::string chain = "hyper_connection/chain/" + suffix;
      if (!bench.wants(row) && !bench.wants(chain)) {
        continue;
      }
      const int sets = BenchContext::sets_for(bytes);
      std::vector<std::unique_ptr<testing::HcScene>> scenes;
      std::vector<HcFusedParams> params;
      for (int i = 0; i < sets; ++i) {
        scenes.push_back(std::make_unique<testing::HcScene>(
            testing::HcSceneShape{.tokens = tokens, .width = model.width, .period = 16},
            static_cast<uint64_t>(i + 1)));
        params.push_back(scenes.back()->params());
        params.back().collapsed = nullptr;
      }
      const auto measure = [&](const std::string& name, bool programmatic) {
        bench.measure({.row = name,
                       .mode = "invariant",
                       .bytes = bytes,
                       .flop = flop,
                       .ceiling = Ceiling::kCopy},
                      sets,
                      [&](cudaStream_t stream, int set) {
                        HcFusedParams p = params[static_cast<std::size_t>(set)];
                        p.programmatic = programmatic;
                        hc_fused_sm90(p, stream);
                      });
      };
      measure(row, false);
      measure(chain, true);
    }
  }
}

}  // namespace

BALEEN_KERNEL_BENCH("hyper_connection", run)

}  // namespace baleen::kernels::benching
