#pragma once
// What the cache keeps of a running sequence. Plain state, changed by SequenceCache alone.

#include <cstdint>
#include <vector>

#include "cache/page_book.h"
#include "cache/pool.h"
#include "cache/resume_point.h"

namespace baleen::cache {

struct Sequence {
  bool running = false;
  bool share = true;
  bool drafts = false;
  NamespaceId space;
  int32_t prompt_tokens = 0;  // known when it was admitted
  int32_t cached_tokens = 0;
  int32_t committed = 0;
  int32_t written_end = 0;  // behind the last position that a step writes, refused ones included
  int32_t next_id = -1;     // the token at position `committed`, -1: not known
  int32_t branch = -1;      // a resume point is wanted there

  // Blocks [0, shared_blocks) are the tree's pages on the path to `node`, which is locked; the
  // others are private, one lease each.
  std::vector<FullPage> pages;
  std::vector<PageLease> leases;  // of blocks shared_blocks, shared_blocks + 1, ...
  int32_t shared_blocks = 0;
  FullPage node{0};
  bool window_locked = false;  // the window before the end of `node` is locked too
  // Blocks that end at or before this position got only the window rows that this sequence itself
  // needs: they enter the tree as tombstones.
  int32_t swa_valid_from = 0;
  int32_t windows_released = 0;  // blocks; only without sharing, else the tree gives windows up

  int32_t draft_begin = 0;
  int32_t draft_hole = -1;

  std::vector<CheckpointSlot> pending;  // points under way
  std::vector<CacheTicket> tickets;     // that may still be open
};

}  // namespace baleen::cache
