#pragma once
// What the engine's tests share: a started engine over scripts that are found by the first token of
// the prompt, and requests for it. Tests only.
//
//   ScriptedBench bench;
//   const int32_t prompt = bench.script(script_of_text(bench.tokenizer(), "hello"));
//   auto sink = bench.submit(bench.request(prompt));

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "engine/collecting_sink.h"
#include "engine/engine.h"
#include "engine/scripted_executor.h"
#include "text/tokenizer.h"

namespace baleen::engine {

inline constexpr std::chrono::milliseconds kPatience{60000};

class ScriptedBench {
 public:
  struct Options {
    EngineConfig config;
    ExecutorCapacity capacity{
        .num_slots = 8, .max_context = 400, .max_step_tokens = 64, .vocab_size = 297};
    std::chrono::microseconds step_delay{0};
    bool start = true;
    EngineEnvironment environment;
  };

  ScriptedBench() : ScriptedBench(Options()) {}
  explicit ScriptedBench(Options options) {
    const EngineConfig tokens = EngineConfig::for_tokenizer(tokenizer());
    options.config.end_token_ids = tokens.end_token_ids;
    options.config.reasoning_end_id = tokens.reasoning_end_id;
    ScriptedExecutor::Options executor;
    executor.capacity = options.capacity;
    executor.step_delay = options.step_delay;
    executor.end_token_id = tokens.end_token_ids.at(0);
    executor.lookup = [this](std::span<const int32_t> prompt) {
      std::lock_guard lock(mutex_);
      return scripts_.at(prompt[0]);
    };
    engine_ = std::make_unique<Engine>(options.config,
                                       std::make_unique<ScriptedExecutor>(executor),
                                       shared_tokenizer(),
                                       metrics_,
                                       options.environment);
    if (options.start) {
      engine_->start();
    }
  }

  static std::shared_ptr<const text::Tokenizer> shared_tokenizer() {
    static const auto tokenizer = text::Tokenizer::load("src/text/testdata/tiny_tokenizer.json");
    return tokenizer;
  }
  static const text::Tokenizer& tokenizer() { return *shared_tokenizer(); }

  /// First token of the prompts that get this script.
  int32_t script(Script script) {
    std::lock_guard lock(mutex_);
    const auto key = static_cast<int32_t>(10 + scripts_.size());
    scripts_[key] = std::move(script);
    return key;
  }
  int32_t script(std::string_view text, ScriptEnd end = ScriptEnd::kStop) {
    return script(script_of_text(tokenizer(), text, end));
  }

  GenerationRequest request(int32_t script_key, int32_t num_prompt_tokens = 3) {
    GenerationRequest request;
    request.id = "r" + std::to_string(next_id_++);
    request.prompt.assign(static_cast<size_t>(num_prompt_tokens), 5);
    request.prompt[0] = script_key;
    return request;
  }

  std::shared_ptr<CollectingSink> submit(GenerationRequest request) {
    auto sink = std::make_shared<CollectingSink>();
    const Status status = engine_->submit(std::move(request), sink);
    EXPECT_TRUE(status.ok()) << status.message;
    return sink;
  }
  /// Submits and waits for the end.
  std::shared_ptr<CollectingSink> run(GenerationRequest request) {
    auto sink = submit(std::move(request));
    EXPECT_TRUE(sink->wait_for(kPatience));
    return sink;
  }

  Engine& engine() { return *engine_; }
  MetricRegistry& metrics() { return metrics_; }
  bool page_has(const std::string& line) {
    return ("\n" + metrics_.expose()).find("\n" + line + "\n") != std::string::npos;
  }

 private:
  MetricRegistry metrics_;
  std::mutex mutex_;
  std::map<int32_t, Script> scripts_;
  std::atomic<int> next_id_ = 0;
  std::unique_ptr<Engine> engine_;  // last: its thread uses the members above
};

}  // namespace baleen::engine
