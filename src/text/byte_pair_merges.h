#pragma once
// The merge rules of a byte-level BPE vocabulary and their application to one piece of text:
// repeatedly the adjacent pair of lowest rank is merged, the leftmost on equal rank, until none
// applies. Time is n log n in the piece's bytes. Immutable after construction, any thread.
//
//   BytePairMerges merges(byte_ids, rules);
//   merges.encode("hello", ids);  // appends token ids

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace baleen::text {

struct MergeRule {
  int32_t left = -1;
  int32_t right = -1;
  int32_t result = -1;
};

class BytePairMerges {
 public:
  BytePairMerges() = default;
  /// `rules` in rank order; of two rules for one pair the later one holds.
  BytePairMerges(const std::array<int32_t, 256>& byte_ids, const std::vector<MergeRule>& rules);

  void encode(std::string_view piece, std::vector<int32_t>& ids) const;

 private:
  struct Entry {
    uint64_t pair = kNoPair;
    int32_t rank = -1;
    int32_t result = -1;
  };
  static constexpr uint64_t kNoPair = ~uint64_t{0};

  const Entry* find(int32_t left, int32_t right) const;
  void encode_short(std::string_view piece, std::vector<int32_t>& ids) const;
  void encode_long(std::string_view piece, std::vector<int32_t>& ids) const;

  std::array<int32_t, 256> byte_ids_{};
  std::vector<Entry> table_ = std::vector<Entry>(1);  // open addressing, a power of two in size
};

}  // namespace baleen::text
