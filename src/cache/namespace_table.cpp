#include "cache/namespace_table.h"

#include <fmt/format.h>
#include <xxhash.h>

#include "base/check.h"

namespace baleen::cache {

std::string CacheNamespace::key() const {
  return fmt::format(
      "{}:{}{}:{}{}", cache_salt.size(), cache_salt, extra_key.size(), extra_key, weight_version);
}

NamespaceId NamespaceTable::find(const CacheNamespace& name) const {
  const auto at = ids_.find(name.key());
  return at == ids_.end() ? NamespaceId() : at->second;
}

NamespaceId NamespaceTable::acquire(const CacheNamespace& name) {
  std::string key = name.key();
  const auto [at, fresh] = ids_.try_emplace(key);
  if (fresh) {
    if (free_.empty()) {
      at->second = NamespaceId(static_cast<int32_t>(entries_.size()));
      entries_.emplace_back();
    } else {
      at->second = free_.back();
      free_.pop_back();
    }
    entry(at->second) = {.key = key, .hash = XXH3_64bits(key.data(), key.size()), .refs = 0};
  }
  ++entry(at->second).refs;
  return at->second;
}

void NamespaceTable::release(NamespaceId id) {
  Entry& e = entry(id);
  BALEEN_CHECK(e.refs > 0, "namespace={} has no references", id.value());
  if (--e.refs == 0) {
    ids_.erase(e.key);
    e = {};
    free_.push_back(id);
  }
}

}  // namespace baleen::cache
