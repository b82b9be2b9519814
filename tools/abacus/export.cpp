#include "abacus/export.h"

#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "base/check.h"
#include "numerics/weight_format.h"
#include "weights/safetensors_writer.h"

namespace baleen::abacus {
namespace {

using model::ParameterInfo;
using model::ParameterRole;
using weights::DType;

struct Piece {
  weights::TensorSpec spec;
  std::vector<std::byte> bytes;
};

template <class T>
std::vector<std::byte> bytes_of(const T* data, std::size_t count) {
  std::vector<std::byte> bytes(count * sizeof(T));
  std::memcpy(bytes.data(), data, bytes.size());
  return bytes;
}

/// "x.weight" -> "x.scale".
std::string scale_name(const std::string& name) {
  constexpr std::string_view kSuffix = ".weight";
  BALEEN_CHECK(name.ends_with(kSuffix), "quantised tensor {}", name);
  return name.substr(0, name.size() - kSuffix.size()) + ".scale";
}

std::span<const float> floats(const at::Tensor& value) {
  return {value.const_data_ptr<float>(), static_cast<std::size_t>(value.numel())};
}

void add_fp8(const std::string& name, const at::Tensor& value, std::vector<Piece>& pieces) {
  const numerics::TileShape tiles{value.size(0), value.size(1), 128, 128};
  std::vector<uint8_t> codes(static_cast<std::size_t>(value.numel()));
  std::vector<uint8_t> scales(static_cast<std::size_t>(tiles.scale_rows() * tiles.scale_cols()));
  numerics::quantize_tiles(floats(value), tiles, std::span(codes), std::span(scales));
  pieces.push_back(
      {{name, DType::kF8E4m3, {tiles.rows, tiles.cols}}, bytes_of(codes.data(), codes.size())});
  pieces.push_back({{scale_name(name), DType::kF8E8m0, {tiles.scale_rows(), tiles.scale_cols()}},
                    bytes_of(scales.data(), scales.size())});
}

void add_fp4(const std::string& name, const at::Tensor& value, std::vector<Piece>& pieces) {
  const int64_t rows = value.size(0);
  const int64_t cols = value.size(1);
  std::vector<uint8_t> packed(static_cast<std::size_t>(rows * cols / 2));
  std::vector<uint8_t> scales(static_cast<std::size_t>(rows * cols / numerics::kFp4Group));
  numerics::quantize_groups_fp4(floats(value), rows, cols, std::span(packed), std::span(scales));
  pieces.push_back({{name, DType::kI8, {rows, cols / 2}}, bytes_of(packed.data(), packed.size())});
  pieces.push_back({{scale_name(name), DType::kF8E8m0, {rows, cols / numerics::kFp4Group}},
                    bytes_of(scales.data(), scales.size())});
}

void add_plain(const std::string& name,
               const at::Tensor& value,
               DType dtype,
               std::vector<Piece>& pieces) {
  const at::ScalarType type = dtype == DType::kBf16  ? at::kBFloat16
                              : dtype == DType::kI64 ? at::kLong
                                                     : at::kFloat;
  const at::Tensor stored = value.to(type).contiguous();
  pieces.push_back({{name, dtype, stored.sizes().vec()},
                    bytes_of(static_cast<const std::byte*>(stored.const_data_ptr()),
                             static_cast<std::size_t>(stored.nbytes()))});
}

void add_tensor(const ParameterInfo& info,
                ops::LinearFormat format,
                const std::string& name,
                const at::Tensor& value,
                std::vector<Piece>& pieces) {
  switch (info.role) {
    case ParameterRole::kDenseMatrix:
    case ParameterRole::kOutputLatent:
    case ParameterRole::kExpertMatrix:
      if (format == ops::LinearFormat::kFp4) {
        add_fp4(name, value, pieces);
      } else if (format == ops::LinearFormat::kFp8) {
        add_fp8(name, value, pieces);
      } else {
        add_plain(name, value, DType::kBf16, pieces);
      }
      return;
    case ParameterRole::kEmbedding:
    case ParameterRole::kOutputHead:
    case ParameterRole::kUnquantizedMatrix:
    case ParameterRole::kNorm:
      return add_plain(name, value, DType::kBf16, pieces);
    case ParameterRole::kHashTable:
      return add_plain(name, value, DType::kI64, pieces);
    case ParameterRole::kHyperFn:
    case ParameterRole::kHyperBase:
    case ParameterRole::kHyperScale:
    case ParameterRole::kSink:
    case ParameterRole::kApe:
    case ParameterRole::kRouterBias:
      return add_plain(name, value, DType::kF32, pieces);
  }
}

}  // namespace

void write_published(const model::ModelParameters& params, const std::filesystem::path& file) {
  std::vector<Piece> pieces;
  model::ModelParameters copy = params;
  model::for_each_matrix_or_tensor(
      copy, [&](const ParameterInfo& info, at::Tensor& value, ops::LinearFormat* format) {
        const at::Tensor host = value.detach().to(at::kCPU).contiguous();
        const ops::LinearFormat stored = format == nullptr ? ops::LinearFormat::kPlain : *format;
        if (info.stack == 0) {
          add_tensor(info, stored, info.name, host, pieces);
        }
        for (int64_t member = 0; member < info.stack; ++member) {
          add_tensor(info, stored, info.member_name(member), host[member].contiguous(), pieces);
        }
      });
  std::vector<weights::TensorSpec> specs;
  for (const Piece& piece : pieces) {
    specs.push_back(piece.spec);
  }
  weights::SafetensorsWriter writer(file, std::move(specs));
  for (const Piece& piece : pieces) {
    writer.append(piece.spec.name, piece.bytes);
  }
  writer.finish();
}

}  // namespace baleen::abacus
