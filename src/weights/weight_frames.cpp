#include "weights/weight_frames.h"

#include <array>
#include <charconv>
#include <cstddef>
#include <limits>
#include <span>
#include <utility>

#include <boost/json.hpp>
#include <fmt/format.h>
#include <xxhash.h>

#include "base/error.h"

namespace baleen::weights {
namespace {

namespace json = boost::json;

constexpr std::string_view kBucketMagic = "BALEENB1";
constexpr uint64_t kMostTensors = 1U << 20;  // of a bucket
constexpr std::array kFormats = {WeightFormat::kBf16,
                                 WeightFormat::kF16,
                                 WeightFormat::kF32,
                                 WeightFormat::kF64,
                                 WeightFormat::kFp8,
                                 WeightFormat::kFp4,
                                 WeightFormat::kI64,
                                 WeightFormat::kI32};
constexpr std::array<std::pair<ParameterKind, std::string_view>, 5> kKinds = {{
    {ParameterKind::kMatrix, "matrix"},
    {ParameterKind::kExpertMatrix, "expert_matrix"},
    {ParameterKind::kBf16, "bf16"},
    {ParameterKind::kF32, "f32"},
    {ParameterKind::kTable, "table"},
}};

[[noreturn]] void refuse_message(std::string_view what, std::string_view reason) {
  throw CheckpointError(fmt::format("weight stream: {}: {}", what, reason));
}

json::object object_of(std::string_view text, std::string_view what) {
  boost::system::error_code error;
  json::value value = json::parse(text, error);
  if (error || !value.is_object()) {
    refuse_message(what, "not a JSON object");
  }
  return std::move(value.as_object());
}

const json::value& field(const json::object& object, std::string_view name) {
  const json::value* value = object.if_contains(name);
  if (value == nullptr) {
    refuse_message(name, "missing");
  }
  return *value;
}

std::string text_field(const json::object& object, std::string_view name) {
  const json::value& value = field(object, name);
  if (!value.is_string()) {
    refuse_message(name, "not a string");
  }
  return std::string(value.as_string());
}

int64_t integer_field(const json::object& object, std::string_view name, int64_t smallest) {
  boost::system::error_code error;
  const auto number = field(object, name).to_number<int64_t>(error);
  if (error || number < smallest) {
    refuse_message(name, fmt::format("not an integer from {} on", smallest));
  }
  return number;
}

const json::array& list_field(const json::object& object, std::string_view name) {
  const json::value& value = field(object, name);
  if (!value.is_array()) {
    refuse_message(name, "not a list");
  }
  return value.as_array();
}

std::string_view kind_name(ParameterKind kind) {
  for (const auto& [known, name] : kKinds) {
    if (known == kind) {
      return name;
    }
  }
  return "";
}

ManifestEntry read_entry(const json::value& value) {
  if (!value.is_object()) {
    refuse_message("tensors", "an element is no object");
  }
  const json::object& object = value.as_object();
  ManifestEntry entry;
  entry.parameter.name = text_field(object, "name");
  const std::string kind = text_field(object, "kind");
  const std::string format = text_field(object, "format");
  bool known_kind = false;
  for (const auto& [listed, name] : kKinds) {
    if (name == kind) {
      entry.parameter.kind = listed;
      known_kind = true;
    }
  }
  bool known_format = false;
  for (const WeightFormat listed : kFormats) {
    if (format == weight_format_name(listed)) {
      entry.format = listed;
      known_format = true;
    }
  }
  if (!known_kind || !known_format) {
    refuse_message(entry.parameter.name, fmt::format("kind {} in format {}", kind, format));
  }
  int64_t elements = 1;
  for (const json::value& size : list_field(object, "shape")) {
    boost::system::error_code error;
    const auto number = size.to_number<int64_t>(error);
    if (error || number < 1 || number > std::numeric_limits<int64_t>::max() / 16 / elements) {
      refuse_message(entry.parameter.name, "the shape is none");
    }
    elements *= number;
    entry.parameter.shape.push_back(number);
  }
  if ((format == "fp8" || format == "fp4") &&
      (entry.parameter.shape.size() != 2 ||
       (format == "fp4" && entry.parameter.shape.back() % 32 != 0))) {
    refuse_message(entry.parameter.name, "no matrix that could have this format");
  }
  entry.group = static_cast<int32_t>(integer_field(object, "group", 0));
  for (const TensorSpec& stored : stored_forms(entry.parameter, entry.format)) {
    entry.num_bytes += stored.num_bytes();
  }
  return entry;
}

void put_u64(std::string& out, uint64_t value) {
  for (int shift = 0; shift < 64; shift += 8) {
    out.push_back(static_cast<char>((value >> shift) & 0xFFU));
  }
}

/// Takes parts off the front; complains where there is too little.
class BucketReader {
 public:
  explicit BucketReader(std::string_view bytes) : rest_(bytes) {}

  std::string_view take(uint64_t count) {
    if (count > rest_.size()) {
      refuse_message("bucket", "the message ends early");
    }
    const std::string_view part = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return part;
  }
  uint64_t number() {
    uint64_t value = 0;
    int shift = 0;
    for (const char c : take(8)) {
      value |= static_cast<uint64_t>(static_cast<unsigned char>(c)) << shift;
      shift += 8;
    }
    return value;
  }
  std::size_t left() const { return rest_.size(); }

 private:
  std::string_view rest_;
};

}  // namespace

std::string manifest_message(const WeightManifest& manifest) {
  json::array tensors;
  for (const ManifestEntry& entry : manifest.entries) {
    tensors.push_back(json::object{
        {"name", entry.parameter.name},
        {"kind", kind_name(entry.parameter.kind)},
        {"format", weight_format_name(entry.format)},
        {"group", entry.group},
        {"shape", json::array(entry.parameter.shape.begin(), entry.parameter.shape.end())}});
  }
  return json::serialize(json::object{{"version", manifest.version},
                                      {"contract", manifest.contract},
                                      {"config", manifest.config},
                                      {"digest", manifest.digest()},
                                      {"tensors", std::move(tensors)}});
}

WeightManifest read_manifest_message(std::string_view text) {
  const json::object object = object_of(text, "manifest");
  WeightManifest manifest;
  manifest.version = integer_field(object, "version", 0);
  manifest.contract = text_field(object, "contract");
  manifest.config = text_field(object, "config");
  for (const json::value& value : list_field(object, "tensors")) {
    manifest.entries.push_back(read_entry(value));
  }
  if (text_field(object, "digest") != manifest.digest()) {
    refuse_message("manifest", "its digest is another one");
  }
  return manifest;
}

std::string bucket_message(uint64_t update, const WeightBucket& bucket) {
  std::string out(kBucketMagic);
  put_u64(out, update);
  put_u64(out, bucket.size());
  for (const StreamedTensor& tensor : bucket) {
    put_u64(out, tensor.name.size());
    put_u64(out, tensor.encoded.values.size());
    put_u64(out, tensor.encoded.scales.size());
    put_u64(out, tensor.digest);
    out += tensor.name;
    out.append(reinterpret_cast<const char*>(tensor.encoded.values.data()),
               tensor.encoded.values.size());
    out.append(reinterpret_cast<const char*>(tensor.encoded.scales.data()),
               tensor.encoded.scales.size());
  }
  put_u64(out, XXH3_64bits(out.data(), out.size()));
  return out;
}

BucketMessage read_bucket_message(std::string_view bytes) {
  constexpr std::size_t kDigest = sizeof(uint64_t);
  if (!bytes.starts_with(kBucketMagic) || bytes.size() < kBucketMagic.size() + 3 * kDigest) {
    refuse_message("bucket", "not a bucket of weights");
  }
  BucketReader last(bytes.substr(bytes.size() - kDigest));
  bytes.remove_suffix(kDigest);
  if (last.number() != XXH3_64bits(bytes.data(), bytes.size())) {
    refuse_message("bucket", "changed on its way");
  }
  BucketReader reader(bytes.substr(kBucketMagic.size()));
  BucketMessage message;
  message.update = reader.number();
  const uint64_t count = reader.number();
  if (count > kMostTensors) {
    refuse_message("bucket", "too many tensors");
  }
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t name = reader.number();
    const uint64_t values = reader.number();
    const uint64_t scales = reader.number();
    StreamedTensor& tensor = message.tensors.emplace_back();
    tensor.digest = reader.number();
    tensor.name = reader.take(name);
    const auto value_bytes = std::as_bytes(std::span(reader.take(values)));
    tensor.encoded.values.assign(value_bytes.begin(), value_bytes.end());
    const std::string_view scale_bytes = reader.take(scales);
    tensor.encoded.scales.assign(scale_bytes.begin(), scale_bytes.end());
  }
  if (reader.left() != 0) {
    refuse_message("bucket", "longer than it says");
  }
  return message;
}

std::string end_message(const EndMessage& end) {
  json::array digests;
  for (const auto& [name, digest] : end.value_digests) {
    digests.push_back(json::array{name, fmt::format("{:016x}", digest)});
  }
  return json::serialize(json::object{
      {"update", end.update}, {"root", end.root}, {"value_digests", std::move(digests)}});
}

EndMessage read_end_message(std::string_view text) {
  const json::object object = object_of(text, "end");
  EndMessage end;
  end.update = static_cast<uint64_t>(integer_field(object, "update", 0));
  end.root = text_field(object, "root");
  for (const json::value& value : list_field(object, "value_digests")) {
    const json::array* pair = value.if_array();
    if (pair == nullptr || pair->size() != 2 || !pair->at(0).is_string() ||
        !pair->at(1).is_string()) {
      refuse_message("value_digests", "an element is no pair of name and digest");
    }
    const json::string& digits = pair->at(1).as_string();
    uint64_t digest = 0;
    const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), digest, 16);
    if (parsed.ec != std::errc() || parsed.ptr != digits.data() + digits.size()) {
      refuse_message("value_digests", "a digest is no number");
    }
    end.value_digests.emplace_back(std::string(pair->at(0).as_string()), digest);
  }
  return end;
}

}  // namespace baleen::weights
