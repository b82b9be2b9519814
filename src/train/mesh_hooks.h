#pragma once
// Joins the Trainers of the ranks of a mesh into one: gradients are added up over the ranks that
// saw other tokens, the norm is that of the whole model, and the ranks that hold the same
// parameters share out the optimizer's work and state (ZeRO-1): AdamW in equal stretches, Muon in
// whole matrices of about equal work.
//
//   Masters masters(mesh::own_parameters(whole, mesh, stages), rules, rounding);
//   Trainer trainer(std::move(masters), config, mesh_hooks(mesh, stages, config.optimizer));
//   trainer.begin_step(); mesh_model.run(...); trainer.finish_step(report);   // see mesh_trainer.h

#include "comm/mesh.h"
#include "mesh/stage_split.h"
#include "train/trainer.h"

namespace baleen::train {

/// `mesh` outlives the trainer. Throws ConfigError for Muon on matrices that are cut over tensor
/// ranks.
RankHooks mesh_hooks(const comm::Mesh& mesh,
                     const mesh::StageSplit& stages,
                     const OptimizerConfig& optimizer);

}  // namespace baleen::train
