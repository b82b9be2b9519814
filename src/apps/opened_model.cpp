#include "apps/opened_model.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <memory>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

#include "apps/model_source.h"
#include "apps/number_check.h"
#include "apps/progress.h"
#include "base/error.h"
#include "base/log.h"
#include "model/forward.h"
#include "runner/decode/kernel_decode.h"
#include "runner/decode/prompt_forms.h"
#include "runner/model_executor.h"
#include "weights/config_json.h"

namespace baleen::apps {

void add_model_flags(CLI::App& command, OpenModelOptions& options) {
  command.add_option("model", options.folder, "Checkpoint folder")->required();
  add_load_flags(command, options);
  add_capacity_flags(command,
                     options,
                     {.context = "--max-context",
                      .running = "--max-running",
                      .queued = "--max-queued",
                      .prefill_chunk = "--max-prefill-chunk"});
}

void add_load_flags(CLI::App& command, OpenModelOptions& options) {
  command.add_option("--numerics", options.numerics, kNumericsHelp)
      ->check(CLI::IsMember(numerics_names()));
  command
      .add_option(
          "--chat-profile", options.chat_profile, "Prompt format (default: as the checkpoint says)")
      ->check(CLI::IsMember({"v4", "v4-0731", "v4.1"}));
  command.add_option("--device", options.device, "Where the model runs: cpu, cuda or cuda:N");
  command
      .add_option("--decode",
                  options.decode,
                  "What runs tokens: portable (tensor operators), kernels, or auto (kernels on a "
                  "GPU where they cover the model and agree with the operators)")
      ->check(CLI::IsMember({"auto", "kernels", "portable"}));
  command.add_option("--threads", options.num_threads, "CPU threads of one operator")
      ->check(CLI::Range(1, 1024));
  options.speculation.add(command);
  command.add_flag("--record-choices",
                   options.record_choices,
                   "Keep the experts and picked entries of all cached tokens");
}

void add_capacity_flags(CLI::App& command,
                        OpenModelOptions& options,
                        const CapacityFlagNames& names) {
  constexpr int32_t kMost = std::numeric_limits<int32_t>::max();
  command
      .add_option(
          names.context, options.max_context, "Tokens of one sequence; 0: as config.json says")
      ->check(CLI::Range(int64_t{0}, int64_t{kMost}));
  command.add_option(names.running, options.max_running, "Requests that run at a time")
      ->check(CLI::Range(1, kMost));
  command.add_option(names.queued, options.max_queued, "Requests that wait for their turn")
      ->check(CLI::Range(0, kMost));
  command
      .add_option(names.prefill_chunk,
                  options.max_prefill_chunk,
                  "Prompt tokens of one request in one step [512, on kernels up to 1024]")
      ->check(CLI::Range(1, kMost));
  command.add_option("--max-step-tokens", options.max_step_tokens, "Tokens of one forward step")
      ->check(CLI::Range(1, kMost));
  command
      .add_option(
          "--cache-mib",
          options.cache_mib,
          "Memory of the prefix cache, MiB; 0: sequences share nothing; -1: on kernels what "
          "the device has left, else 256")
      ->check(CLI::Range(-1, 1 << 20));
  command
      .add_option("--spare-mib",
                  options.spare_mib,
                  "With --cache-mib -1: memory of the device that nobody takes, MiB")
      ->check(CLI::Range(0, 1 << 20));
}

void add_schedule_flags(CLI::App& command, OpenModelOptions& options) {
  constexpr double kMostSeconds = 1e6;
  command
      .add_option("--prefill-max-requests",
                  options.max_prefills,
                  "Prompts under way before a full step admits no more")
      ->check(CLI::Range(1, 1 << 20));
  command
      .add_option("--decode-interval-ms",
                  options.decode_interval_ms,
                  "Milliseconds wished between two tokens while prompts run; 0: no wish")
      ->check(number_in(0.0, 1e6));
  command
      .add_option("--priority-scheduling-preemption-threshold",
                  options.preemption_threshold,
                  "A request takes the slot of one whose priority is lower by more; -1: never")
      ->check(CLI::Range(-1, 1 << 30));
  command
      .add_option("--queue-timeout",
                  options.queue_timeout_s,
                  "Seconds that a request may wait to be admitted; 0: no limit")
      ->check(number_in(0.0, kMostSeconds));
  command
      .add_option("--request-timeout",
                  options.request_timeout_s,
                  "Seconds that a request may take in all; 0: no limit")
      ->check(number_in(0.0, kMostSeconds));
  command
      .add_option("--watchdog-timeout",
                  options.step_timeout_s,
                  "Seconds after which a step that does not end is reported; 0: never")
      ->check(number_in(0.0, kMostSeconds));
  command.add_flag("--disable-overlap-schedule",
                   options.no_overlap,
                   "Plan a step when the one before is done, not while it runs");
}

void apply_schedule(const OpenModelOptions& options, engine::EngineConfig& config) {
  config.max_running = options.max_running;
  config.max_queued = options.max_queued;
  constexpr int32_t kSomeTokens = 512;
  config.max_prefill_chunk = options.max_prefill_chunk.value_or(kSomeTokens);
  config.max_prefills = options.max_prefills;
  config.decode_interval_ms = options.decode_interval_ms;
  config.preemption_threshold = options.preemption_threshold;
  config.queue_timeout_s = options.queue_timeout_s;
  config.request_timeout_s = options.request_timeout_s;
  config.step_timeout_s = options.step_timeout_s;
  config.overlap = !options.no_overlap;
  config.weight_version = options.weight_version;
}

namespace {

/// Why the kernels run nothing of this model; empty where they may.
std::string kernels_refusal(const OpenModelOptions& options,
                            const ModelConfig& config,
                            const model::ForwardConfig& forward) {
  if (options.decode == "portable") {
    return "asked for";
  }
  if (options.device == "cpu") {
    return "device is cpu";
  }
  if (options.cache_mib == 0) {
    return "no prefix cache (--cache-mib 0)";
  }
  const model::ModelForm form = model::model_form(config, forward);
  return runner::kernel_decode_refusal(
      config,
      form.formats,
      form.numerics,
      forward.max_context > 0 ? forward.max_context : config.max_position_embeddings);
}

/// Model and executor. With kernels the layers are in memory as these read them, and nowhere else.
std::unique_ptr<runner::ModelExecutor> make_executor(const std::string& name,
                                                     model::ForwardConfig forward,
                                                     runner::RunnerConfig runner,
                                                     bool kernels) {
  forward.keep_layers = !kernels;
  if (kernels) {
    runner.decode_path = runner::kernel_decode();
  }
  return std::make_unique<runner::ModelExecutor>(
      model::Model::load(runner.weights_folder, forward), runner, name);
}

/// By kernels where the options and the model allow it, and says so. "auto" goes on without them
/// when the files are stored otherwise or their logits are not those of the operators.
std::unique_ptr<runner::ModelExecutor> choose_executor(const OpenModelOptions& options,
                                                       const ModelConfig& config,
                                                       const std::string& name,
                                                       const model::ForwardConfig& forward,
                                                       const runner::RunnerConfig& runner,
                                                       bool& on_kernels) {
  on_kernels = false;
  std::string reason = kernels_refusal(options, config, forward);
  if (reason.empty()) {
    try {
      std::unique_ptr<runner::ModelExecutor> executor = make_executor(name, forward, runner, true);
      log::info("apps", "rows run on path=kernels");
      on_kernels = true;
      return executor;
    } catch (const Error& error) {
      reason = error.what();
    }
  }
  if (options.decode == "kernels") {
    throw ConfigError("--decode kernels: " + reason);
  }
  log::info("apps", "rows run on path=portable reason=\"{}\"", reason);
  return make_executor(name, forward, runner, false);
}

}  // namespace

OpenedModel open_model(const OpenModelOptions& options) {
  const std::filesystem::path folder = options.folder;
  if (!std::filesystem::is_directory(folder)) {
    throw ConfigError(fmt::format("{} is no folder", folder.string()));
  }
  OpenedModel out;
  out.name = std::filesystem::weakly_canonical(folder).filename().string();
  const weights::ParsedConfig parsed = weights::read_config_json(folder / "config.json");
  out.generation = weights::read_generation_config(folder, parsed.config);
  out.chat_profile = choose_chat_profile(
      folder, out.generation.chat_profile, parsed.has_dspark_keys, options.chat_profile);
  out.tokenizer = text::Tokenizer::load(folder / "tokenizer.json");
  if (out.tokenizer->vocab_size() > parsed.config.vocab_size) {
    throw ConfigError(fmt::format("{}: tokenizer.json has {} ids, config.json a vocab_size of {}",
                                  folder.string(),
                                  out.tokenizer->vocab_size(),
                                  parsed.config.vocab_size));
  }

  const runner::DraftOptions drafts =
      options.speculation.resolve(parsed.config, parsed.has_dspark_keys);
  Progress progress(out.name, "loaded", options.show_progress);
  model::ForwardConfig forward;
  forward.numerics = options.numerics;
  forward.device = options.device;
  forward.max_context = options.max_context;
  forward.num_threads = options.num_threads;
  forward.with_mtp = drafts.max_drafts > 0;
  forward.max_rollback = drafts.max_drafts;
  forward.record_choices = options.record_choices;
  // Files may be read again later: by the check of the kernels, and when weights change.
  const auto loading = std::make_shared<std::atomic<bool>>(true);
  forward.load_progress = [&progress, loading](uint64_t done, uint64_t total) {
    if (*loading) {
      progress.update(std::min(done, total), total);
    }
  };

  runner::RunnerConfig runner;
  runner.num_slots = options.max_running;
  runner.max_step_tokens = options.max_step_tokens;
  constexpr int64_t kSomeMib = 256;
  runner.fill_device = options.cache_mib < 0;
  runner.cache_bytes = (runner.fill_device ? kSomeMib : int64_t{options.cache_mib}) << 20;
  runner.spare_bytes = int64_t{options.spare_mib} << 20;
  runner.record_bytes = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE) / 2;
  runner.drafts = drafts;
  runner.weights_folder = folder.string();
  bool on_kernels = false;
  out.executor = choose_executor(options, parsed.config, out.name, forward, runner, on_kernels);
  *loading = false;
  progress.finish();
  out.load_seconds = progress.seconds();
  out.file_bytes = progress.total_bytes();
  out.engine_config = engine::EngineConfig::for_tokenizer(*out.tokenizer);
  out.engine_config.end_token_ids.clear();
  for (const int64_t id : out.generation.eos_token_ids) {
    out.engine_config.end_token_ids.push_back(static_cast<int32_t>(id));
  }
  apply_schedule(options, out.engine_config);
  if (on_kernels && !options.max_prefill_chunk) {
    const int32_t rows = options.max_running * (drafts.max_drafts + 1);
    out.engine_config.max_prefill_chunk =
        std::max(out.engine_config.max_prefill_chunk, runner::kMostPassTokens - rows);
  }
  out.engine_config.adaptive_drafts = !options.speculation.fixed_depth;
  log::info("apps",
            "model={} device={} chat_profile={} reason=\"{}\" load_s={:.2f}",
            out.name,
            options.device,
            out.chat_profile.name,
            out.chat_profile.reason,
            out.load_seconds);
  log::info("apps",
            "speculation drafts={} sampling={} depth={}",
            drafts.max_drafts,
            options.speculation.sampling,
            options.speculation.fixed_depth ? "fixed" : "adaptive");
  if (drafts.simulate_accept_length > 0.0) {
    log::warn("apps",
              "SIMULATED ACCEPTANCE of {} tokens per step: all answers are wrong; for benchmarks "
              "only",
              drafts.simulate_accept_length);
  }
  return out;
}

}  // namespace baleen::apps
