#pragma once
// Which rank of a sequence group holds which tokens of a batch. Rows of tokens, packed from samples
// that each start at position 0, are cut along their length over the context ranks, and each piece
// again over the tensor ranks where these split tokens. Any cut is legal; cuts at multiples of the
// compression ratios move the fewest bytes. Plain arithmetic; every rank knows the whole layout.
//
//   TokenLayout layout({{.batch = 4, .samples = {256}}}, {.context_ranks = 2});
//   at::Tensor mine = ids.flatten().index_select(0, layout.token_index(rank));

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace baleen::mesh {

/// `batch` rows cut alike into samples of these lengths, in tokens.
struct TokenRow {
  int64_t batch = 1;
  std::vector<int64_t> samples;
};

struct TokenSplit {
  int context_ranks = 1;
  int tensor_ranks = 1;  // that split tokens: 1 without sequence parallelism
  bool zig_zag = false;  // context rank r holds pieces r and 2 * context_ranks - 1 - r of each row
};

/// Tokens of one sample (of `batch` equal ones) that lie together on a rank.
struct TokenPiece {
  int64_t sample = 0;  // counted over all rows
  int64_t batch = 1;
  int64_t first_position = 0;
  int64_t tokens = 0;

  int64_t end_position() const { return first_position + tokens; }
  int64_t num_rows() const { return batch * tokens; }
};

/// Rows numbered over the whole batch: those of sample 0 first, of its batch one after another.
using RowId = int64_t;

class TokenLayout {
 public:
  /// Throws ConfigError when a row is too short to give every rank a token of each of its pieces.
  TokenLayout(std::vector<TokenRow> rows, const TokenSplit& split);

  const TokenSplit& split() const { return split_; }
  /// Of the sequence group: context rank * tensor_ranks + tensor rank.
  int num_ranks() const { return split_.context_ranks * split_.tensor_ranks; }
  int64_t num_tokens() const { return num_tokens_; }

  /// The rank's own pieces, and those of its core group: piece i of all tensor ranks joined.
  const std::vector<TokenPiece>& pieces(int rank) const {
    return pieces_[static_cast<std::size_t>(rank)];
  }
  const std::vector<TokenPiece>& core_pieces(int rank) const {
    return core_pieces_[static_cast<std::size_t>(rank / split_.tensor_ranks)];
  }

  int64_t sample_tokens(int64_t sample) const {
    return samples_[static_cast<std::size_t>(sample)].tokens;
  }
  int64_t num_samples() const { return static_cast<int64_t>(samples_.size()); }
  RowId row_id(int64_t sample, int64_t b, int64_t position) const {
    const Sample& own = samples_[static_cast<std::size_t>(sample)];
    return own.first_row + b * own.tokens + position;
  }
  /// Where the rows of the step are, i64 [N]: index into the batch's tokens, row of tokens after
  /// row of tokens, of which rows of `batch` > 1 follow one another.
  at::Tensor token_index(int rank) const;
  at::Tensor core_token_index(int rank) const;

  /// Ids of the rows of pieces, in the order a step has them.
  std::vector<RowId> row_ids(const std::vector<TokenPiece>& pieces) const;

 private:
  struct Sample {
    int64_t batch = 1;
    int64_t tokens = 0;
    RowId first_row = 0;
    int64_t first_token = 0;  // of the batch's tokens
    int64_t row_stride = 0;   // tokens between equal rows
  };

  at::Tensor index_of(const std::vector<TokenPiece>& pieces) const;

  TokenSplit split_;
  int64_t num_tokens_ = 0;
  std::vector<Sample> samples_;
  std::vector<std::vector<TokenPiece>> pieces_;       // by rank
  std::vector<std::vector<TokenPiece>> core_pieces_;  // by context rank
};

}  // namespace baleen::mesh
