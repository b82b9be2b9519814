#pragma once
// Where prompts come from. Prompt `number` of a run is a pure function of the source, so that the
// place of a run in its data is one number. Any thread.
//
//   auto source = task_prompts("sort", seed);
//   Prompt prompt = source->prompt(17);

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rl/chat_prompt.h"
#include "rl/rollout_sample.h"

namespace baleen::rl {

class PromptSource {
 public:
  virtual ~PromptSource() = default;
  virtual Prompt prompt(int64_t number) const = 0;
  virtual int64_t epoch_size() const = 0;  // 0: without end
  /// Of the evaluation.
  virtual Prompt evaluation_prompt(int64_t number) const = 0;
  virtual int64_t num_evaluation_prompts() const = 0;
  /// What a resumed run must have in common.
  virtual std::string digest() const = 0;
};

/// A built-in task of the nano model (train/nano_tasks.h).
std::unique_ptr<PromptSource> task_prompts(const std::string& task, uint64_t seed);

/// Sums and differences up to 99, below zero too, in the wordings and the chat format that
/// models/abacus knows; every other one in thinking mode where `writer` alternates. Evaluation:
/// pairs of numbers that training never has. The writer is copied.
std::unique_ptr<PromptSource> abacus_prompts(const ChatPromptWriter& writer, uint64_t seed);

struct PromptFileOptions {
  std::string input_key = "input";
  std::string label_key;  // empty: no labels
  std::string metadata_key = "metadata";
  int64_t max_prompt_tokens = 0;  // longer ones are left out and counted; 0: no limit
  bool shuffle = false;           // a permutation of its own for each epoch
  uint64_t seed = 0;
  /// Prompts are messages of a user, or lists of messages; else they are the prompt as it stands.
  std::optional<ChatPromptWriter> chat = {};
};

/// JSON-lines files, each perhaps with a slice of its lines: "data.jsonl@[10:20]". `input_key` and
/// `label_key` hold strings (or numbers, read as text), `metadata_key` an object; with `chat`,
/// `input_key` may hold a list of {"role", "content"}. `tokenizer`
/// outlives the source. Throws ConfigError naming file and line.
std::unique_ptr<PromptSource> file_prompts(const std::vector<std::string>& train_files,
                                           const std::vector<std::string>& eval_files,
                                           const text::Tokenizer& tokenizer,
                                           const PromptFileOptions& options);

}  // namespace baleen::rl
