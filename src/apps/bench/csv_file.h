#pragma once
// A CSV file that rows of one layout are appended to. A file with other columns is refused: rows of
// two layouts in one file would lie about their columns.
//
//   CsvFile csv(path, "model,steps");      // an empty path: nothing is written
//   csv.append("abacus,12\n");

#include <string>
#include <string_view>

namespace baleen::apps {

class CsvFile {
 public:
  /// Throws ConfigError when the file has another header.
  CsvFile(std::string path, std::string_view header);
  /// Whole lines. Throws SystemError when the file cannot be written.
  void append(const std::string& lines) const;

 private:
  std::string path_;
  std::string header_;
};

}  // namespace baleen::apps
