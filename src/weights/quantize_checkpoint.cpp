#include "weights/quantize_checkpoint.h"

#include <boost/json.hpp>
#include <fmt/format.h>

#include "base/error.h"
#include "numerics/weight_format.h"
#include "weights/json_fields.h"
#include "weights/json_text.h"
#include "weights/mapped_file.h"

namespace baleen::weights {
namespace {

namespace fs = std::filesystem;

std::string converted_config(const fs::path& source,
                             const ModelConfig& config,
                             const CheckpointFormat& format) {
  boost::json::object object =
      parse_json_object(read_text_file(source / "config.json"), (source / "config.json").string());
  if (format.matrices == WeightFormat::kFp8) {
    object["quantization_config"] = {{"activation_scheme", "dynamic"},
                                     {"fmt", "e4m3"},
                                     {"quant_method", "fp8"},
                                     {"scale_fmt", "ue8m0"},
                                     {"weight_block_size", {128, 128}}};
  } else {
    object.erase("quantization_config");
    if (object.contains("dtype") && object["dtype"] == "fp8") {
      object["dtype"] = "bfloat16";
    }
  }
  if (format.experts == WeightFormat::kFp4 || format.experts == WeightFormat::kFp8) {
    object["expert_dtype"] = weight_format_name(format.experts);
  } else {
    object.erase("expert_dtype");
  }
  if (config.num_nextn_predict_layers == 0 && !object.contains("n_mtp_layers")) {
    object["num_nextn_predict_layers"] = 0;  // the blocks were not stored
  }
  return json_object_text(object);
}

void copy_other_files(const fs::path& source, const fs::path& target) {
  for (const fs::directory_entry& entry : fs::directory_iterator(source)) {
    const std::string name = entry.path().filename().string();
    const bool weights = name.ends_with(".safetensors") || name.ends_with(".index.json") ||
                         name.ends_with(".part") || name == "config.json";
    if (entry.is_regular_file() && !weights) {
      fs::copy_file(entry.path(), target / name, fs::copy_options::overwrite_existing);
    } else if (entry.is_directory() && name == "encoding") {
      fs::copy(entry.path(), target / name, fs::copy_options::recursive);
    }
  }
}

void set_chat_profile(const fs::path& target,
                      const Checkpoint& source,
                      const std::string& profile) {
  GenerationConfig generation = source.generation();
  generation.chat_profile = profile;
  const std::string text = write_generation_config(generation, source.config());
  const std::string where = (target / "generation_config.json").string();
  parse_generation_config(text, where, source.config());
  write_text_file(target / "generation_config.json", text);
}

/// Converts one parameter at a time and counts what was done.
class Converter {
 public:
  Converter(const Checkpoint& source, const ConvertOptions& options, ConvertReport& report)
      : source_(source), options_(options), report_(report) {}

  EncodedParameter convert(const Parameter& parameter, WeightFormat to) {
    const StoredParameter& stored = source_.stored(parameter.name);
    if (stored.format == to) {
      ++report_.copied;
      source_.report_read(parameter.name);
      return {{stored.values.begin(), stored.values.end()},
              {stored.scales.begin(), stored.scales.end()}};
    }
    if (parameter.kind == ParameterKind::kTable) {
      ++report_.reencoded;
      std::vector<int64_t> table(static_cast<std::size_t>(parameter.num_elements()));
      source_.read_int64(parameter.name, table);
      return encode_table(table);
    }
    if (stored.format == WeightFormat::kFp4 && to == WeightFormat::kFp8) {
      EncodedParameter encoded;
      if (widen_fp4(stored, encoded)) {
        ++report_.lossless;
        source_.report_read(parameter.name);
        return encoded;
      }
      if (!options_.allow_lossy) {
        throw CheckpointError(fmt::format(
            "{}: the FP4 scales of a 128x128 tile span more than 2^14, FP8 cannot hold them "
            "without loss; allow loss to requantise such matrices",
            stored.source));
      }
      ++report_.lossy;
    }
    ++report_.reencoded;
    return stored.format == WeightFormat::kF64 ? reencode<double>(parameter, to)
                                               : reencode<float>(parameter, to);
  }

 private:
  static bool widen_fp4(const StoredParameter& stored, EncodedParameter& encoded) {
    const numerics::TileShape tiles{stored.shape[0], stored.shape[1]};
    encoded.values.resize(stored.values.size() * 2);
    encoded.scales.resize(static_cast<std::size_t>(tiles.scale_rows() * tiles.scale_cols()));
    return numerics::fp4_to_fp8(
        {reinterpret_cast<const uint8_t*>(stored.values.data()), stored.values.size()},
        stored.scales,
        tiles,
        {reinterpret_cast<uint8_t*>(encoded.values.data()), encoded.values.size()},
        encoded.scales);
  }

  template <class T>
  EncodedParameter reencode(const Parameter& parameter, WeightFormat to) {
    std::vector<T> values(static_cast<std::size_t>(parameter.num_elements()));
    if constexpr (std::is_same_v<T, double>) {
      source_.read_double(parameter.name, values);
    } else {
      source_.read_float(parameter.name, values);
    }
    return encode_parameter(std::span<const T>(values), parameter.shape, to);
  }

  const Checkpoint& source_;
  const ConvertOptions& options_;
  ConvertReport& report_;
};

}  // namespace

ConvertReport convert_checkpoint(const fs::path& source_folder,
                                 const fs::path& target_folder,
                                 const ConvertOptions& options) {
  OpenOptions open_options;
  open_options.progress = options.progress;
  const Checkpoint source = Checkpoint::open(source_folder, open_options);
  CheckpointWriter writer(target_folder, source.config(), options.format, options.max_shard_bytes);
  ConvertReport report;
  report.total_bytes = writer.total_bytes();
  report.num_shards = writer.num_shards();
  Converter converter(source, options, report);
  for (const Parameter& parameter : writer.parameters()) {
    writer.put(parameter, converter.convert(parameter, writer.format_of(parameter)));
  }
  copy_other_files(source_folder, target_folder);
  if (options.chat_profile) {
    set_chat_profile(target_folder, source, *options.chat_profile);
  }
  writer.finish(converted_config(source_folder, source.config(), options.format));
  return report;
}

}  // namespace baleen::weights
