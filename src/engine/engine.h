#pragma once
// The engine: takes generation requests from any thread, schedules them over one executor on its
// own thread, and hands every request's events to its sink. It owns the rules of a token stream:
// end and stop tokens, stop strings, limits, reasoning budget, seeds. Owned by the program; the
// server and rollouts hold a reference. Everything but the constructor and destructor may be called
// from any thread, the sinks included (never from a sink what waits for the engine's thread:
// drain(), stop() and what follows pause() below).
//
//   Engine engine(config, std::move(executor), tokenizer, metrics);
//   engine.start();
//   Status status = engine.submit(std::move(request), sink);   // events follow iff status.ok()
//
// Life of a request: docs/contracts/request_life.md. Plan and step: docs/contracts/batch_plan.md.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/metrics.h"
#include "base/result.h"
#include "cache/cache_stats.h"
#include "engine/draft_metrics.h"
#include "engine/engine_view.h"
#include "engine/executor.h"
#include "engine/pause_mode.h"
#include "engine/request.h"

namespace baleen::text {
class Tokenizer;
}  // namespace baleen::text

namespace baleen::engine {

struct EngineConfig {
  int32_t max_running = 64;           // requests that hold a slot; the executor may have fewer
  int32_t max_queued = 1024;          // requests that wait for a slot; more are refused
  int32_t max_step_tokens = 0;        // tokens of one step; 0: as many as the executor takes
  int32_t max_prefill_chunk = 512;    // prompt tokens of one request in one step
  int32_t max_prefills = 8;           // prompts under way before a full step admits no more
  double decode_interval_ms = 0.0;    // wished between two tokens of a request while prompts run;
                                      // prompts get what it leaves of a step; 0: no wish
  int32_t preemption_threshold = 10;  // a request takes the slot of one whose priority is lower by
                                      // more than this; -1: never
  bool overlap = true;                // a step is planned while the one before runs
  int32_t max_drafts = -1;            // of one row; -1: as many as the executor makes
  bool adaptive_drafts = true;        // fewer where measured acceptance does not pay for them
  double queue_timeout_s = 0.0;       // waiting longer ends with kUnavailable; 0: no limit
  double request_timeout_s = 0.0;     // living longer ends with kUnavailable; 0: no limit
  double step_timeout_s = 300.0;      // a step that takes longer is reported; 0: none is
  std::string weight_version = "default";  // name of the weights at start
  std::vector<int32_t> end_token_ids;      // end-of-sentence of the checkpoint, usually one
  int32_t reasoning_end_id = -1;           // </think>; -1: reasoning budgets are refused

  /// Defaults with the end token and </think> of the tokenizer, where it has them.
  static EngineConfig for_tokenizer(const text::Tokenizer& tokenizer);
  /// Throws ConfigError naming the field that is out of range.
  void validate() const;
};

/// Where time and seeds come from; tests pass their own. Called on the engine's and on submitting
/// threads.
struct EngineEnvironment {
  std::function<std::chrono::steady_clock::time_point()> now;  // empty: the steady clock
  std::function<uint64_t()> draw_seed;                         // empty: the system's entropy
};

enum class EngineState : uint8_t { kNotStarted, kRunning, kDraining, kStopped, kFailed };

const char* engine_state_name(EngineState state);

struct EngineStats {
  EngineState state = EngineState::kNotStarted;
  int32_t num_running = 0;  // hold a slot
  int32_t num_waiting = 0;
  bool is_paused = false;
  int64_t num_steps = 0;
  int64_t num_used_tokens = 0;  // tokens of the running sequences
  int64_t num_preemptions = 0;
  int64_t num_draws = 0;      // rows that drew tokens
  int64_t num_drawn = 0;      // tokens they gave: more than one each where drafts are accepted
  double scheduling_s = 0.0;  // processor time of the engine's thread in steps, executor excluded
  double late_step_s = 0.0;   // how long a step is waited for that does not end; 0: none is late
  DraftTotals drafts;
  ExecutorCapacity capacity;  // as used: slots, step tokens and context after the limits of config
                              // and cache
  cache::CacheStats cache;    // zero without a cache
  cache::PageBudget pages;    // likewise
  std::shared_ptr<const std::string> weight_version;  // never null
  MemoryParts released;                               // not there now: no step is run
  std::string lost_weights;  // why an update that failed half-way left none; empty: there are
};

class Engine {
 public:
  /// Throws ConfigError when the config is out of range or contradicts the executor's capacity.
  /// `tokenizer` is shared with the server and the output streams; it is immutable.
  Engine(EngineConfig config,
         std::unique_ptr<Executor> executor,
         std::shared_ptr<const text::Tokenizer> tokenizer,
         MetricRegistry& metrics,
         EngineEnvironment environment = {});
  /// Stops a running engine; it joins, because the thread uses the members.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Starts the engine's thread. Once.
  void start();

  /// Takes a request. On success the sink gets events until one with `finish`, the last; on failure
  /// the sink gets nothing. `sink` is kept until the last event was delivered.
  /// Errors: kInvalidArgument with `param` = the field of GenerationRequest or SamplingConfig
  /// (prompt too long for the model or for the whole cache: api_code context_length_exceeded),
  /// kResourceExhausted when the queue is full, kUnavailable before start, while draining, after
  /// stop and after an executor failure.
  Status submit(GenerationRequest request, std::shared_ptr<OutputSink> sink);

  /// Ends a request with reason kAbort, in whatever state it is; its last event follows soon after.
  /// Unknown and finished ids, and a second abort, do nothing.
  void abort(std::string_view id);

  /// Stops running steps; returns when that is in effect. New requests are queued. May be called
  /// again with another mode. kUnavailable when the engine does not run.
  Status pause(PauseMode mode);
  /// Goes on after pause(). kInvalidArgument while memory is released.
  Status resume();
  /// Gives up all that the prefix cache keeps. kInvalidArgument while requests run (pause with
  /// kAbort or kRetract first), kUnavailable when the engine does not run.
  Status flush_cache();

  /// Replaces the weights between two steps. kInvalidArgument naming file or tensor when the folder
  /// or source has none of this configuration (the old ones then stay), and while requests are held
  /// in place but the cache is to be flushed. kUnavailable when a source failed half-way: then the
  /// engine runs nothing, is not healthy and refuses requests until an update succeeds.
  Status update_weights(const WeightUpdate& update);
  /// Another name for the weights that are there.
  Status name_weights(const std::string& version, bool abort_requests);
  /// Gives memory back and runs no step until all of it is resumed; requests wait. Weights come
  /// back from where they were read last, or by update_weights(). Parts that are released, or
  /// there, already are no fault. `cache`: kInvalidArgument while requests are held in place.
  Status release_memory(MemoryParts parts);
  Status resume_memory(MemoryParts parts);

  /// Refuses new requests and waits until the accepted ones have ended, at most `timeout`; what is
  /// left then ends with kError (kUnavailable). Stops the thread. True when nothing was cut off.
  bool drain(std::chrono::milliseconds timeout);

  /// Ends all requests with kError (kUnavailable) and stops the thread. Idempotent.
  void stop();

  EngineStats stats() const;
  /// A look inside between two steps (engine_view.h): waits for the engine's thread at most
  /// `timeout`; kUnavailable then, as where the engine does not run. Not from a sink.
  Result<EngineView> look(const EngineLook& what, std::chrono::milliseconds timeout);
  /// False after an executor failure, without whole weights, and while a step takes longer than
  /// step_timeout_s; what is wrong is in health_message().
  bool healthy() const;
  std::string health_message() const;
  const EngineConfig& config() const;
  ExecutorInfo executor_info() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace baleen::engine
