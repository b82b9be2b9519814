// baleen score MODEL --input ids.json --output out.safetensors
#include "runner/score.h"

#include <cstdint>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include <boost/json.hpp>
#include <fmt/format.h>

#include "apps/commands.h"
#include "apps/model_source.h"
#include "base/error.h"
#include "weights/config_json.h"

namespace baleen::apps {
namespace {

struct ScoreFlags {
  std::string model;
  std::string input;
  std::string output;
  std::string dtype = "float32";
  std::string numerics = "checkpoint";
  std::string device = "cpu";
  int64_t chunk = 0;
  int64_t prefill = 0;
  int32_t threads = 1;
};

/// {"sequences": [[ids], ...]}
std::vector<std::vector<int32_t>> read_sequences(const std::string& path) {
  std::ifstream file(path);
  if (!file) {
    throw SystemError(fmt::format("{}: cannot be read", path));
  }
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  boost::system::error_code error;
  const boost::json::value document = boost::json::parse(text, error);
  if (error) {
    throw ConfigError(fmt::format("{}: not JSON: {}", path, error.message()));
  }
  if (const auto* fields = document.if_object()) {
    for (const auto& field : *fields) {
      if (field.key() != "sequences") {
        throw ConfigError(fmt::format("{}: unknown key \"{}\", expected sequences alone",
                                      path,
                                      std::string_view(field.key()).substr(0, 200)));
      }
    }
  }
  std::vector<std::vector<int32_t>> sequences;
  try {
    for (const boost::json::value& list : document.at("sequences").as_array()) {
      std::vector<int32_t>& ids = sequences.emplace_back();
      for (const boost::json::value& id : list.as_array()) {
        ids.push_back(id.to_number<int32_t>());
      }
    }
  } catch (const std::exception&) {
    throw ConfigError(
        fmt::format("{}: expected {{\"sequences\": [[token ids], ...]}} with integers", path));
  }
  return sequences;
}

void run_score(const ScoreFlags& flags) {
  const auto sequences = read_sequences(flags.input);
  const std::filesystem::path folder = flags.model;
  const ModelConfig config = weights::read_config_json(folder / "config.json").config;
  model::ForwardConfig forward;
  forward.compute =
      flags.dtype == "double" ? model::ComputeType::kFloat64 : model::ComputeType::kFloat32;
  forward.numerics = flags.numerics;
  forward.device = flags.device;
  forward.with_mtp = config.num_nextn_predict_layers > 0;
  forward.num_threads = flags.threads;
  model::Model model = model::Model::load(folder, forward);
  runner::write_scores(
      model, sequences, {.chunk = flags.chunk, .prefill = flags.prefill}, flags.output);
}

}  // namespace

void add_score(CLI::App& app) {
  auto flags = std::make_shared<ScoreFlags>();
  CLI::App* command =
      app.add_subcommand("score", "Write logits and log-probabilities of given token sequences");
  command->add_option("model", flags->model, "checkpoint folder")->required();
  command->add_option("--input", flags->input, "JSON file {\"sequences\": [[token ids], ...]}")
      ->required();
  command->add_option("--output", flags->output, "safetensors file to write")->required();
  command->add_option("--dtype", flags->dtype, "compute and output type")
      ->check(CLI::IsMember({"float32", "double"}));
  auto* chunk = command->add_option("--chunk", flags->chunk, "tokens per step; 0: whole sequences")
                    ->check(CLI::NonNegativeNumber);
  command
      ->add_option("--prefill", flags->prefill, "tokens of the first step, then one by one; 0: off")
      ->check(CLI::NonNegativeNumber)
      ->excludes(chunk);
  command->add_option("--numerics", flags->numerics, kNumericsHelp)
      ->check(CLI::IsMember(numerics_names()));
  command->add_option("--device", flags->device, "where the model runs: cpu, cuda or cuda:N");
  command->add_option("--threads", flags->threads, "threads of one operator")
      ->check(CLI::Range(1, 1024));
  command->callback([flags] { run_score(*flags); });
}

}  // namespace baleen::apps
