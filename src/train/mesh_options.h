#pragma once
// How many ranks a training command runs on and along which axes: names, help, checks, and the mesh
// that they make. Ranks are threads of one process. Plain data; filled once at start.
//
//   struct SftConfig : OptimizerOptions, MeshOptions { ... };
//   const MeshOptions axes = config;
//   comm::MeshShape shape = mesh_shape(axes);    // throws ConfigError naming the option

#include <cstdint>
#include <initializer_list>
#include <string>

#include "base/model_config.h"
#include "comm/mesh_shape.h"

namespace baleen::train {

struct MeshOptions {
  std::string ranks =
      {};  // a number, or axes: "tp2", "pp2.dp2", "tp2+sp.cp2"; empty: as the axes make
  int64_t tp = 1;
  bool sp = false;
  int64_t ep = 1;
  int64_t pp = 1;
  int64_t cp = 1;
  int64_t dp = 0;  // 0: what the number of ranks leaves, else 1
  int64_t pp_chunks = 1;
  bool cp_zig_zag = false;
  int64_t rank_timeout_s = 600;
};

/// visit(name, field, help), in the order of the help.
template <class Options, class Visit>
void for_each_mesh_option(Options& o, Visit&& visit) {
  visit("ranks", o.ranks, "how many ranks (threads), or their axes: 4, tp2, pp2.dp2, tp2+sp.ep2");
  visit("tp", o.tp, "ranks that share out heads, output groups and vocabulary");
  visit("sp", o.sp, "tp ranks share out tokens outside of the attention core too");
  visit("ep", o.ep, "ranks that share out experts, of those that hold different tokens");
  visit("pp", o.pp, "pipeline stages");
  visit("cp", o.cp, "ranks that share out the tokens of a sample");
  visit("dp", o.dp, "ranks that share out samples; 0: what the number of ranks leaves");
  visit("pp_chunks", o.pp_chunks, "runs of blocks per stage; above 1: interleaved");
  visit("cp_zig_zag", o.cp_zig_zag, "each cp rank holds an early and a late piece of a sample");
  visit("rank_timeout_s", o.rank_timeout_s, "longest wait of one rank for another, seconds");
}

/// Throws ConfigError naming the option, what came and what would fit.
comm::MeshShape mesh_shape(const MeshOptions& options);

/// Whether a model and a step's number of samples can be cut so. Throws ConfigError.
void check_mesh(const MeshOptions& options, const ModelConfig& model, int64_t samples_of_step);

/// Names of the options, which decide no more of a run than its last bits.
const std::initializer_list<const char*>& mesh_option_names();

}  // namespace baleen::train
