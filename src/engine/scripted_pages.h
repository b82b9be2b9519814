#pragma once
// What a scripted executor keeps of a shared cache: the token at each position of its pages. A
// prompt behind a prefix hit is then known in full, and a page that was shared with the wrong
// tokens shows. Owned by the executor, used on its thread.
//
//   ScriptedPages pages(options);              // of the executor's capacity
//   pages.change(change);  pages.resume(copy);  // in the order of a BatchPlan
//   pages.write(slot, position, id);
//   std::vector<int32_t> prompt = pages.prefix(slot, reset.first_position);

#include <cstdint>
#include <vector>

#include "base/strong_id.h"
#include "cache/sequence_cache.h"

namespace baleen::engine {

class ScriptedPages {
 public:
  explicit ScriptedPages(const cache::SequenceCacheOptions& options);

  void change(const cache::PageChange& change);
  /// Copies the tokens before the position of the resume point.
  void resume(const cache::ResumeCopy& copy);
  /// Positions that have no page are left out: a token that will not run.
  void write(RequestSlot slot, int32_t position, int32_t id);
  /// Tokens of the first positions of a sequence; -1 where nothing was written.
  std::vector<int32_t> prefix(RequestSlot slot, int32_t num_tokens) const;

 private:
  int32_t page_tokens_;
  std::vector<int32_t> ids_;                          // [full page][position in it]
  std::vector<std::vector<cache::FullPage>> tables_;  // by request slot, then block
};

}  // namespace baleen::engine
