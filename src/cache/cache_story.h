#pragma once
// A random story of an engine over small pools: sequences come, run in overlapping steps with
// drafts, end in every way, while copies are in flight and others need the room. After every event
// all that was read and all bookkeeping is checked. For property tests; single thread.
//
//   CacheStory story(options);
//   for (uint32_t event : events) { story.tell(event); if (!story.fault().empty()) ... }
//   story.end();     // everything is let go: nothing may be left

#include <cstdint>
#include <string>
#include <vector>

#include "cache/cache_workload.h"

namespace baleen::cache {

class CacheStory {
 public:
  explicit CacheStory(const WorkloadOptions& options);

  /// What happens is a function of the number: 0 is nothing, so that stories shrink.
  void tell(uint32_t event);
  void end();
  const std::string& fault() const { return fault_; }
  const CacheStats& stats() { return work_.cache().stats(); }

 private:
  void admit(uint32_t a, uint32_t b, uint32_t c);
  void step(uint32_t a, uint32_t b, uint32_t c);
  void let_go(uint32_t how, uint32_t a);
  void copies(uint32_t kind, uint32_t a);
  int pick(uint32_t a) const;  // a running sequence, -1: none
  void check_match(const SequenceKey& key);
  void check();

  WorkloadOptions options_;
  CacheWorkload work_;
  std::vector<std::vector<int32_t>> histories_;
  std::vector<CacheTicket> copies_;
  std::string fault_;
};

/// The longest prefix of the key, at most `limit` tokens, behind which the tree can be continued,
/// by looking at every node and every point.
int32_t naive_hit(const SequenceCache& cache,
                  NamespaceId space,
                  std::span<const int32_t> ids,
                  int32_t limit);

}  // namespace baleen::cache
