#pragma once
// Runs requests of fixed length through an engine and measures them. One caller's thread.
//
//   StreamTiming one = time_streams(engine, {.num_streams = 1, .num_prompt_tokens = 32});

#include <cstdint>
#include <vector>

#include "engine/engine.h"

namespace baleen::apps {

struct StreamLoad {
  int32_t num_streams = 1;
  std::vector<int32_t> prompt;     // of every request; empty: made-up tokens that all differ
  int32_t num_prompt_tokens = 32;  // without `prompt`
  int32_t num_new_tokens = 128;    // always all of them: end tokens are ignored
  int64_t vocab_size = 0;
  uint64_t round = 0;  // seeds and prompts differ from round to round
};

struct StreamTiming {
  double first_token_s = 0.0;        // median over the streams, from submit
  double decode_tokens_per_s = 0.0;  // of one stream after its first token, median over streams
  double total_tokens_per_s = 0.0;   // generated tokens of all streams, first submit to last token
  double accept_length = 0.0;        // tokens of a step that verified drafts; 0: there was none
};

/// Throws Error when a request is refused or fails.
StreamTiming time_streams(engine::Engine& engine, const StreamLoad& load);

/// Upper median of the values; they are sorted.
double median(std::vector<double> values);

}  // namespace baleen::apps
