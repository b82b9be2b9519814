#include "model/forward_sequence.h"

#include <utility>

#include <c10/core/InferenceMode.h>

#include "base/check.h"
#include "model/device_storage.h"
#include "model/draft_step.h"

namespace baleen::model {
namespace {

/// The tensor's numbers as bytes, converted to bf16 where `bytes` has room for that only.
at::ScalarType stream_type(const at::TensorOptions& options, int64_t numbers, std::size_t bytes) {
  const auto compute = options.dtype().toScalarType();
  const auto count = static_cast<std::size_t>(numbers);
  BALEEN_CHECK(bytes == count * 2 || bytes == count * at::elementSize(compute),
               "streams of {} numbers in {} bytes",
               numbers,
               bytes);
  return bytes == count * 2 ? at::kBFloat16 : compute;
}

}  // namespace

Sequence::Sequence(std::unique_ptr<State> state) : state_(std::move(state)) {}
Sequence::Sequence(Sequence&&) noexcept = default;
Sequence& Sequence::operator=(Sequence&&) noexcept = default;
Sequence::~Sequence() = default;

int64_t Sequence::num_tokens() const {
  return state_->value.num_tokens();
}
int64_t Sequence::rollback_limit() const {
  return state_->value.rollback_limit();
}
int64_t Sequence::bytes() const {
  return state_->value.bytes();
}

void Sequence::rollback(int64_t num_tokens) {
  const c10::InferenceMode inference;
  state_->value.rollback(num_tokens);
}

void Sequence::reset() {
  const c10::InferenceMode inference;
  state_->value.reset();
}

void Sequence::begin_at(int64_t position) {
  const c10::InferenceMode inference;
  state_->value.begin_at(position);
}

void Sequence::begin_at(int64_t position, std::span<const uint8_t> last_streams) {
  const c10::InferenceMode inference;
  const RowStore& streams = state_->value.streams();
  const at::TensorOptions options = streams.options();
  // A copy first: the bytes may lie where a number may not begin.
  const at::Tensor bytes = bytes_at(const_cast<uint8_t*>(last_streams.data()),
                                    static_cast<int64_t>(last_streams.size()),
                                    options.device())
                               .clone();
  const at::ScalarType type = stream_type(options, streams.width(), last_streams.size());
  state_->value.begin_at(position, bytes.view(type).to(options.dtype()));
}

void Sequence::advance_in_pages(int64_t count, const uint8_t* streams) {
  const c10::InferenceMode inference;
  at::Tensor rows;
  if (streams != nullptr) {
    const RowStore& store = std::as_const(state_->value).streams();
    const at::TensorOptions options = store.options();
    const int64_t bytes = count * store.width() * 2;
    // A copy where the type stays: the bytes belong to somebody else.
    rows = bytes_at(const_cast<uint8_t*>(streams), bytes, options.device())
               .view(at::kBFloat16)
               .reshape({count, store.width()})
               .to(options.dtype().toScalarType(), /*non_blocking=*/false, /*copy=*/true);
  }
  state_->value.advance_in_pages(count, rows);
}

int64_t Sequence::draft_rows_end() const {
  return state_->value.mtp_layer(0).raw->end();
}

const uint8_t* Sequence::draft_streams(int64_t count) {
  const c10::InferenceMode inference;
  const int64_t first = draft_rows_end();
  state_->draft_streams = std::as_const(state_->value)
                              .streams()
                              .view(first, first + count)
                              .to(at::kBFloat16)
                              .contiguous();
  return static_cast<const uint8_t*>(state_->draft_streams.const_data_ptr());
}

void Sequence::advance_draft_rows(int64_t count) {
  const c10::InferenceMode inference;
  RowStore& rows = *state_->value.mtp_layer(0).raw;
  rows.restart(rows.end() + count);
}

int64_t Sequence::hidden_draft_rows_before() const {
  return state_->value.hidden_draft_rows().before;
}
int64_t Sequence::hidden_draft_row() const {
  return state_->value.hidden_draft_rows().hole;
}

void Sequence::copy_chain_streams(std::span<uint8_t> streams) const {
  const c10::InferenceMode inference;
  const at::Tensor& chain = state_->value.chain_streams();
  BALEEN_CHECK(chain.defined(), "no draft row has run");
  const at::ScalarType type = stream_type(chain.options(), chain.numel(), streams.size());
  bytes_at(streams.data(), static_cast<int64_t>(streams.size()), chain.device())
      .copy_(chain.to(type).contiguous().flatten().view(at::kByte));
}

void Sequence::hide_draft_rows(int64_t before, int64_t hole) {
  state_->value.hide_draft_rows({.before = before, .hole = hole});
}

void Sequence::drop_draft_chain() {
  const c10::InferenceMode inference;
  model::drop_draft_chain(state_->value);
}

void Sequence::copy_streams(int64_t position, std::span<uint8_t> streams) const {
  const c10::InferenceMode inference;
  const RowStore& rows = std::as_const(state_->value).streams();
  const at::ScalarType type = stream_type(rows.options(), rows.width(), streams.size());
  const at::Tensor row = rows.view(position, position + 1).to(type).contiguous().flatten();
  bytes_at(streams.data(), static_cast<int64_t>(streams.size()), rows.options().device())
      .copy_(row.view(at::kByte));
}

const uint8_t* Sequence::ring_row(bool index, int64_t c4_layer, int64_t position) const {
  const c10::InferenceMode inference;
  const CompressorState& state = state_->value.c4_compressor(index, c4_layer);
  // A view of what the state holds, so the address outlives this tensor.
  const at::Tensor row = state.rows->view(position, position + 1);
  BALEEN_CHECK(row.is_contiguous(), "ring row of width {} with gaps", row.size(1));
  return static_cast<const uint8_t*>(row.const_data_ptr());
}

Sequence Sequence::clone() const {
  const c10::InferenceMode inference;
  return Sequence(std::make_unique<State>(State{state_->value.clone()}));
}

}  // namespace baleen::model
