#include "text/byte_pair_merges.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <functional>
#include <queue>

namespace baleen::text {
namespace {

/// Words are short: up to here a plain scan for the best pair beats a heap.
constexpr size_t kMaxScanBytes = 24;

uint64_t pair_key(int32_t left, int32_t right) {
  return (uint64_t{static_cast<uint32_t>(left)} << 32U) | static_cast<uint32_t>(right);
}

size_t bucket_of(uint64_t key, size_t mask) {
  return static_cast<size_t>((key * 0x9E3779B97F4A7C15U) >> 29U) & mask;
}

}  // namespace

BytePairMerges::BytePairMerges(const std::array<int32_t, 256>& byte_ids,
                               const std::vector<MergeRule>& rules)
    : byte_ids_(byte_ids), table_(std::bit_ceil(2 * rules.size() + 1)) {
  const size_t mask = table_.size() - 1;
  for (size_t rank = 0; rank < rules.size(); ++rank) {
    const uint64_t key = pair_key(rules[rank].left, rules[rank].right);
    size_t i = bucket_of(key, mask);
    while (table_[i].pair != kNoPair && table_[i].pair != key) {
      i = (i + 1) & mask;
    }
    table_[i] = {key, static_cast<int32_t>(rank), rules[rank].result};
  }
}

const BytePairMerges::Entry* BytePairMerges::find(int32_t left, int32_t right) const {
  const size_t mask = table_.size() - 1;
  const uint64_t key = pair_key(left, right);
  for (size_t i = bucket_of(key, mask); table_[i].pair != kNoPair; i = (i + 1) & mask) {
    if (table_[i].pair == key) {
      return &table_[i];
    }
  }
  return nullptr;
}

void BytePairMerges::encode(std::string_view piece, std::vector<int32_t>& ids) const {
  if (piece.size() <= kMaxScanBytes) {
    encode_short(piece, ids);
  } else {
    encode_long(piece, ids);
  }
}

void BytePairMerges::encode_short(std::string_view piece, std::vector<int32_t>& ids) const {
  std::array<int32_t, kMaxScanBytes> symbols{};
  std::array<const Entry*, kMaxScanBytes> merges{};  // merges[i]: of symbols i and i + 1
  size_t count = piece.size();
  for (size_t i = 0; i < count; ++i) {
    symbols[i] = byte_ids_[static_cast<uint8_t>(piece[i])];
  }
  for (size_t i = 0; i + 1 < count; ++i) {
    merges[i] = find(symbols[i], symbols[i + 1]);
  }
  while (count > 1) {
    const Entry* best = nullptr;
    size_t place = 0;
    for (size_t i = 0; i + 1 < count; ++i) {
      if (merges[i] != nullptr && (best == nullptr || merges[i]->rank < best->rank)) {
        best = merges[i];
        place = i;
      }
    }
    if (best == nullptr) {
      break;
    }
    symbols[place] = best->result;
    for (size_t i = place + 1; i + 1 < count; ++i) {
      symbols[i] = symbols[i + 1];
      merges[i] = merges[i + 1];
    }
    --count;
    merges[place] = place + 1 < count ? find(symbols[place], symbols[place + 1]) : nullptr;
    if (place > 0) {
      merges[place - 1] = find(symbols[place - 1], symbols[place]);
    }
  }
  ids.insert(ids.end(), symbols.begin(), symbols.begin() + static_cast<std::ptrdiff_t>(count));
}

void BytePairMerges::encode_long(std::string_view piece, std::vector<int32_t>& ids) const {
  struct Symbol {
    int32_t id = -1;
    int64_t previous = -1;
    int64_t next = -1;
  };
  struct Candidate {
    int32_t rank = -1;
    int64_t left = -1;
    int32_t result = -1;
    bool operator>(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : left > other.left;
    }
  };
  std::vector<Symbol> symbols(piece.size());
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> candidates;
  const auto at = [&](int64_t i) -> Symbol& { return symbols[static_cast<size_t>(i)]; };
  const auto offer = [&](int64_t left) {
    const int64_t right = left < 0 ? -1 : at(left).next;
    if (right >= 0) {
      if (const Entry* entry = find(at(left).id, at(right).id)) {
        candidates.push({entry->rank, left, entry->result});
      }
    }
  };
  const auto count = static_cast<int64_t>(piece.size());
  for (int64_t i = 0; i < count; ++i) {
    at(i) = {byte_ids_[static_cast<uint8_t>(piece[static_cast<size_t>(i)])],
             i - 1,
             i + 1 < count ? i + 1 : -1};
  }
  for (int64_t i = 0; i + 1 < count; ++i) {
    offer(i);
  }
  while (!candidates.empty()) {
    const Candidate candidate = candidates.top();
    candidates.pop();
    Symbol& left = at(candidate.left);
    if (left.id < 0 || left.next < 0) {
      continue;  // merged away since, or last by now
    }
    Symbol& right = at(left.next);
    const Entry* entry = find(left.id, right.id);
    if (entry == nullptr || entry->rank != candidate.rank) {
      continue;  // one side has changed since
    }
    left.id = entry->result;
    right.id = -1;
    left.next = right.next;
    if (left.next >= 0) {
      at(left.next).previous = candidate.left;
    }
    offer(left.previous);
    offer(candidate.left);
  }
  for (int64_t i = 0; i >= 0; i = at(i).next) {
    ids.push_back(at(i).id);
  }
}

}  // namespace baleen::text
