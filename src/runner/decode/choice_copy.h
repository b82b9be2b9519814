#pragma once
// What the kernels chose for the tokens of a step, taken from the device part by part as the bytes
// of records (cache/choice_layout.h), which the card has made. Used by the thread that owns the
// stream. What a step needs is reserved when it is made.
//
//   ChoiceCopy choices(config, {.part_tokens = 512, .run_tokens = 2048, .max_context = 65536});
//   choices.clear();
//   choices.copy(buffers, num_tokens, last_position, stream);   // behind the launches of a part
//   stream.synchronize();
//   choices.add(token, position);                       // every token of the part, in order

#include <cstddef>
#include <cstdint>

#include "base/model_config.h"
#include "cache/choice_layout.h"
#include "device/pinned_buffer.h"
#include "device/stream.h"
#include "model/forward.h"
#include "runner/decode/decode_buffers.h"

namespace baleen::runner {

struct ChoiceCopyLimits {
  int32_t part_tokens = 1;
  int32_t run_tokens = 1;   // of all parts of a run
  int64_t max_context = 0;  // tokens of a sequence
};

class ChoiceCopy {
 public:
  ChoiceCopy(const ModelConfig& config, const ChoiceCopyLimits& limits);

  void clear();
  /// `buffers` were made with records. `last_position`: the largest of the part; picks are copied
  /// only where a query may have left entries out.
  void copy(const DecodeBuffers& buffers,
            int32_t num_tokens,
            int64_t last_position,
            const device::Stream& stream);
  /// Token `token` of the latest part, which runs `position`.
  void add(int32_t token, int32_t position);
  /// Of all tokens since clear().
  const model::ForwardChoices& choices() const { return choices_; }

 private:
  cache::ChoiceLayout layout_;
  std::size_t pick_stride_ = 0;           // bytes of a token in picks_
  device::PinnedBuffer<uint8_t> routes_;  // [tokens, route bytes]
  device::PinnedBuffer<uint8_t> picks_;   // [tokens, pick_stride_], sets layer by layer
  model::ForwardChoices choices_;
};

}  // namespace baleen::runner
