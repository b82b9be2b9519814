#pragma once
// Which rows a layout makes every rank send and want in each layer, worked out once per layout.
//
//   StepPlans plans(layout, config, mesh);  // read by the MeshSteps of this layout

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/model_config.h"
#include "comm/mesh.h"
#include "mesh/row_exchange.h"
#include "mesh/token_layout.h"

namespace baleen::mesh {

/// Which entries of one ratio a rank closes and wants, and the rows it lacks to pool them.
struct EntryPlan {
  struct Closing {
    int64_t first_entry = 0;
    int64_t num_entries = 0;
    int64_t first_position = 0;  // of the rows that they are pooled from
    int64_t halo_rows = 0;       // of those, ahead of the piece's own, per sequence
  };
  struct Wanted {
    int64_t begin = 0;        // rows of the exchange
    int64_t num_entries = 0;  // exchanged, per sequence
    int64_t visible = 0;      // of those, up to the piece's last token
  };

  std::vector<Closing> closing;  // per piece
  std::optional<RowExchange> halo;
  bool carry_only = false;     // all cuts lie between groups: the halo is carry halves
  std::vector<Wanted> wanted;  // per core piece
  std::optional<RowExchange> entries;
};

/// Everything about a layout that does not depend on values. Read by the steps made of it; one
/// thread (a rank's).
class StepPlans {
 public:
  /// `mesh` outlives the plans. The layout must split tokens as the mesh does.
  StepPlans(const TokenLayout& layout, const ModelConfig& config, const comm::Mesh& mesh);

  const TokenLayout& layout() const { return layout_; }
  const comm::Mesh& mesh() const { return mesh_; }
  /// Of the sequence group.
  int rank() const { return rank_; }
  bool splits_core() const { return layout_.split().tensor_ranks > 1; }

  const RowExchange& window() const { return *window_; }
  const RowExchange& core() const { return *core_; }  // own tensor ranks' rows only
  const EntryPlan& entries(int64_t ratio, bool overlap) const;
  /// Rows [N_core] in the order of the tensor ranks that hold them, and how many each.
  const at::Tensor& by_tensor_rank() const { return by_tensor_rank_; }
  const std::vector<int64_t>& rows_of_tensor_rank() const { return rows_of_tensor_rank_; }

 private:
  EntryPlan make_entry_plan(int64_t ratio, bool overlap) const;

  TokenLayout layout_;
  const comm::Mesh& mesh_;
  int rank_;
  std::optional<RowOwners> owners_;
  std::optional<RowExchange> window_;
  std::optional<RowExchange> core_;
  std::map<std::pair<int64_t, bool>, EntryPlan> entry_plans_;
  at::Tensor by_tensor_rank_;
  std::vector<int64_t> rows_of_tensor_rank_;
};

}  // namespace baleen::mesh
