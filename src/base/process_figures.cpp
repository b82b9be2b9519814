#include "base/process_figures.h"

#include <ctime>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

#include <unistd.h>

#include "base/error.h"

namespace baleen {

double process_age_s() {
  std::ifstream file("/proc/self/stat");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  // The fields after the program's name, which may hold blanks: state is the 3rd, starttime the
  // 22nd.
  std::istringstream fields(text.substr(text.rfind(')') + 1));
  std::string skipped;
  for (int field = 3; field < 22; ++field) {
    fields >> skipped;
  }
  double started_ticks = 0;
  fields >> started_ticks;
  timespec now{};
  if (!fields || ::clock_gettime(CLOCK_BOOTTIME, &now) != 0) {
    throw SystemError("/proc/self/stat does not say when the process began");
  }
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec) -
         started_ticks / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

double process_memory_bytes(std::string_view field) {
  std::ifstream status("/proc/self/status");
  const std::string wanted = std::string(field) + ":";
  std::string word;
  while (status >> word) {
    if (word == wanted) {
      double kib = 0.0;
      status >> kib;
      return kib * 1024.0;
    }
  }
  return 0.0;
}

}  // namespace baleen
