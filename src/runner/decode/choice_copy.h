#pragma once
// What the kernels chose for the tokens of a step, taken from the device part by part and put into
// the records of cache/choice_layout.h. Used by the thread that owns the stream.
//
//   ChoiceCopy choices(config, 512);
//   choices.clear();
//   choices.copy(buffers, num_tokens, stream);          // behind the launches of a part
//   stream.synchronize();
//   choices.add(token, position);                       // every token of the part, in order

#include <cstdint>
#include <vector>

#include "base/model_config.h"
#include "cache/choice_layout.h"
#include "device/pinned_buffer.h"
#include "device/stream.h"
#include "model/forward.h"
#include "runner/decode/decode_buffers.h"

namespace baleen::runner {

class ChoiceCopy {
 public:
  /// `most_tokens`: of a part.
  ChoiceCopy(const ModelConfig& config, int32_t most_tokens);

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
  int32_t num_tokens_ = 0;                // of the latest part
  device::PinnedBuffer<uint8_t> routes_;  // [tokens, route bytes]
  device::PinnedBuffer<int32_t> picks_;   // [picking layers, tokens, topk]
  model::ForwardChoices choices_;
};

}  // namespace baleen::runner
