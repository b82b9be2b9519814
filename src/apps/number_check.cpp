#include "apps/number_check.h"

#include <cstdlib>
#include <string>

#include <fmt/format.h>

namespace baleen::apps {

CLI::Validator number_in(double min, double max) {
  return {[min, max](std::string& text) {
            char* end = nullptr;
            const double value = std::strtod(text.c_str(), &end);
            const bool good = !text.empty() && *end == '\0' && value >= min && value <= max;
            return good ? std::string() : fmt::format("{} is not in {} .. {}", text, min, max);
          },
          fmt::format("{} .. {}", min, max)};
}

}  // namespace baleen::apps
