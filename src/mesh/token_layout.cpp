#include "mesh/token_layout.h"

#include <algorithm>
#include <numeric>

#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include "base/check.h"
#include "base/error.h"
#include "mesh/part.h"

namespace baleen::mesh {

TokenLayout::TokenLayout(std::vector<TokenRow> rows, const TokenSplit& split) : split_(split) {
  BALEEN_CHECK(split.context_ranks > 0 && split.tensor_ranks > 0,
               "{} x {} ranks",
               split.context_ranks,
               split.tensor_ranks);
  pieces_.resize(static_cast<std::size_t>(num_ranks()));
  core_pieces_.resize(static_cast<std::size_t>(split.context_ranks));
  const int64_t cuts = split.zig_zag ? 2 * split.context_ranks : split.context_ranks;
  for (const TokenRow& row : rows) {
    const auto first_sample = static_cast<int64_t>(samples_.size());
    const int64_t length = std::accumulate(row.samples.begin(), row.samples.end(), int64_t{0});
    int64_t offset = 0;
    for (const int64_t tokens : row.samples) {
      if (tokens < 1) {
        throw ConfigError(fmt::format("token layout: a sample of {} tokens", tokens));
      }
      samples_.push_back({.batch = row.batch,
                          .tokens = tokens,
                          .first_row = num_tokens_ + row.batch * offset,
                          .first_token = num_tokens_ + offset,
                          .row_stride = length});
      offset += tokens;
    }
    for (int rank = 0; rank < split.context_ranks; ++rank) {
      std::vector<int64_t> own_cuts = {rank};
      if (split.zig_zag) {
        own_cuts.push_back(cuts - 1 - rank);
      }
      for (const int64_t cut : own_cuts) {
        const auto [begin, end] = part_of(length, cut, cuts);
        int64_t sample_begin = 0;
        for (std::size_t s = 0; s < row.samples.size(); ++s) {
          const int64_t sample_end = sample_begin + row.samples[s];
          const int64_t first = std::max(begin, sample_begin);
          const int64_t last = std::min(end, sample_end);
          if (first < last) {
            core_pieces_[static_cast<std::size_t>(rank)].push_back(
                {.sample = first_sample + static_cast<int64_t>(s),
                 .batch = row.batch,
                 .first_position = first - sample_begin,
                 .tokens = last - first});
          }
          sample_begin = sample_end;
        }
      }
    }
    num_tokens_ += row.batch * length;
  }
  for (int rank = 0; rank < num_ranks(); ++rank) {
    for (const TokenPiece& core : core_pieces(rank)) {
      const auto [begin, end] = part_of(core.tokens, rank % split.tensor_ranks, split.tensor_ranks);
      TokenPiece own = core;
      own.first_position += begin;
      own.tokens = end - begin;
      if (own.tokens < 1) {
        throw ConfigError(
            fmt::format("token layout: a piece of {} tokens does not give {} tensor ranks one each",
                        core.tokens,
                        split.tensor_ranks));
      }
      pieces_[static_cast<std::size_t>(rank)].push_back(own);
    }
    if (pieces(rank).empty()) {
      throw ConfigError(fmt::format("token layout: {} tokens do not give {} context ranks one each",
                                    num_tokens_,
                                    split.context_ranks));
    }
  }
}

at::Tensor TokenLayout::index_of(const std::vector<TokenPiece>& pieces) const {
  std::vector<int64_t> index;
  for (const TokenPiece& piece : pieces) {
    const Sample& sample = samples_[static_cast<std::size_t>(piece.sample)];
    for (int64_t b = 0; b < piece.batch; ++b) {
      for (int64_t p = piece.first_position; p < piece.end_position(); ++p) {
        index.push_back(sample.first_token + b * sample.row_stride + p);
      }
    }
  }
  return at::tensor(index, at::kLong);
}

at::Tensor TokenLayout::token_index(int rank) const {
  return index_of(pieces(rank));
}

at::Tensor TokenLayout::core_token_index(int rank) const {
  return index_of(core_pieces(rank));
}

std::vector<RowId> TokenLayout::row_ids(const std::vector<TokenPiece>& pieces) const {
  std::vector<RowId> ids;
  for (const TokenPiece& piece : pieces) {
    for (int64_t b = 0; b < piece.batch; ++b) {
      for (int64_t p = piece.first_position; p < piece.end_position(); ++p) {
        ids.push_back(row_id(piece.sample, b, p));
      }
    }
  }
  return ids;
}

}  // namespace baleen::mesh
