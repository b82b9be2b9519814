#pragma once
// Which pipeline rank holds which part of the model. The main blocks are cut into chunks of
// consecutive blocks; with `virtual_stages` v a rank holds v chunks, chunk c on rank c mod pp. The
// embedding is on the first chunk's rank; head, MTP blocks and, for these, a copy of the embedding
// on the last chunk's.
//
//   StageSplit stages = StageSplit::even(num_layers, pp, virtual_stages);

#include <cstdint>
#include <string>
#include <vector>

namespace baleen::mesh {

class StageSplit {
 public:
  /// Blocks per chunk, pp * v of them in order. Throws ConfigError where they do not add up.
  StageSplit(std::vector<int64_t> chunk_blocks, int64_t num_blocks, int pp, bool with_mtp);
  /// As equal as can be, longer chunks first.
  static StageSplit even(int64_t num_blocks, int pp, int virtual_stages, bool with_mtp);

  int num_ranks() const { return pp_; }
  int num_chunks() const { return static_cast<int>(first_block_.size()) - 1; }
  int chunks_per_rank() const { return num_chunks() / pp_; }
  int rank_of_chunk(int chunk) const { return chunk % pp_; }
  std::size_t first_block(int chunk) const {
    return static_cast<std::size_t>(first_block_[static_cast<std::size_t>(chunk)]);
  }
  std::size_t end_block(int chunk) const { return first_block(chunk + 1); }
  bool is_first(int chunk) const { return chunk == 0; }
  bool is_last(int chunk) const { return chunk == num_chunks() - 1; }

  /// Whether a pipeline rank needs the parameter of this published name.
  bool holds(int rank, const std::string& name) const;
  /// Whether first and last rank each hold a copy of the embedding.
  bool embedding_is_shared() const { return with_mtp_ && pp_ > 1; }

 private:
  int pp_ = 1;
  bool with_mtp_ = false;
  std::vector<int64_t> first_block_;  // of every chunk, and the end
};

}  // namespace baleen::mesh
