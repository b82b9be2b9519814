// What a running executor may lose and get: its weights and its pools.
#include <algorithm>
#include <exception>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/log.h"
#include "cache/choice_table.h"
#include "cache/memory_plan.h"
#include "model/device_choice.h"
#include "runner/model_executor.h"
#include "weights/config_json.h"
#include "weights/digest_file.h"
#include "weights/weight_stream.h"

namespace baleen::runner {
namespace {

std::string config_text(const std::filesystem::path& folder) {
  return weights::write_config_json(weights::read_config_json(folder / "config.json").config);
}

Status another_model(const std::string& folder) {
  return Status::invalid(folder + ": config.json describes another model than the one served");
}

/// What a folder says of its values; complaints about a model loaded from it, empty: none.
std::string unlike_its_digests(const model::Model& next, const std::string& folder) {
  const std::optional<weights::DigestFile> told = weights::read_digest_file(folder);
  if (!told || next.forward_config().compute != model::ComputeType::kFloat32) {
    return {};
  }
  if (const std::string own = next.contract(); !told->contract.empty() && told->contract != own) {
    return "is to be computed by contract " + told->contract + ", this engine computes by " + own;
  }
  const std::map<std::string, uint64_t> by_name(told->values.begin(), told->values.end());
  for (const auto& [name, digest] : model::value_digests(next.parameters())) {
    const auto found = by_name.find(name);
    if (found == by_name.end() || found->second != digest) {
      return name + " has other values than " + weights::kDigestFileName + " says";
    }
  }
  return {};
}

}  // namespace

/// As many as the option says; of a device that is filled, as many more as a page needs.
int64_t ModelExecutor::bytes_of_check() const {
  constexpr int64_t kMostBytes = int64_t{64} << 30;
  for (int64_t bytes = config_.cache_bytes;; bytes *= 2) {
    try {
      sizes_for(bytes);
      return bytes;
    } catch (const ConfigError&) {
      if (!config_.fill_device || bytes > kMostBytes) {
        throw;
      }
    }
  }
}

cache::CacheSizes ModelExecutor::sizes_for(int64_t cache_bytes) const {
  return cache::fit_cache(cache::cache_shape(model_.config(), model_.cache_formats()),
                          cache_bytes,
                          {.max_running_requests = config_.num_slots,
                           .chunk_tokens = config_.max_step_tokens,
                           .drafts = config_.drafts.max_drafts > 0});
}

/// What so many bytes hold, but no more pages than the host has room for records of.
cache::CacheSizes ModelExecutor::filled_sizes(int64_t cache_bytes) const {
  constexpr int64_t kStep = int64_t{64} << 10;
  const cache::CacheSizes all = sizes_for(cache_bytes);
  if (!model_.forward_config().record_choices) {
    return all;
  }
  const int64_t page_bytes =
      cache::ChoiceTable::most_page_bytes(model_.choice_layout(), model_.max_context());
  const int64_t pages = config_.record_bytes / std::max<int64_t>(1, page_bytes);
  if (all.full_pages <= pages) {
    return all;
  }
  int64_t enough = bytes_of_check();  // for no more pages than that, or for the fewest there can be
  int64_t too_many = cache_bytes;
  while (too_many - enough > kStep) {
    const int64_t middle = enough + (too_many - enough) / 2;
    (sizes_for(middle).full_pages <= pages ? enough : too_many) = middle;
  }
  return sizes_for(enough);
}

void ModelExecutor::make_pools(const cache::CacheSizes& sizes) {
  pools_.emplace(model_.make_pools(sizes, config_.paint_pages));
  mover_.emplace(*pools_);
}

/// Pools that hold nothing, and the decode path over them; of a model whose weights are released
/// the path waits, and a filled device with it: so the weights find the room that they had. Throws
/// with neither made.
void ModelExecutor::make_cache() {
  try {
    make_pools(config_.fill_device ? check_sizes_ : cache_sizes_);
    path_waits_ = config_.decode_path && !model_.has_weights();
    if (!path_waits_) {
      start_decode_path();
    }
  } catch (...) {
    decode_path_.reset();
    mover_.reset();
    pools_.reset();
    throw;
  }
}

/// Behind the check at start, when weights, graphs and workspaces are where they stay: whatever the
/// check took is free again, and what the device has left is known, not estimated.
void ModelExecutor::fill_device() {
  if (decode_path_->free_device_bytes() < 0) {
    return;
  }
  mover_.reset();
  pools_.reset();
  model::return_unused_memory(model::device_by_name(model_.forward_config().device));
  const int64_t free = decode_path_->free_device_bytes();
  if (!filled_) {  // the engine knows the sizes by now, else
    cache_sizes_ = filled_sizes(free - config_.spare_bytes);
    filled_ = true;
  }
  make_pools(cache_sizes_);
  decode_path_->use_pools(*pools_);
  log::info("runner",
            "cache fills the device tokens={} free_bytes={} spare_bytes={}",
            cache_sizes_.tokens(),
            free,
            config_.spare_bytes);
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
    if (const std::string unlike = unlike_its_digests(next, folder); !unlike.empty()) {
      return Status::invalid(folder + ": " + unlike);
    }
    if (path_waits_) {
      const std::string before = config_.weights_folder;
      config_.weights_folder = folder;  // the same object, where released weights come back
      model_ = std::move(next);
      try {
        make_cache();
      } catch (...) {
        config_.weights_folder = before;
        model_.release_weights();
        path_waits_ = true;
        throw;
      }
    } else {
      std::unique_ptr<DecodePath> next_path = new_decode_path(folder, next);
      model_ = std::move(next);
      decode_path_ = std::move(next_path);
    }
  } catch (const std::exception& error) {  // Torch's too: there may be no room for both
    return Status::invalid(error.what());
  }
  config_.weights_folder = folder;
  weights_lost_ = false;
  if (recorder_) {
    find_token_routes();
  }
  return {};
}

Status ModelExecutor::update_weights(weights::WeightSource& source) {
  BALEEN_CHECK(!in_flight_, "step {} is unfinished", result_.step);
  if (decode_path_ != nullptr) {
    return Status::invalid("the decode path packs weights of a folder; update from a folder");
  }
  if (!model_.has_weights()) {
    return Status::invalid("the weights are released: resume them first");
  }
  bool begun = source.in_place();  // the sender has written already
  try {
    const weights::WeightManifest& manifest = source.manifest();
    if (const std::string own = model_.contract(); manifest.contract != own) {
      begun = false;
      return Status::invalid("the sender computes by contract " + manifest.contract +
                             ", this engine by " + own +
                             ": options, numerics, formats or build differ");
    }
    model::WeightIntake intake(model_.parameters());
    if (!source.in_place()) {
      intake.check(manifest);
      weights::StreamCheck check(manifest);
      while (const std::optional<weights::WeightBucket> bucket = source.next()) {
        check.accept(*bucket);
        begun = true;
        for (const weights::StreamedTensor& tensor : *bucket) {
          intake.write(tensor, check.entry(tensor.name));
        }
      }
      check.finish(source.root());
    }
    for (const auto& [name, digest] : source.value_digests()) {
      if (intake.contains(name) && intake.value_digest(name) != digest) {
        throw CheckpointError(name + ": the values held differ from those of the sender");
      }
    }
  } catch (const std::exception& error) {
    weights_lost_ = weights_lost_ || begun;
    return weights_lost_ ? Status{StatusCode::kUnavailable, error.what(), {}, {}}
                         : Status::invalid(error.what());
  }
  weights_lost_ = false;
  config_.weights_folder.clear();  // what lies there is older
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
    path_waits_ = false;
  }
  if (parts.weights) {
    model_.release_weights();
  }
  model::return_unused_memory(model::device_by_name(model_.forward_config().device));
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
      make_cache();
    } catch (const std::exception& error) {
      return {StatusCode::kUnavailable, error.what(), {}, {}};
    }
  }
  return {};
}

}  // namespace baleen::runner
