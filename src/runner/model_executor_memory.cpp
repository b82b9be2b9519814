// What a running executor may lose and get: its weights and its pools.
#include <exception>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "base/check.h"
#include "runner/model_executor.h"
#include "weights/config_json.h"

namespace baleen::runner {
namespace {

std::string config_text(const std::filesystem::path& folder) {
  return weights::write_config_json(weights::read_config_json(folder / "config.json").config);
}

Status another_model(const std::string& folder) {
  return Status::invalid(folder + ": config.json describes another model than the one served");
}

}  // namespace

void ModelExecutor::make_pools() {
  pools_.emplace(model_.make_pools(cache_sizes_, config_.paint_pages));
  mover_.emplace(*pools_);
}

void ModelExecutor::find_token_routes() {
  token_routes_ = std::make_shared<const cache::TokenRoutes>(model_.token_routes());
}

Status ModelExecutor::update_weights(const std::string& folder) {
  BALEEN_CHECK(!in_flight_, "step {} is unfinished", result_.step);
  try {
    // What the files say first: reading weights takes longer.
    if (!config_.weights_folder.empty() &&
        config_text(folder) != config_text(config_.weights_folder)) {
      return another_model(folder);
    }
    model::ForwardConfig forward = model_.forward_config();
    forward.load_progress = {};  // whoever watched the first load may be gone
    model::Model next = model::Model::load(folder, forward);
    if (weights::write_config_json(next.config()) != weights::write_config_json(model_.config())) {
      return another_model(folder);
    }
    std::unique_ptr<DecodePath> next_path = new_decode_path(folder, next);
    model_ = std::move(next);
    decode_path_ = std::move(next_path);
  } catch (const std::exception& error) {  // Torch's too: there may be no room for both
    return Status::invalid(error.what());
  }
  config_.weights_folder = folder;
  if (recorder_) {
    find_token_routes();
  }
  return {};
}

Status ModelExecutor::release_memory(engine::MemoryParts parts) {
  BALEEN_CHECK(!in_flight_, "step {} is unfinished", result_.step);
  if (parts.weights && config_.weights_folder.empty()) {
    return Status::invalid("the weights came from no folder, they could not be read again");
  }
  if (parts.cache || parts.weights) {
    decode_path_.reset();  // it reads both
  }
  if (parts.cache) {
    for (ExecutorSlot& slot : slots_) {
      slot.sequence.clear();
      slot.decoded_to = -1;
      slot.pages = {};
      slot.last_logits = {};
      slot.draft_logits = {};
      slot.chain.clear();
    }
    mover_.reset();
    pools_.reset();
  }
  if (parts.weights) {
    model_.release_weights();
  }
  return {};
}

Status ModelExecutor::resume_memory(engine::MemoryParts parts) {
  if (parts.weights) {
    if (Status status = update_weights(config_.weights_folder); !status.ok()) {
      return status;
    }
  }
  if (parts.cache && config_.cache_bytes > 0) {
    try {
      make_pools();
      start_decode_path();
    } catch (const std::exception& error) {
      decode_path_.reset();
      mover_.reset();
      pools_.reset();
      return {StatusCode::kUnavailable, error.what(), {}, {}};
    }
  }
  return {};
}

}  // namespace baleen::runner
