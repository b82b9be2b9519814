#include "mesh/stage_split.h"

#include <numeric>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"

namespace baleen::mesh {

StageSplit::StageSplit(std::vector<int64_t> chunk_blocks, int64_t num_blocks, int pp, bool with_mtp)
    : pp_(pp), with_mtp_(with_mtp), first_block_{0} {
  const int64_t total = std::accumulate(chunk_blocks.begin(), chunk_blocks.end(), int64_t{0});
  if (pp < 1 || chunk_blocks.empty() || chunk_blocks.size() % static_cast<std::size_t>(pp) != 0 ||
      total != num_blocks) {
    throw ConfigError(
        fmt::format("pipeline: chunks of [{}] blocks for {} ranks do not make {} layers",
                    fmt::join(chunk_blocks, ", "),
                    pp,
                    num_blocks));
  }
  for (const int64_t blocks : chunk_blocks) {
    if (blocks < 1) {
      throw ConfigError(fmt::format(
          "pipeline: {} layers are too few for {} chunks", num_blocks, chunk_blocks.size()));
    }
    first_block_.push_back(first_block_.back() + blocks);
  }
}

StageSplit StageSplit::even(int64_t num_blocks, int pp, int virtual_stages, bool with_mtp) {
  const int64_t chunks = int64_t{pp} * virtual_stages;
  std::vector<int64_t> chunk_blocks;
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    chunk_blocks.push_back(num_blocks / chunks + (chunk < num_blocks % chunks ? 1 : 0));
  }
  return StageSplit(std::move(chunk_blocks), num_blocks, pp, with_mtp);
}

bool StageSplit::holds(int rank, const std::string& name) const {
  const bool first = rank == rank_of_chunk(0);
  const bool last = rank == rank_of_chunk(num_chunks() - 1);
  if (name.starts_with("layers.")) {
    const auto block = static_cast<std::size_t>(std::stoll(name.substr(7)));
    for (int chunk = rank; chunk < num_chunks(); chunk += pp_) {
      if (block >= first_block(chunk) && block < end_block(chunk)) {
        return true;
      }
    }
    return false;
  }
  if (name == "embed.weight") {
    return first || (last && with_mtp_);
  }
  return last;  // head, final norm and mixing, MTP blocks
}

}  // namespace baleen::mesh
