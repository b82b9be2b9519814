#include "weights/safetensors.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include <boost/json.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/check.h"
#include "base/error.h"

namespace baleen::weights {
namespace {

namespace json = boost::json;

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 512ULL << 20;  // far above the largest real header

/// Non-negative integers of an array; false when it is anything else.
bool read_integers(const json::value* value, std::vector<int64_t>& out) {
  if (value == nullptr || !value->is_array()) {
    return false;
  }
  for (const json::value& item : value->get_array()) {
    if (!item.is_int64() || item.get_int64() < 0) {
      return false;
    }
    out.push_back(item.get_int64());
  }
  return true;
}

StoredTensor read_entry(const std::string& where,
                        std::string_view name,
                        const json::value& value,
                        uint64_t data_bytes) {
  const auto refuse = [&](std::string_view reason) {
    throw CheckpointError(fmt::format("{}: tensor {}: {}", where, name, reason));
  };
  if (!value.is_object()) {
    refuse("the header entry is not an object");
  }
  const json::object& entry = value.get_object();
  for (const auto& member : entry) {
    const std::string_view key = member.key();
    if (key != "dtype" && key != "shape" && key != "data_offsets") {
      refuse(fmt::format("unknown header key \"{}\"", key));
    }
  }
  StoredTensor tensor;
  tensor.name = name;
  const json::value* dtype = entry.if_contains("dtype");
  if (dtype == nullptr || !dtype->is_string()) {
    refuse("the header entry has no dtype");
  }
  const std::optional<DType> known = dtype_from_name(std::string_view(dtype->get_string()));
  if (!known) {
    refuse(fmt::format("unknown dtype \"{}\"", std::string_view(dtype->get_string())));
  }
  tensor.dtype = *known;
  if (!read_integers(entry.if_contains("shape"), tensor.shape)) {
    refuse("shape is not a list of non-negative 64-bit integers");
  }
  std::vector<int64_t> offsets;
  if (!read_integers(entry.if_contains("data_offsets"), offsets) || offsets.size() != 2 ||
      offsets[0] > offsets[1]) {
    refuse("data_offsets is not a pair of ascending non-negative integers");
  }
  tensor.begin = static_cast<uint64_t>(offsets[0]);
  tensor.end = static_cast<uint64_t>(offsets[1]);
  int64_t bytes = dtype_bytes(tensor.dtype);
  for (const int64_t extent : tensor.shape) {
    if (__builtin_mul_overflow(bytes, extent, &bytes)) {
      refuse(fmt::format("shape {} overflows", shape_text(tensor.shape)));
    }
  }
  if (static_cast<uint64_t>(bytes) != tensor.end - tensor.begin) {
    refuse(fmt::format("shape {} of {} needs {} bytes, data_offsets hold {}",
                       shape_text(tensor.shape),
                       dtype_name(tensor.dtype),
                       bytes,
                       tensor.end - tensor.begin));
  }
  if (tensor.end > data_bytes) {
    refuse(fmt::format("data ends at byte {}, but the file holds {} bytes of data (cut off?)",
                       tensor.end,
                       data_bytes));
  }
  return tensor;
}

}  // namespace

int64_t StoredTensor::num_elements() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

std::string shape_text(std::span<const int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

SafetensorsFile SafetensorsFile::open(const std::filesystem::path& path) {
  SafetensorsFile file(path, MappedFile::open(path));
  const std::string where = path.string();
  const std::span<const std::byte> bytes = file.file_.bytes();
  if (bytes.size() < kLengthBytes) {
    throw CheckpointError(
        fmt::format("{}: {} bytes are too few for a safetensors file", where, bytes.size()));
  }
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), kLengthBytes);
  if (header_bytes > bytes.size() - kLengthBytes || header_bytes > kMaxHeaderBytes) {
    throw CheckpointError(fmt::format(
        "{}: header length {} does not fit a file of {} bytes", where, header_bytes, bytes.size()));
  }
  file.data_offset_ = kLengthBytes + header_bytes;
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + kLengthBytes,
                              static_cast<std::size_t>(header_bytes));
  json::monotonic_resource memory;
  boost::system::error_code parse_error;
  const json::value header = json::parse(text, parse_error, &memory);
  if (parse_error || !header.is_object()) {
    throw CheckpointError(fmt::format("{}: the header is not a JSON object{}{}",
                                      where,
                                      parse_error ? ": " : "",
                                      parse_error ? parse_error.message() : ""));
  }
  const uint64_t data_bytes = file.data_bytes();
  for (const auto& member : header.get_object()) {
    const std::string_view name = member.key();
    if (name == "__metadata__") {
      if (member.value().is_object()) {
        for (const auto& pair : member.value().get_object()) {
          if (pair.value().is_string()) {
            file.metadata_.emplace(pair.key(), std::string_view(pair.value().get_string()));
          }
        }
      }
      continue;
    }
    file.tensors_.push_back(read_entry(where, name, member.value(), data_bytes));
  }
  std::sort(
      file.tensors_.begin(), file.tensors_.end(), [](const StoredTensor& a, const StoredTensor& b) {
        return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
      });
  uint64_t expected_begin = 0;
  for (std::size_t i = 0; i < file.tensors_.size(); ++i) {
    const StoredTensor& tensor = file.tensors_[i];
    if (tensor.begin != expected_begin) {
      throw CheckpointError(fmt::format("{}: tensor {}: data begins at byte {}, {} {} (tensor {})",
                                        where,
                                        tensor.name,
                                        tensor.begin,
                                        tensor.begin < expected_begin
                                            ? "overlapping the data that ends at"
                                            : "leaving a gap after the data that ends at",
                                        expected_begin,
                                        i == 0 ? "none" : file.tensors_[i - 1].name));
    }
    expected_begin = tensor.end;
    file.by_name_.emplace(tensor.name, i);
  }
  if (expected_begin != data_bytes) {
    throw CheckpointError(fmt::format(
        "{}: {} bytes after the last tensor belong to none", where, data_bytes - expected_begin));
  }
  return file;
}

const StoredTensor* SafetensorsFile::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

std::span<const std::byte> SafetensorsFile::bytes(const StoredTensor& tensor) const {
  BALEEN_CHECK(tensor.end <= data_bytes(), "{} end={}", tensor.name, tensor.end);
  return file_.bytes().subspan(static_cast<std::size_t>(data_offset_ + tensor.begin),
                               static_cast<std::size_t>(tensor.end - tensor.begin));
}

}  // namespace baleen::weights
