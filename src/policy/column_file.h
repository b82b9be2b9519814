#pragma once
// Arrays of a batch in one binary file that is mapped, not parsed: tokens, masks,
// log-probabilities, route and pick records beside a short JSON text with what is said row by row.
//
// Layout, little-endian: magic "BALNCOL1", u32 version 1, u32 columns, u64 rows, u64 bytes of the
// file, u64 xxh3-64 of all that and of the column table, which follows: per column u16 name length,
// name, u8 dtype, u8 dimensions, i64 each, u64 offset, u64 bytes, u64 xxh3-64 of its bytes. Every
// column starts at a multiple of 64.
//
//   ColumnFileWriter writer(rows);
//   writer.add("tokens", {total}, std::span<const int32_t>(tokens));
//   writer.write("rollouts/7.bin");                       // beside its place, then renamed
//   ColumnFile file("rollouts/7.bin");                    // checks every byte
//   std::span<const int32_t> tokens = file.column<int32_t>("tokens");

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace baleen::policy {

enum class ColumnType : uint8_t { kU8 = 1, kU16 = 2, kI32 = 3, kI64 = 4, kF32 = 5, kF64 = 6 };
size_t column_type_bytes(ColumnType type);
const char* column_type_name(ColumnType type);  // u8, u16, i32, i64, f32, f64

template <class Value>
constexpr ColumnType column_type_of() {
  if constexpr (std::is_same_v<Value, uint8_t>) {
    return ColumnType::kU8;
  } else if constexpr (std::is_same_v<Value, uint16_t>) {
    return ColumnType::kU16;
  } else if constexpr (std::is_same_v<Value, int32_t>) {
    return ColumnType::kI32;
  } else if constexpr (std::is_same_v<Value, int64_t>) {
    return ColumnType::kI64;
  } else if constexpr (std::is_same_v<Value, float>) {
    return ColumnType::kF32;
  } else {
    static_assert(std::is_same_v<Value, double>, "a column holds u8, u16, i32, i64, f32 or f64");
    return ColumnType::kF64;
  }
}

/// Collects columns and writes them as one file. The arrays must live until write().
class ColumnFileWriter {
 public:
  explicit ColumnFileWriter(int64_t rows) : rows_(rows) {}

  /// The product of `shape` must be the number of values; a name may be used once (checked).
  template <class Value>
  void add(std::string name, std::vector<int64_t> shape, std::span<const Value> values) {
    add_bytes(std::move(name),
              column_type_of<Value>(),
              std::move(shape),
              {reinterpret_cast<const uint8_t*>(values.data()), values.size_bytes()});
  }
  /// A text as a column of bytes.
  void add_text(std::string name, std::string_view text) {
    add_bytes(std::move(name),
              ColumnType::kU8,
              {static_cast<int64_t>(text.size())},
              {reinterpret_cast<const uint8_t*>(text.data()), text.size()});
  }

  /// Throws SystemError naming the path.
  void write(const std::filesystem::path& path) const;

 private:
  struct Column {
    std::string name;
    ColumnType type = ColumnType::kU8;
    std::vector<int64_t> shape;
    std::span<const uint8_t> bytes;
  };
  void add_bytes(std::string name,
                 ColumnType type,
                 std::vector<int64_t> shape,
                 std::span<const uint8_t> bytes);
  int64_t rows_;
  std::vector<Column> columns_;
};

/// A mapped file. Views live as long as it does.
class ColumnFile {
 public:
  struct Column {
    std::string name;
    ColumnType type = ColumnType::kU8;
    std::vector<int64_t> shape;
    std::span<const uint8_t> bytes;
  };

  /// Throws Error naming file and column for anything that is not a whole, undamaged file.
  explicit ColumnFile(const std::filesystem::path& path);
  ColumnFile(const ColumnFile&) = delete;
  ColumnFile& operator=(const ColumnFile&) = delete;
  ~ColumnFile();

  int64_t rows() const { return rows_; }
  const std::vector<Column>& columns() const { return columns_; }
  bool has(std::string_view name) const { return find(name) != nullptr; }
  /// Throws Error naming file and column when it is missing.
  const Column& column(std::string_view name) const;
  /// The same when it is of another type.
  template <class Value>
  std::span<const Value> column(std::string_view name) const {
    const Column& found = typed(name, column_type_of<Value>());
    return {reinterpret_cast<const Value*>(found.bytes.data()), found.bytes.size() / sizeof(Value)};
  }
  std::string_view text(std::string_view name) const {
    const auto bytes = column<uint8_t>(name);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

 private:
  const Column* find(std::string_view name) const;
  const Column& typed(std::string_view name, ColumnType type) const;
  void read(std::span<const uint8_t> bytes);

  std::filesystem::path path_;
  void* mapping_ = nullptr;
  size_t mapped_bytes_ = 0;
  int64_t rows_ = 0;
  std::vector<Column> columns_;
};

}  // namespace baleen::policy
