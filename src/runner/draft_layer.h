#pragma once
// Runs rows of the draft layer (MTP), in the model's body or on a decode path that has one; the
// sequences keep streams and positions either way. Owned by the drafter, used on its thread.
//
//   DraftLayer layer(model, path);
//   layer.run({{.sequence = &sequence, .slot = slot, .next_ids = ids}});
//   std::span<const float> logits = layer.logits(0);

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "model/forward.h"
#include "runner/decode_path.h"

namespace baleen::runner {

class DraftLayer {
 public:
  /// See model::DraftInput.
  struct Row {
    model::Sequence* sequence = nullptr;
    RequestSlot slot;
    std::span<const int32_t> next_ids;
    bool chained = false;
  };

  /// Both outlive the layer; the path may change between runs, and be null.
  DraftLayer(model::Model& model, const std::unique_ptr<DecodePath>& path)
      : model_(model), path_(path) {}

  void run(std::span<const Row> rows);
  /// Of the latest run: float32 [vocabulary] behind the row's last token.
  std::span<const float> logits(std::size_t row) const;

 private:
  model::Model& model_;
  const std::unique_ptr<DecodePath>& path_;
  bool by_path_ = false;  // the latest run
  std::vector<model::DraftInput> inputs_;
  std::vector<DraftRow> path_rows_;
  model::ForwardOutput output_;
};

}  // namespace baleen::runner
