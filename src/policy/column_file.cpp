#include "policy/column_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/check.h"
#include "base/error.h"

namespace baleen::policy {
namespace {

constexpr std::string_view kColumnMagic = "BALNCOL1";
constexpr uint32_t kColumnVersion = 1;
constexpr size_t kAlignment = 64;
constexpr size_t kHeadBytes = 8 + 4 + 4 + 8 + 8 + 8;
constexpr size_t kMaxDimensions = 8;

size_t aligned(size_t offset) {
  return (offset + kAlignment - 1) / kAlignment * kAlignment;
}

uint64_t hash_of(std::span<const uint8_t> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

template <class Value>
void append_value(std::string& out, Value value) {
  char bytes[sizeof(Value)];
  std::memcpy(bytes, &value, sizeof(Value));
  out.append(bytes, sizeof(Value));
}

/// Number of values of a shape, or -1 where it is no shape.
int64_t volume(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t dim : shape) {
    if (dim < 0 || (dim > 0 && count > std::numeric_limits<int64_t>::max() / dim)) {
      return -1;
    }
    count *= dim;
  }
  return count;
}

/// Reads little-endian values one behind another; throws once the bytes end.
class TableReader {
 public:
  TableReader(std::span<const uint8_t> bytes, const std::filesystem::path& path)
      : bytes_(bytes), path_(path) {}

  template <class Value>
  Value take() {
    Value value;
    std::memcpy(&value, take(sizeof(Value)).data(), sizeof(Value));
    return value;
  }
  std::span<const uint8_t> take(size_t count) {
    if (count > bytes_.size() - at_) {
      throw Error(fmt::format("{}: the column table ends early", path_.string()));
    }
    at_ += count;
    return bytes_.subspan(at_ - count, count);
  }
  size_t at() const { return at_; }

 private:
  std::span<const uint8_t> bytes_;
  const std::filesystem::path& path_;
  size_t at_ = 0;
};

}  // namespace

size_t column_type_bytes(ColumnType type) {
  switch (type) {
    case ColumnType::kU8:
      return 1;
    case ColumnType::kU16:
      return 2;
    case ColumnType::kI32:
    case ColumnType::kF32:
      return 4;
    case ColumnType::kI64:
    case ColumnType::kF64:
      return 8;
  }
  return 0;
}

const char* column_type_name(ColumnType type) {
  constexpr const char* kNames[] = {"u8", "u16", "i32", "i64", "f32", "f64"};
  const auto index = static_cast<size_t>(type) - 1;
  return index < std::size(kNames) ? kNames[index] : "?";
}

void ColumnFileWriter::add_bytes(std::string name,
                                 ColumnType type,
                                 std::vector<int64_t> shape,
                                 std::span<const uint8_t> bytes) {
  BALEEN_CHECK(shape.size() <= kMaxDimensions, "column {}: {} dimensions", name, shape.size());
  BALEEN_CHECK(!name.empty() && name.size() <= std::numeric_limits<uint16_t>::max(),
               "a column name of {} bytes",
               name.size());
  BALEEN_CHECK(volume(shape) * static_cast<int64_t>(column_type_bytes(type)) ==
                   static_cast<int64_t>(bytes.size()),
               "column {}: {} bytes do not fill its shape",
               name,
               bytes.size());
  for (const Column& known : columns_) {
    BALEEN_CHECK(known.name != name, "column {} is there already", name);
  }
  columns_.push_back({std::move(name), type, std::move(shape), bytes});
}

void ColumnFileWriter::write(const std::filesystem::path& path) const {
  size_t table_bytes = 0;
  for (const Column& column : columns_) {
    table_bytes += 2 + column.name.size() + 2 + 8 * column.shape.size() + 24;
  }
  std::string table;
  size_t offset = aligned(kHeadBytes + table_bytes);
  size_t file_bytes = kHeadBytes + table_bytes;
  for (const Column& column : columns_) {
    append_value(table, static_cast<uint16_t>(column.name.size()));
    table += column.name;
    append_value(table, static_cast<uint8_t>(column.type));
    append_value(table, static_cast<uint8_t>(column.shape.size()));
    for (const int64_t dim : column.shape) {
      append_value(table, dim);
    }
    append_value(table, uint64_t{offset});
    append_value(table, uint64_t{column.bytes.size()});
    append_value(table, hash_of(column.bytes));
    file_bytes = offset + column.bytes.size();
    offset = aligned(file_bytes);
  }
  std::string head(kColumnMagic);
  append_value(head, kColumnVersion);
  append_value(head, static_cast<uint32_t>(columns_.size()));
  append_value(head, static_cast<uint64_t>(rows_));
  append_value(head, uint64_t{file_bytes});
  const std::string checked = head + table;
  append_value(head, XXH3_64bits(checked.data(), checked.size()));
  head += table;

  std::filesystem::path beside = path;
  beside += ".part";
  {
    std::ofstream file(beside, std::ios::binary | std::ios::trunc);
    const auto put = [&](const char* bytes, size_t count) {
      file.write(bytes, static_cast<std::streamsize>(count));
    };
    put(head.data(), head.size());
    size_t at = head.size();
    for (const Column& column : columns_) {
      const std::string gap(aligned(at) - at, '\0');
      put(gap.data(), gap.size());
      put(reinterpret_cast<const char*>(column.bytes.data()), column.bytes.size());
      at += gap.size() + column.bytes.size();
    }
    file.close();
    if (!file) {
      throw SystemError(fmt::format("{}: cannot write", beside.string()));
    }
  }
  std::error_code error;
  std::filesystem::rename(beside, path, error);
  if (error) {
    throw SystemError(fmt::format("{}: {}", path.string(), error.message()));
  }
}

ColumnFile::ColumnFile(const std::filesystem::path& path) : path_(path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat facts{};
  if (descriptor < 0 || fstat(descriptor, &facts) != 0) {
    const std::string reason = std::strerror(errno);  // NOLINT: names only
    if (descriptor >= 0) {
      close(descriptor);
    }
    throw Error(fmt::format("{}: {}", path.string(), reason));
  }
  mapped_bytes_ = static_cast<size_t>(facts.st_size);
  if (mapped_bytes_ > 0) {
    mapping_ = mmap(nullptr, mapped_bytes_, PROT_READ, MAP_PRIVATE, descriptor, 0);
  }
  close(descriptor);
  if (mapping_ == MAP_FAILED || mapping_ == nullptr) {
    mapping_ = nullptr;
    throw Error(fmt::format("{}: cannot map {} bytes", path.string(), mapped_bytes_));
  }
  try {
    read({static_cast<const uint8_t*>(mapping_), mapped_bytes_});
  } catch (...) {
    munmap(mapping_, mapped_bytes_);
    throw;
  }
}

ColumnFile::~ColumnFile() {
  munmap(mapping_, mapped_bytes_);
}

void ColumnFile::read(std::span<const uint8_t> bytes) {
  const auto refuse = [&](const std::string& what) {
    throw Error(fmt::format("{}: {}", path_.string(), what));
  };
  TableReader reader(bytes, path_);
  const auto magic = reader.take(kColumnMagic.size());
  if (!std::equal(magic.begin(), magic.end(), kColumnMagic.begin())) {
    refuse("is no column file");
  }
  if (const auto version = reader.take<uint32_t>(); version != kColumnVersion) {
    refuse(fmt::format("is of version {}, known is {}", version, kColumnVersion));
  }
  const auto count = reader.take<uint32_t>();
  rows_ = reader.take<int64_t>();
  if (const auto whole = reader.take<uint64_t>(); whole != bytes.size()) {
    refuse(fmt::format("has {} bytes, should have {}", bytes.size(), whole));
  }
  const auto table_hash = reader.take<uint64_t>();
  struct Place {
    uint64_t offset = 0;
    uint64_t length = 0;
    uint64_t hash = 0;
  };
  std::vector<Place> places;
  for (uint32_t i = 0; i < count; ++i) {
    Column column;
    const auto name = reader.take(reader.take<uint16_t>());
    column.name.assign(name.begin(), name.end());
    column.type = static_cast<ColumnType>(reader.take<uint8_t>());
    const auto dimensions = reader.take<uint8_t>();
    for (uint8_t d = 0; d < dimensions; ++d) {
      column.shape.push_back(reader.take<int64_t>());
    }
    Place place;
    place.offset = reader.take<uint64_t>();
    place.length = reader.take<uint64_t>();
    place.hash = reader.take<uint64_t>();
    places.push_back(place);
    columns_.push_back(std::move(column));
  }
  std::vector<uint8_t> checked(bytes.begin(), bytes.begin() + kHeadBytes - sizeof(uint64_t));
  checked.insert(checked.end(),
                 bytes.begin() + kHeadBytes,
                 bytes.begin() + static_cast<ptrdiff_t>(reader.at()));
  if (hash_of(checked) != table_hash) {
    refuse("the head or the column table is damaged");
  }
  for (size_t i = 0; i < columns_.size(); ++i) {
    Column& column = columns_[i];
    const Place& place = places[i];
    const size_t value_bytes = column_type_bytes(column.type);
    const int64_t values = volume(column.shape);
    if (value_bytes == 0 || values < 0 || place.offset % kAlignment != 0 ||
        place.offset > bytes.size() || place.length > bytes.size() - place.offset ||
        place.length / value_bytes != static_cast<uint64_t>(values) ||
        place.length % value_bytes != 0) {
      refuse(fmt::format("column {} has a place, type or shape that cannot be", column.name));
    }
    column.bytes = bytes.subspan(place.offset, place.length);
    if (hash_of(column.bytes) != place.hash) {
      refuse(fmt::format("column {} is damaged", column.name));
    }
  }
}

const ColumnFile::Column* ColumnFile::find(std::string_view name) const {
  const auto found = std::find_if(
      columns_.begin(), columns_.end(), [&](const Column& column) { return column.name == name; });
  return found == columns_.end() ? nullptr : &*found;
}

const ColumnFile::Column& ColumnFile::column(std::string_view name) const {
  const Column* found = find(name);
  if (found == nullptr) {
    throw Error(fmt::format("{}: has no column {}", path_.string(), name));
  }
  return *found;
}

const ColumnFile::Column& ColumnFile::typed(std::string_view name, ColumnType type) const {
  const Column& found = column(name);
  if (found.type != type) {
    throw Error(fmt::format("{}: column {} is of {}, wanted is {}",
                            path_.string(),
                            name,
                            column_type_name(found.type),
                            column_type_name(type)));
  }
  return found;
}

}  // namespace baleen::policy
