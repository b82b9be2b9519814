// How an executor gets its decode path: at start, and again when weights or pools are others.
#include <memory>
#include <optional>
#include <string>

#include "base/log.h"
#include "ops/rope.h"
#include "runner/decode_check.h"
#include "runner/model_executor.h"

namespace baleen::runner {

std::unique_ptr<DecodePath> ModelExecutor::new_decode_path(const std::string& folder) {
  if (!config_.decode_path || !pools_) {
    return nullptr;
  }
  const ModelConfig& config = model_.config();
  const std::string& device = model_.forward_config().device;
  const size_t colon = device.find(':');
  const DecodePathContext context{
      .config = config,
      .pools = *pools_,
      .folder = folder,
      .num_slots = config_.num_slots,
      .max_context = model_.max_context(),
      .max_row_tokens = config_.drafts.max_drafts + 1,
      .device_index = colon == std::string::npos ? 0 : std::stoi(device.substr(colon + 1)),
      .plain_frequencies =
          ops::rope_frequencies(config.qk_rope_head_dim, config.rope_theta, std::nullopt),
      .compressed_frequencies =
          ops::rope_frequencies(config.qk_rope_head_dim, config.compress_rope_theta, config.yarn)};
  std::unique_ptr<DecodePath> path = config_.decode_path(context);
  for (const ExecutorSlot& slot : slots_) {
    for (size_t block = 0; block < slot.pages.full.size(); ++block) {
      path->change_page({.slot = slot.pages.slot,
                         .block = static_cast<int32_t>(block),
                         .full = slot.pages.full[block],
                         .swa = slot.pages.swa[block]});
    }
  }
  return path;
}

/// With pools that hold nothing yet: the check writes into their first pages.
void ModelExecutor::start_decode_path() {
  decode_path_ = new_decode_path(config_.weights_folder);
  if (!decode_path_) {
    return;
  }
  const double distance = check_decode_path(model_, *pools_, *decode_path_);
  log::info("runner",
            "decode path=\"{}\" context={} device_bytes={} distance_from_body={:.3f}",
            decode_path_->name(),
            decode_path_->max_context(),
            decode_path_->device_bytes(),
            distance);
}

}  // namespace baleen::runner
