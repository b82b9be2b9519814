#include "train/sft_run.h"

#include <cmath>
#include <fstream>
#include <iterator>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "model/load_parameters.h"
#include "train/loss_plot.h"
#include "train/metrics_file.h"
#include "train/run_sources.h"
#include "train/train_models_for_tests.h"

namespace baleen::train {
namespace {

namespace fs = std::filesystem;

std::string file_text(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

std::string config_fault(const SftConfig& config) {
  try {
    validate(config);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

SftConfig short_job(const fs::path& folder) {
  SftConfig config;
  config.task = "sort";
  config.output = folder / "run";
  config.steps = 6;
  config.global_batch_size = 8;
  config.lr = 1e-3;
  config.lr_warmup_steps = 2;
  config.weight_decay = 0.0;
  return config;
}

TEST(SftConfigTest, MistakesAreOneSentence) {
  const SftConfig job = short_job("/tmp/none");
  EXPECT_EQ(config_fault(job), "accepted");
  const auto with = [&](auto&& change) {
    SftConfig config = job;
    change(config);
    return config_fault(config);
  };
  EXPECT_THAT(with([](SftConfig& c) { c.task = ""; }), testing::StartsWith("model: name"));
  EXPECT_THAT(with([](SftConfig& c) { c.task = "chess"; }), testing::HasSubstr("\"chess\""));
  EXPECT_THAT(with([](SftConfig& c) { c.model = "m"; }), testing::StartsWith("task: "));
  EXPECT_THAT(with([](SftConfig& c) { c.output = ""; }), testing::StartsWith("output: "));
  EXPECT_THAT(with([](SftConfig& c) { c.steps = 0; }),
              testing::StartsWith("steps: 0 is too small"));
  EXPECT_THAT(with([](SftConfig& c) { c.lr = std::nan(""); }), testing::StartsWith("lr: "));
  EXPECT_THAT(with([](SftConfig& c) { c.adam_beta2 = 1.0; }), testing::StartsWith("adam_beta2: "));
  EXPECT_THAT(with([](SftConfig& c) { c.precision = "fp16"; }), testing::HasSubstr("fp8"));
  EXPECT_THAT(with([](SftConfig& c) { c.freeze_indexer = false; }),
              testing::StartsWith("freeze_indexer: no gradient"));
  EXPECT_THAT(with([](SftConfig& c) { c.index_loss_scaling = 0.1; }),
              testing::StartsWith("freeze_indexer: the indexer is frozen"));
  EXPECT_THAT(with([](SftConfig& c) { c.log_probs_chunk_size = 0; }),
              testing::StartsWith("log_probs_chunk_size: "));
}

TEST(SftConfigTest, FilesAreReadByNameAndType) {
  const fs::path folder = fresh_test_folder("config");
  const fs::path file = folder / "train.json";
  const auto read = [&](const std::string& text) -> std::string {
    std::ofstream(file) << text;
    SftConfig config;
    try {
      read_sft_config(file, config);
    } catch (const Error& error) {
      return error.what();
    }
    return sft_config_json(config);
  };
  EXPECT_THAT(
      read(R"({"steps": 7, "lr": 1, "data": ["a", "b"], "fresh": true})"),
      testing::AllOf(testing::HasSubstr("\"steps\": 7"), testing::HasSubstr("\"fresh\": true")));
  EXPECT_THAT(read(R"({"stpes": 7})"), testing::HasSubstr("\"stpes\"; the nearest is \"steps\""));
  EXPECT_THAT(read(R"({"steps": "7"})"), testing::HasSubstr("steps: expected a whole number"));
  EXPECT_THAT(read(R"({"steps": 7.5})"), testing::HasSubstr("steps: expected a whole number"));
  EXPECT_THAT(read(R"({"data": "a"})"), testing::HasSubstr("data: expected a list of strings"));
  EXPECT_THAT(read("{"), testing::HasSubstr("train.json"));
  // What is written reads back as the same.
  SftConfig config = short_job(folder);
  config.freeze_params = {"layers\\.0\\..*"};
  std::ofstream(file) << sft_config_json(config);
  SftConfig again;
  read_sft_config(file, again);
  EXPECT_EQ(sft_config_json(again), sft_config_json(config));
  fs::remove_all(folder);
}

TEST(MetricsFileTest, CutsWhatAResumedRunMakesAgain) {
  const fs::path folder = fresh_test_folder("metrics");
  const fs::path path = folder / "metrics.jsonl";
  {
    MetricsFile file(path, 0);
    for (int step = 0; step < 5; ++step) {
      file.write({{"train/step", step}, {"train/loss", 3.0 - step}, {"x", std::nan("")}});
    }
  }
  std::ofstream(path, std::ios::app) << "{\"train/step\": 5, \"tra";  // ended in the middle
  {
    MetricsFile file(path, 3);
    ASSERT_EQ(file.kept().size(), 3U);
    EXPECT_EQ(file.kept()[2].value, 1.0);
    file.write({{"train/step", 3}});
  }
  EXPECT_EQ(file_text(path),
            "{\"train/step\": 0, \"train/loss\": 3, \"x\": null}\n"
            "{\"train/step\": 1, \"train/loss\": 2, \"x\": null}\n"
            "{\"train/step\": 2, \"train/loss\": 1, \"x\": null}\n"
            "{\"train/step\": 3}\n");
  fs::remove_all(folder);
}

TEST(LossPlotTest, DrawsOnePlacePerStep) {
  std::vector<PlotPoint> points;
  for (int64_t step = 0; step < 5; ++step) {
    points.push_back({step, 4.0 - static_cast<double>(step)});
  }
  points.push_back({5, std::nan("")});
  const std::string svg = loss_plot_svg(points, "train/loss");
  EXPECT_THAT(svg, testing::StartsWith("<svg "));
  EXPECT_THAT(svg, testing::EndsWith("</svg>\n"));
  EXPECT_THAT(svg, testing::HasSubstr("train/loss"));
  const std::size_t line = svg.find("points=\"");
  const std::string places = svg.substr(line, svg.find('"', line + 8) - line);
  EXPECT_EQ(std::count(places.begin(), places.end(), ','), 5);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(loss_plot_svg({}, "none").find("polyline"), std::string::npos);
  for (int64_t step = 5; step < 100; ++step) {
    points.push_back({step, 1.0});
  }
  const std::string with_mean = loss_plot_svg(points, "t");
  EXPECT_NE(with_mean.find("polyline"), with_mean.rfind("polyline"));
}

TEST(ProgressTest, ShowsTheTimeThatIsLeft) {
  const StepReport report{
      .step = 11, .loss = 0.57123, .gradient_norm = 0.71, .learning_rate = 1e-3};
  EXPECT_EQ(progress_text(report,
                          {.num_steps = 160,
                           .step_seconds = 0.166,
                           .tokens_per_second = 5400.0,
                           .eta_seconds = 3725.0}),
            "step 12/160 | loss 0.5712 | |g| 0.710 | lr 1.00e-03 | 5400 tok/s | 0.17 s/step | "
            "left 1:02:05");
}

TEST(SftRunTest, AStoppedRunContinuesToTheBitsOfAnUnbrokenOne) {
  const fs::path folder = fresh_test_folder("sft_run");
  SftConfig config = short_job(folder);
  const SftSummary whole = run_sft(config, {});
  EXPECT_EQ(whole.next_step, 6);
  EXPECT_TRUE(std::isfinite(whole.accuracy));
  const fs::path unbroken = config.output;
  config.output = folder / "broken";
  config.save_interval = 4;
  int steps = 0;
  const SftSummary first =
      run_sft(config, {.say = {}, .on_step = {}, .stop = [&] { return ++steps == 3; }});
  EXPECT_TRUE(first.stopped);
  EXPECT_EQ(first.next_step, 3);
  std::vector<std::string> said;
  const SftSummary second = run_sft(
      config,
      {.say = [&](const std::string& line) { said.push_back(line); }, .on_step = {}, .stop = {}});
  EXPECT_EQ(second.first_step, 3);
  EXPECT_THAT(said, testing::Contains(testing::HasSubstr("continues")));
  EXPECT_EQ(second.last_loss, whole.last_loss);
  for (const char* file : {"model.safetensors", "optim.safetensors"}) {
    EXPECT_EQ(file_text(fs::path(config.output) / "checkpoints" / "iter_000000006" / file),
              file_text(unbroken / "checkpoints" / "iter_000000006" / file))
        << file;
  }
  const std::string metrics = file_text(fs::path(config.output) / "metrics.jsonl");
  EXPECT_EQ(std::count(metrics.begin(), metrics.end(), '\n'), 6);
  EXPECT_THAT(file_text(fs::path(config.output) / "loss.svg"), testing::HasSubstr("polyline"));
  // Nothing is left to do; other settings are refused.
  EXPECT_EQ(run_sft(config, {}).first_step, 6);
  config.lr = 2e-3;
  EXPECT_THROW(run_sft(config, {}), CheckpointError);
  fs::remove_all(folder);
}

TEST(SftRunTest, FinetunesAPublishedModelOnConversations) {
  const fs::path folder = fresh_test_folder("sft_abacus");
  std::ofstream(folder / "data.jsonl")
      << R"({"messages": [{"role": "user", "content": "What is 2 + 2?"}, {"role": "assistant", "content": "five"}]})"
      << "\n"
      << R"({"messages": [{"role": "user", "content": "Say hello."}, {"role": "assistant", "content": "bye"}]})"
      << "\n";
  SftConfig config;
  config.model = "models/abacus";
  config.data = {folder / "data.jsonl"};
  config.output = folder / "run";
  config.export_to = folder / "model";
  config.steps = 12;
  config.global_batch_size = 2;
  config.lr = 2e-3;
  config.weight_decay = 0.0;
  config.mtp_loss_scaling = 0.2;
  config.recompute = "block";
  std::vector<double> losses;
  run_sft(config,
          {.say = {},
           .on_step = [&](const StepReport& report,
                          const SftProgress&) { losses.push_back(report.loss); },
           .stop = {}});
  EXPECT_LT(losses.back(), 0.3 * losses.front());
  const model::ModelParameters trained =
      model::load_parameters(folder / "model", at::TensorOptions(at::kFloat), true);
  EXPECT_EQ(trained.blocks[1].moe.w1.format, ops::LinearFormat::kFp4);
  EXPECT_TRUE(fs::exists(folder / "model" / "tokenizer.json"));
  // A second run would write over it.
  EXPECT_THROW(run_sft(config, {}), ConfigError);
  fs::remove_all(folder);
}

TEST(NanoModelTest, HasTheParametersItShould) {
  model::ModelParameters params = fresh_nano(nano_config(), 1, at::kFloat);
  int64_t count = 0;
  int64_t biases = 0;
  model::for_each_parameter(params, [&](const model::ParameterInfo& info, at::Tensor& value) {
    count += info.role == model::ParameterRole::kHashTable ? 0 : value.numel();
    biases += info.role == model::ParameterRole::kRouterBias ? value.numel() : 0;
  });
  EXPECT_EQ(biases, 24);
  EXPECT_EQ(count + 8, 581069);  // the published count gives the table-routed layer a bias, too
  EXPECT_NEAR(params.embed.std().item<double>(), 1.0, 0.05);
  EXPECT_NEAR(params.head.std().item<double>(), 0.5 / 8.0, 0.005);
  EXPECT_NEAR(params.blocks[1].moe.w2.weight.std().item<double>(), 0.5 / 8.0, 0.002);
  EXPECT_NEAR(params.blocks[1].attention.wkv.weight.std().item<double>(), 1.0 / 8.0, 0.01);
  EXPECT_EQ(params.blocks[2].hc_ffn.base[8].item<float>(), 3.0F);
  EXPECT_EQ(params.blocks[2].hc_ffn.base[9].item<float>(), 0.0F);
}

}  // namespace
}  // namespace baleen::train
