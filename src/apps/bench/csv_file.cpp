#include "apps/bench/csv_file.h"

#include <fstream>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"

namespace baleen::apps {

CsvFile::CsvFile(std::string path, std::string_view header)
    : path_(std::move(path)), header_(header) {
  std::ifstream file(path_);
  std::string first;
  if (!path_.empty() && std::getline(file, first) && first != header_) {
    throw ConfigError(fmt::format("{} has other columns; give a new file", path_));
  }
}

void CsvFile::append(const std::string& lines) const {
  if (path_.empty()) {
    return;
  }
  std::ofstream file(path_, std::ios::app);
  if (file.tellp() == 0) {
    file << header_ << "\n";
  }
  file << lines;
  file.flush();
  if (!file) {
    throw SystemError(fmt::format("cannot write {}", path_));
  }
}

}  // namespace baleen::apps
