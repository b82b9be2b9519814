#pragma once
// A model folder made ready to serve: weights, tokenizer, end tokens and prompt format. Used by
// every command that generates; called once at start.
//
//   OpenModelOptions options;
//   add_model_flags(*command, options);
//   OpenedModel model = open_model(options);
//   Engine engine(model.engine_config, std::move(model.executor), model.tokenizer, metrics);

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include <CLI/CLI.hpp>

#include "apps/chat_profile_choice.h"
#include "apps/speculation_flags.h"
#include "engine/engine.h"
#include "engine/executor.h"
#include "text/tokenizer.h"
#include "weights/generation_config.h"

namespace baleen::apps {

struct OpenModelOptions {
  std::filesystem::path folder;
  std::string numerics = "checkpoint";
  std::string device = "cpu";
  std::string decode = "auto";     // kernels where they can; or "kernels", "portable"
  std::string chat_profile;        // empty: as the checkpoint says
  int64_t max_context = 0;         // tokens; 0: what config.json allows
  int32_t max_running = 64;        // requests at a time
  int32_t max_queued = 1024;       // requests that wait
  int32_t max_step_tokens = 2048;  // tokens of one forward step
  // Prompt tokens of one request in one step; not given: 512, on kernels what fills a pass with the
  // running rows beside it.
  std::optional<int32_t> max_prefill_chunk;
  int32_t max_prefills = 8;           // prompts under way before a full step admits no more
  double decode_interval_ms = 0.0;    // wished between two tokens while prompts run; 0: none
  int32_t preemption_threshold = 10;  // difference in priority that takes a running one's slot
  double queue_timeout_s = 0.0;       // 0: none
  double request_timeout_s = 0.0;     // 0: none
  double step_timeout_s = 300.0;      // a step that takes longer is reported; 0: none is
  bool no_overlap = false;            // take a step's result before the next is planned
  int32_t cache_mib = 256;      // of the shared prefix cache; 0: none, -1: what the device has left
  int32_t spare_mib = 1024;     // that then stay free
  int32_t num_threads = 1;      // of one operator
  bool record_choices = false;  // routes and picks, for requests that ask
  std::string weight_version = "default";  // name of the weights in answers
  SpeculationFlags speculation;
  bool show_progress = true;
};

/// The folder as positional argument and a flag for each option but show_progress.
void add_model_flags(CLI::App& command, OpenModelOptions& options);

/// The parts of these, for commands that name flags otherwise or do without some. Every value is
/// held against its range when the command line is read, before anything is loaded.
void add_load_flags(CLI::App& command, OpenModelOptions& options);
struct CapacityFlagNames {
  const char* context;
  const char* running;
  const char* queued;
  const char* prefill_chunk;
};
void add_capacity_flags(CLI::App& command,
                        OpenModelOptions& options,
                        const CapacityFlagNames& names);

/// Who runs when: for commands whose engine many requests share.
void add_schedule_flags(CLI::App& command, OpenModelOptions& options);
/// Puts them into an engine's config.
void apply_schedule(const OpenModelOptions& options, engine::EngineConfig& config);

struct OpenedModel {
  std::string name;  // the folder's last part
  std::unique_ptr<engine::Executor> executor;
  std::shared_ptr<const text::Tokenizer> tokenizer;  // shared by engine, server and streams
  engine::EngineConfig engine_config;
  ChatProfileChoice chat_profile;
  weights::GenerationConfig generation;
  double load_seconds = 0.0;
  uint64_t file_bytes = 0;  // read from the checkpoint
};

/// Throws Error naming file, key or tensor.
OpenedModel open_model(const OpenModelOptions& options);

}  // namespace baleen::apps
