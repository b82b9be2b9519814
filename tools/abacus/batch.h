#pragma once
// Training rows as arrays of token ids, made ahead of the step that needs them. A batch is a pure
// function of (seed, step): workers may finish in any order, next() hands them out in step order.
// The stream owns its threads; next() is called by one thread.
//
//   BatchStream stream(encoder, seed, shapes, first_step, num_workers);
//   Batch batch = stream.next();   // of first_step, then first_step + 1, ...

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "abacus/dialogue.h"
#include "abacus/phrases.h"
#include "text/tokenizer.h"

namespace baleen::abacus {

/// Per token, what it is to the model.
enum class TokenKind : uint8_t {
  kPad = 0,
  kPrompt = 1,
  kAnswer = 2,  // kAnswer + topic, for the four topics; the model says these tokens
};

constexpr uint8_t answer_kind(Topic topic) {
  return static_cast<uint8_t>(static_cast<int>(TokenKind::kAnswer) + static_cast<int>(topic));
}

struct Batch {
  int64_t rows = 0;
  int64_t tokens = 0;           // per row
  std::vector<int64_t> ids;     // [rows, tokens], padded with the pad token
  std::vector<uint8_t> kinds;   // [rows, tokens]: TokenKind, or answer_kind(topic)
  std::vector<uint8_t> thinks;  // [rows]: the last answer begins with reasoning
};

/// The form of one step's batch; the conversations fit into `tokens`.
struct BatchShape {
  int64_t rows = 0;
  int64_t tokens = 0;
  double thinking_share = 0.5;
  double below_zero_share = 0.0;  // of the questions for a difference
};

/// Writes conversations as token ids. Shares the tokenizer and the phrases; any thread.
class RowEncoder {
 public:
  RowEncoder(Phrases phrases, std::shared_ptr<const text::Tokenizer> tokenizer);

  /// Row `number` of the stream of `seed` into slot `row` of the batch. A conversation that is too
  /// long for the row is drawn anew.
  void encode_row(uint64_t seed,
                  uint64_t number,
                  const BatchShape& shape,
                  Pairs pairs,
                  int64_t row,
                  Batch& batch) const;
  Batch encode_batch(uint64_t seed, uint64_t first_row, const BatchShape& shape, Pairs pairs) const;

 private:
  Phrases phrases_;
  std::shared_ptr<const text::Tokenizer> tokenizer_;
  int32_t pad_id_;
};

class BatchStream {
 public:
  /// Step s has the shape shapes[s % shapes.size()] and rows of its own.
  BatchStream(const RowEncoder& encoder,
              uint64_t seed,
              std::vector<BatchShape> shapes,
              int64_t first_step,
              int num_workers);
  BatchStream(const BatchStream&) = delete;
  BatchStream& operator=(const BatchStream&) = delete;
  ~BatchStream();

  /// Waits for the next step's batch. Rethrows what a worker threw.
  Batch next();

 private:
  struct Slot {
    bool full = false;
    Batch batch;
  };

  void work(const std::stop_token& stop, int worker, int64_t first_step);

  const RowEncoder& encoder_;
  uint64_t seed_;
  std::vector<BatchShape> shapes_;
  int64_t next_step_;
  int num_workers_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::vector<Slot> slots_;  // one per worker: worker w makes the steps s with s % num_workers == w
  std::exception_ptr fault_;
  std::vector<std::jthread> workers_;  // last member: joined before the others go
};

}  // namespace baleen::abacus
