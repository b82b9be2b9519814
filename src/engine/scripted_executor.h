#pragma once
// An executor without weights: emits what a script says for each prompt. It lets tests of the
// engine and of the API run the whole path from request to answer. Owned by an Engine, called on
// its step thread; the lookup is called there too.
//
//   ScriptedExecutor::Options options;
//   options.lookup = [&](std::span<const int32_t> prompt) { return script_of_text(tokenizer, "42");
//   }; Engine engine(config, std::make_unique<ScriptedExecutor>(options), tokenizer, metrics);
//
// Choices, where capacity.choices says that they are recorded, are those of scripted_choices.h; a
// row that emits several tokens has the record of a refused draft behind theirs. Log-probs are
// synthetic: the emitted token has ln 1/2, the alternative k (id + k) has
// ln 2^-(k+1), every prompt token has ln 1/2. With capacity.cache prompts continue behind prefix
// hits, of which the tokens are read back from the pages; choices are then not recorded.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/accepted_tokens.h"
#include "engine/executor.h"
#include "engine/scripted_pages.h"

namespace baleen::text {
class Tokenizer;
}  // namespace baleen::text

namespace baleen::engine {

enum class ScriptEnd : uint8_t {
  kStop,    // after the last token the end token follows
  kLength,  // after the last token the sequence is out of room
  kRepeat,  // starts over, for long runs
};

/// What one sequence emits. A step's tokens come together, as accepted drafts do; they are cut at
/// SamplingRow::accept_limit and, where the capacity has drafts, at what the row could give. A
/// forced token is emitted in place of the script, which then goes on behind its own next
/// occurrence of that token, if it has one. While the next scripted token is forbidden, `filler_id`
/// comes instead; while a mask forbids it, the lowest id that the mask allows.
struct Script {
  std::vector<std::vector<int32_t>> steps;  // none empty
  ScriptEnd end = ScriptEnd::kStop;
  int32_t filler_id = 0;
  // Instead of the steps: each token is drawn evenly from all that are allowed, as a function of
  // this seed and the token's number.
  std::optional<uint64_t> random_seed;
  std::optional<int32_t> nan_after;   // tokens emitted before the logits turn NaN
  std::optional<int32_t> fail_after;  // tokens emitted before the executor fails (throws)
};

using ScriptLookup = std::function<Script(std::span<const int32_t> prompt)>;

/// One token per step.
Script script_of_text(const text::Tokenizer& tokenizer,
                      std::string_view text,
                      ScriptEnd end = ScriptEnd::kStop);
/// One step per piece; a piece that is no single token gives a step of several.
Script script_of_pieces(const text::Tokenizer& tokenizer,
                        std::span<const std::string> pieces,
                        ScriptEnd end = ScriptEnd::kStop);
/// One token per step.
Script script_of_ids(std::span<const int32_t> ids, ScriptEnd end = ScriptEnd::kStop);

class ScriptedExecutor final : public Executor {
 public:
  struct Options {
    ScriptLookup lookup;  // called once per sequence, when its prompt is complete
    ExecutorCapacity capacity{
        .num_slots = 64, .max_context = 4096, .max_step_tokens = 2048, .vocab_size = 1 << 18};
    // Scripts give several tokens in a step: max_accepted is raised to this.
    static constexpr int32_t kMostAccepted = 1024;
    int32_t end_token_id = 1;
    std::chrono::microseconds step_delay{0};
    std::string model_name = "scripted";
    /// Called with the folder of an update; empty: there are no weights to replace.
    std::function<Status(const std::string& folder)> on_update = {};
    std::shared_ptr<const cache::TokenRoutes> token_routes = nullptr;
  };

  /// Throws ConfigError when the options are out of range.
  explicit ScriptedExecutor(Options options);

  ExecutorCapacity capacity() const override { return options_.capacity; }
  ExecutorInfo info() const override;
  Ticket submit(const BatchPlan& plan, const MaskProvider& masks) override;
  StepResult wait(Ticket ticket) override;
  std::shared_ptr<const cache::TokenRoutes> token_routes() const override {
    return options_.token_routes;
  }
  Status update_weights(const std::string& folder) override;
  /// There is nothing to release; a step in the meantime is a broken contract (checked).
  Status release_memory(MemoryParts parts) override;
  Status resume_memory(MemoryParts parts) override;

 private:
  struct Sequence {
    std::vector<int32_t> prompt;
    std::vector<int32_t> generated;
    Script script;
    size_t step = 0;    // next step of the script
    size_t offset = 0;  // next token in it
    int32_t emitted = 0;
    int32_t told = 0;  // tokens emitted before a preemption
    bool loaded = false;
  };

  void begin(const SlotReset& reset);
  RowResult run_row(const BatchRow& row, const BatchPlan& plan, const MaskProvider& masks);
  void write_pages(RequestSlot slot, size_t position, std::span<const int32_t> ids);
  void record(const Sequence& sequence, const BatchRow& row, RowResult& result) const;
  void emit(Sequence& sequence,
            const SamplingRow& sampling,
            int32_t accept_limit,
            RowResult& result);
  std::optional<int32_t> next_scripted(const Sequence& sequence) const;
  bool may_draw(const SamplingRow& sampling, int32_t id) const;
  /// -1: nothing is allowed.
  int32_t draw(const Sequence& sequence, const SamplingRow& sampling) const;
  void advance(Sequence& sequence) const;

  Options options_;
  std::vector<Sequence> sequences_;  // by slot
  std::optional<ScriptedPages> pages_;
  std::vector<uint32_t> mask_;  // of the row being run; empty: none
  StepResult result_;
  AcceptedTokens accepted_;
  Ticket ticket_{0};
  bool in_flight_ = false;
  MemoryParts released_;
};

}  // namespace baleen::engine
