#include "abacus/batch.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace baleen::abacus {
namespace {

// Rows of one step are numbered from step * kRowsPerStep: the row numbers of two steps never meet,
// whatever the batch sizes.
constexpr uint64_t kRowsPerStep = 1U << 16;

}  // namespace

RowEncoder::RowEncoder(Phrases phrases, std::shared_ptr<const text::Tokenizer> tokenizer)
    : phrases_(std::move(phrases)),
      tokenizer_(std::move(tokenizer)),
      pad_id_(tokenizer_->require("<｜▁pad▁｜>", "padded training rows")) {}

void RowEncoder::encode_row(uint64_t seed,
                            uint64_t number,
                            const BatchShape& shape,
                            Pairs pairs,
                            int64_t row,
                            Batch& batch) const {
  const auto count_tokens = [&](std::string_view text) {
    return static_cast<int64_t>(tokenizer_->encode(text).size());
  };
  Draws draws(seed, Draws::kDialogues, number);
  const DialogueShape wanted{.max_tokens = shape.tokens,
                             .thinking_share = shape.thinking_share,
                             .pairs = pairs,
                             .below_zero_share = shape.below_zero_share};
  while (true) {
    const Dialogue dialogue = make_dialogue(phrases_, wanted, count_tokens, draws);
    std::vector<int32_t> ids;
    std::vector<uint8_t> kinds;
    for (const Piece& piece : dialogue.pieces) {
      const std::vector<int32_t> part = tokenizer_->encode(piece.text);
      ids.insert(ids.end(), part.begin(), part.end());
      const uint8_t kind =
          piece.learned ? answer_kind(piece.topic) : static_cast<uint8_t>(TokenKind::kPrompt);
      kinds.insert(kinds.end(), part.size(), kind);
    }
    if (static_cast<int64_t>(ids.size()) > shape.tokens) {
      continue;
    }
    const auto begin = row * shape.tokens;
    std::fill_n(batch.ids.begin() + begin, shape.tokens, pad_id_);
    std::copy(ids.begin(), ids.end(), batch.ids.begin() + begin);
    std::fill_n(batch.kinds.begin() + begin, shape.tokens, static_cast<uint8_t>(TokenKind::kPad));
    std::copy(kinds.begin(), kinds.end(), batch.kinds.begin() + begin);
    batch.thinks[static_cast<std::size_t>(row)] = dialogue.thinking ? 1 : 0;
    return;
  }
}

Batch RowEncoder::encode_batch(uint64_t seed,
                               uint64_t first_row,
                               const BatchShape& shape,
                               Pairs pairs) const {
  Batch batch;
  batch.rows = shape.rows;
  batch.tokens = shape.tokens;
  batch.ids.resize(static_cast<std::size_t>(shape.rows * shape.tokens));
  batch.kinds.resize(batch.ids.size());
  batch.thinks.resize(static_cast<std::size_t>(shape.rows));
  for (int64_t row = 0; row < shape.rows; ++row) {
    encode_row(seed, first_row + static_cast<uint64_t>(row), shape, pairs, row, batch);
  }
  return batch;
}

BatchStream::BatchStream(const RowEncoder& encoder,
                         uint64_t seed,
                         std::vector<BatchShape> shapes,
                         int64_t first_step,
                         int num_workers)
    : encoder_(encoder),
      seed_(seed),
      shapes_(std::move(shapes)),
      next_step_(first_step),
      num_workers_(num_workers),
      slots_(static_cast<std::size_t>(num_workers)) {
  BALEEN_CHECK(num_workers > 0 && !shapes_.empty(), "num_workers={}", num_workers);
  for (const BatchShape& shape : shapes_) {
    BALEEN_CHECK(shape.rows <= static_cast<int64_t>(kRowsPerStep), "rows={}", shape.rows);
  }
  for (int worker = 0; worker < num_workers; ++worker) {
    workers_.emplace_back([this, worker, first_step](const std::stop_token& stop) {
      work(stop, worker, first_step);
    });
  }
}

BatchStream::~BatchStream() {
  for (std::jthread& worker : workers_) {
    worker.request_stop();
  }
}

void BatchStream::work(const std::stop_token& stop, int worker, int64_t first_step) {
  try {
    // The first step of this worker's residue class that is not before the stream's first step.
    int64_t step = first_step + (worker - first_step % num_workers_ + num_workers_) % num_workers_;
    Slot& slot = slots_[static_cast<std::size_t>(worker)];
    for (; !stop.stop_requested(); step += num_workers_) {
      const BatchShape& shape =
          shapes_[static_cast<std::size_t>(step % static_cast<int64_t>(shapes_.size()))];
      Batch batch = encoder_.encode_batch(
          seed_, static_cast<uint64_t>(step) * kRowsPerStep, shape, Pairs::kTraining);
      std::unique_lock lock(mutex_);
      if (!changed_.wait(lock, stop, [&] { return !slot.full; })) {
        return;
      }
      slot.batch = std::move(batch);
      slot.full = true;
      changed_.notify_all();
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    fault_ = std::current_exception();
    changed_.notify_all();
  }
}

Batch BatchStream::next() {
  std::unique_lock lock(mutex_);
  Slot& slot = slots_[static_cast<std::size_t>(next_step_ % num_workers_)];
  changed_.wait(lock, [&] { return slot.full || fault_ != nullptr; });
  if (fault_ != nullptr) {
    std::rethrow_exception(fault_);
  }
  Batch batch = std::move(slot.batch);
  slot.full = false;
  ++next_step_;
  changed_.notify_all();
  return batch;
}

}  // namespace baleen::abacus
