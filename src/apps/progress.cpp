#include "apps/progress.h"

#include <atomic>
#include <cstdio>
#include <memory>

#include <unistd.h>

namespace baleen::apps {

weights::ProgressFn progress_line(std::string label) {
  if (::isatty(STDERR_FILENO) == 0) {
    return {};
  }
  // Shared by the copies of the returned function.
  auto shown = std::make_shared<std::atomic<uint64_t>>(0);
  return [label = std::move(label), shown](uint64_t done, uint64_t total) {
    const uint64_t percent = total == 0 ? 100 : done * 100 / total;
    uint64_t before = shown->load();
    while (percent > before) {
      if (shown->compare_exchange_weak(before, percent)) {
        std::fprintf(stderr,
                     "\r%s %3d%% of %.2f GiB%s",
                     label.c_str(),
                     static_cast<int>(percent),
                     static_cast<double>(total) / 1073741824.0,
                     percent == 100 ? "\n" : "");
        std::fflush(stderr);
        return;
      }
    }
  };
}

}  // namespace baleen::apps
