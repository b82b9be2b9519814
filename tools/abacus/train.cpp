// Trains models/abacus: reads config.json and tokenizer.json of the model's folder, trains on
// generated conversations with the project's own model body, and writes model.safetensors there. A
// run can be cut by --minutes and continued by the same command; the same seed and device give the
// same model.
//
//   abacus_train --model models/abacus --state /tmp/abacus --device cuda --workers 14
//   abacus_train --start models/abacus --below-zero-share 0.1 --plain-share 0 --output run/model
//   abacus_train --model models/abacus --state /tmp/abacus --export-only

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>

#include <ATen/ATen.h>
#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "abacus/batch.h"
#include "abacus/phrases.h"
#include "abacus/trainer.h"
#include "text/tokenizer.h"
#include "train/published.h"
#include "weights/config_json.h"

namespace {

using namespace baleen;
using namespace baleen::abacus;

struct Options {
  std::filesystem::path model = "models/abacus";
  std::filesystem::path start;  // folder of the checkpoint to begin with; empty: fresh weights
  std::filesystem::path state;
  std::filesystem::path output;  // folder of the checkpoint; empty: none is written
  std::string phrases = "tools/abacus/phrases.json";
  std::string device = "cpu";
  uint64_t seed = 1;
  int workers = 2;
  double minutes = 1e9;
  int64_t log_every = 50;
  int64_t judge_every = 500;
  int64_t export_every = 0;  // steps; writes OUTPUT-STEP; 0: only the last one is written
  bool compare_devices = false;
  bool export_only = false;
  Recipe recipe;
};

constexpr uint64_t kJudgeSeed = 77;  // rows that are judged; their pairs are unseen in any case

template <class... Args>
void say(fmt::format_string<Args...> format, Args&&... args) {
  fmt::print("{}\n", fmt::format(format, std::forward<Args>(args)...));
  std::fflush(stdout);
}

void judge_and_say(Trainer& trainer, const RowEncoder& encoder, int64_t num_rows, bool quantized) {
  for (const BatchShape& shape : {BatchShape{512, 64, 0.5},
                                  BatchShape{64, 640, 0.5},
                                  BatchShape{512, 64, 0.5, /*below_zero_share=*/1.0},
                                  BatchShape{64, 640, 0.5, /*below_zero_share=*/0.5}}) {
    Report report;
    for (int64_t first = 0; first < num_rows / (shape.tokens / 64); first += shape.rows) {
      report.add(trainer.judge_rows(
          encoder.encode_batch(kJudgeSeed, static_cast<uint64_t>(first), shape, Pairs::kHeldOut),
          quantized));
    }
    say("judged step={} unseen_pairs tokens={} below_zero={} quantized={} {}",
        trainer.next_step(),
        shape.tokens,
        shape.below_zero_share,
        quantized,
        report.text());
  }
}

/// One small batch on the CPU and on the chosen device: the same losses and gradient length.
void compare_devices(const ModelConfig& config, const Options& options, const RowEncoder& encoder) {
  const Batch batch = encoder.encode_batch(options.seed, 0, {8, 192, 0.5}, Pairs::kTraining);
  for (const bool quantized : {false, true}) {
    for (const char* name : {"cpu", options.device.c_str()}) {
      Trainer trainer(config, options.recipe, options.seed, at::Device(name));
      const StepLosses losses = trainer.probe(batch, quantized);
      say("compare device={} quantized={} main={:.6f} mtp={:.6f} index={:.6f} balance={:.6f} "
          "gradient={:.6f}",
          name,
          quantized,
          losses.main.item<double>(),
          losses.mtp.item<double>(),
          losses.index.item<double>(),
          losses.balance.item<double>(),
          trainer.gradient_norm().item<double>());
    }
  }
}

/// The checkpoint with the tokenizer's files, as `baleen serve` reads it.
void write_model(const Trainer& trainer,
                 const Options& options,
                 const std::filesystem::path& folder) {
  train::write_published(trainer.exact(), folder, {});
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "generation_config.json"}) {
    std::filesystem::copy_file(options.model / name, folder / name);
  }
  say("wrote {}", folder.string());
}

void train(Trainer& trainer, const Options& options, const RowEncoder& encoder) {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
  const Recipe& recipe = options.recipe;
  BatchStream batches(encoder, options.seed, recipe.shapes(), trainer.next_step(), options.workers);
  const int64_t first_step = trainer.next_step();
  while (trainer.next_step() < recipe.num_steps && seconds() < 60.0 * options.minutes) {
    const int64_t step = trainer.next_step();
    const StepLosses losses = trainer.step(batches.next());
    if (step % options.log_every == 0 || step == first_step + 1) {
      say("step {} main={:.4f} mtp={:.4f} index={:.4f} balance={:.4f} gradient={:.3f} rate={:.2e} "
          "quantized={} seconds={:.1f} per_step={:.4f}",
          step,
          losses.main.item<double>(),
          losses.mtp.item<double>(),
          losses.index.item<double>(),
          losses.balance.item<double>(),
          trainer.gradient_norm().item<double>(),
          recipe.learning_rate(step),
          recipe.quantized(step),
          seconds(),
          seconds() / static_cast<double>(step - first_step + 1));
    }
    if ((step + 1) % options.judge_every == 0) {
      judge_and_say(trainer, encoder, 1024, recipe.quantized(step));
    }
    if (options.export_every > 0 && (step + 1) % options.export_every == 0) {
      write_model(trainer, options, fmt::format("{}-{:05}", options.output.string(), step + 1));
    }
  }
}

int run(const Options& options) {
  const ModelConfig config = weights::read_config_json(options.model / "config.json").config;
  const RowEncoder encoder(read_phrases(options.phrases),
                           text::Tokenizer::load(options.model / "tokenizer.json"));
  if (options.compare_devices) {
    compare_devices(config, options, encoder);
  }
  Trainer trainer(config, options.recipe, options.seed, at::Device(options.device));
  if (!options.start.empty()) {
    trainer.start_from(options.start);
  }
  const bool continued = !options.state.empty() && trainer.load(options.state);
  say("abacus steps={} next_step={} continued={} device={} seed={}",
      options.recipe.num_steps,
      trainer.next_step(),
      continued,
      options.device,
      options.seed);
  if (!options.export_only) {
    train(trainer, options, encoder);
    judge_and_say(trainer, encoder, 2048, true);
    if (!options.state.empty()) {
      trainer.save(options.state);
    }
  }
  if (!options.output.empty()) {
    write_model(trainer, options, options.output);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Trains the small arithmetic model that ships with the project"};
  Options options;
  Recipe& recipe = options.recipe;
  app.add_option("--model", options.model, "folder with config.json and tokenizer.json");
  app.add_option("--start", options.start, "checkpoint to begin with; without it fresh weights");
  app.add_option("--state", options.state, "folder that holds a run to continue");
  app.add_option("--output", options.output, "folder of the checkpoint to write");
  app.add_option("--phrases", options.phrases, "wordings");
  app.add_option("--device", options.device, "cpu or cuda");
  app.add_option("--seed", options.seed, "of parameters and conversations");
  app.add_option("--workers", options.workers, "threads that write conversations");
  app.add_option("--minutes", options.minutes, "stops after these, to be continued");
  app.add_option("--steps", recipe.num_steps, "length of the whole run");
  app.add_option("--peak-rate", recipe.peak_learning_rate, "learning rate after warm-up");
  app.add_option("--plain-share", recipe.plain_share, "share of steps before quantised training");
  app.add_option("--warmup-steps", recipe.warmup_steps, "steps until the peak rate");
  app.add_option("--late-mtp-from", recipe.late_mtp_from, "share of steps before the lower weight");
  app.add_option(
      "--below-zero-share", recipe.below_zero_share, "of the questions for a difference");
  app.add_option("--tokens-per-step", recipe.tokens_per_step, "batch size");
  app.add_option("--log-every", options.log_every, "steps");
  app.add_option("--judge-every", options.judge_every, "steps");
  app.add_option("--export-every", options.export_every, "steps; writes OUTPUT-STEP each time")
      ->check(CLI::NonNegativeNumber);
  app.add_flag("--compare-devices", options.compare_devices, "first compare the device to the CPU");
  app.add_flag("--export-only", options.export_only, "write the checkpoint of the saved run");
  CLI11_PARSE(app, argc, argv);
  try {
    return run(options);
  } catch (const std::exception& fault) {
    fmt::print(stderr, "abacus_train: {}\n", fault.what());
    return 1;
  }
}
