#pragma once
// Namespaces of the prefix cache: sequences of different ones never share anything. Each is
// interned while somebody refers to it. One thread.
//
//   NamespaceId id = table.acquire(CacheNamespace{.cache_salt = "tenant", .weight_version = 3});
//   table.release(id);

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "cache/pool.h"

namespace baleen::cache {

struct CacheNamespace {
  std::string cache_salt{};
  std::string extra_key{};
  int64_t weight_version = 0;  // entries of other weights are never reused

  /// Different namespaces have different keys.
  std::string key() const;
};

class NamespaceTable {
 public:
  NamespaceId find(const CacheNamespace& name) const;  // invalid if nobody refers to it
  NamespaceId acquire(const CacheNamespace& name);     // with one reference
  void add_ref(NamespaceId id) { ++entry(id).refs; }
  void release(NamespaceId id);
  uint64_t hash(NamespaceId id) const { return entries_[static_cast<size_t>(id.value())].hash; }
  int32_t refs(NamespaceId id) const { return entries_[static_cast<size_t>(id.value())].refs; }
  int32_t live() const { return static_cast<int32_t>(ids_.size()); }

 private:
  struct Entry {
    std::string key;
    uint64_t hash = 0;
    int32_t refs = 0;
  };
  Entry& entry(NamespaceId id) { return entries_[static_cast<size_t>(id.value())]; }

  std::vector<Entry> entries_;
  std::vector<NamespaceId> free_;
  std::unordered_map<std::string, NamespaceId> ids_;
};

}  // namespace baleen::cache
