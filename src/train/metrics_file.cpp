#include "train/metrics_file.h"

#include <cerrno>
#include <cmath>
#include <fstream>
#include <system_error>
#include <utility>

#include <boost/json.hpp>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "base/error.h"
#include "train/commit_folder.h"

namespace baleen::train {
namespace {

[[noreturn]] void metrics_fault(const std::filesystem::path& path, const char* what, int error) {
  throw SystemError(fmt::format(
      "{}: cannot {}: {}", path.string(), what, std::generic_category().message(error)));
}

double number_or(const boost::json::object& object, const std::string& key, double fallback) {
  const boost::json::value* value = object.if_contains(key);
  return value != nullptr && value->is_number() ? value->to_number<double>() : fallback;
}

}  // namespace

std::string metrics_json(const Metrics& metrics) {
  std::string text = "{";
  for (const auto& [name, value] : metrics) {
    text += fmt::format("{}\"{}\": {}",
                        text.size() == 1 ? "" : ", ",
                        name,
                        std::isfinite(value) ? fmt::format("{}", value) : "null");
  }
  return text + "}";
}

MetricsFile::MetricsFile(std::filesystem::path path, int64_t next_step, const std::string& curve)
    : path_(std::move(path)) {
  std::string kept;
  bool cut = false;
  {
    std::ifstream stream(path_, std::ios::binary);
    std::string line;
    while (std::getline(stream, line)) {
      boost::json::error_code error;
      const boost::json::value value = boost::json::parse(line, error);
      const boost::json::object* object = error ? nullptr : value.if_object();
      const double step = object == nullptr ? -1.0 : number_or(*object, "train/step", -1.0);
      if (step < 0.0 || step >= static_cast<double>(next_step)) {
        cut = true;  // of a step that comes again, or half a line of a program that was ended
        continue;
      }
      kept += line + "\n";
      kept_.push_back({static_cast<int64_t>(step), number_or(*object, curve, std::nan(""))});
    }
  }
  if (cut) {
    std::filesystem::path part = path_;
    part += ".part";
    write_synced(part, kept);
    std::error_code error;
    std::filesystem::rename(part, path_, error);
    if (error) {
      metrics_fault(path_, "rename into place", error.value());
    }
  }
  descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (descriptor_ < 0) {
    metrics_fault(path_, "open", errno);
  }
}

MetricsFile::~MetricsFile() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
  }
}

void MetricsFile::write(const Metrics& metrics) {
  const std::string line = metrics_json(metrics) + "\n";
  std::size_t written = 0;
  while (written < line.size()) {
    const ssize_t count = ::write(descriptor_, line.data() + written, line.size() - written);
    if (count < 0 && errno != EINTR) {
      metrics_fault(path_, "write", errno);
    }
    written += count > 0 ? static_cast<std::size_t>(count) : 0;
  }
}

}  // namespace baleen::train
