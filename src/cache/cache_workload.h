#pragma once
// Drives SequenceCache as an engine does, against PayloadModel: sequences with known tokens, steps
// that are submitted while the one before is unfinished, results that come later, accepted and
// refused drafts. For tests; single thread.
//
//   CacheWorkload work(options);
//   int a = work.admit(prompt, {.chunk = 512});      // -1: no room
//   work.submit({{.sequence = a, .tokens = 300}});   // part of the prompt, or decoded tokens
//   work.process();                                  // the oldest step's result
//   work.finish(a);   EXPECT_EQ(work.fault(), "");

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cache/cache_audit.h"
#include "cache/payload_model.h"
#include "cache/sequence_cache.h"

namespace baleen::cache {

struct WorkloadOptions {
  SequenceCacheOptions cache;
};

class CacheWorkload {
 public:
  struct Admit {
    CacheNamespace space{};
    int32_t chunk = 1 << 20;
    int32_t reuse_limit = -1;
    bool drafts = false;
    bool share = true;
  };
  struct Work {
    int sequence = -1;
    int32_t tokens = 0;   // that become final
    int32_t refused = 0;  // drafts behind them
  };
  struct Running {
    SequenceLease lease;
    CacheNamespace space;
    std::vector<int32_t> ids;  // what is and will be known; generated tokens are made up as needed
    std::vector<PayloadModel::Tag> tags;
    int32_t prompt = 0;
    int32_t computed = 0;  // submitted; the lease commits later
    bool drafts = false;
  };

  explicit CacheWorkload(const WorkloadOptions& options);
  ~CacheWorkload();

  int admit(std::vector<int32_t> ids, const Admit& how);
  int admit(std::vector<int32_t> ids) { return admit(std::move(ids), Admit{}); }
  /// Rows that find no room are left out. False if none was left.
  bool submit(const std::vector<Work>& rows);
  void process();
  void process_all();
  void finish(int sequence) { end(sequence, true); }
  void preempt(int sequence) { end(sequence, true); }
  void abort(int sequence) { end(sequence, false); }
  /// Runs the rest of the prompt in chunks and `decode` further tokens, step by step.
  void run(int sequence, int32_t chunk, int32_t decode);

  SequenceCache& cache() { return cache_; }
  bool running(int sequence) const { return sequences_.contains(sequence); }
  Running& sequence(int sequence) { return sequences_.at(sequence); }
  const std::map<int, Running>& sequences() const { return sequences_; }
  /// The first wrong read or broken invariant.
  std::string fault() const;
  /// Extends the known tokens of a sequence so that `count` of them exist.
  void extend(Running& s, int32_t count);
  int32_t steps_in_flight() const { return static_cast<int32_t>(results_.size()); }
  const std::vector<CaptureJob>& last_captures() const { return last_captures_; }

 private:
  struct Result {
    CacheTicket step;
    std::vector<CacheTicket> jobs;
    std::vector<Work> rows;
  };
  std::vector<Work> with_room(const std::vector<Work>& rows);
  void end(int sequence, bool keep);

  CacheGeometry geometry_;
  PayloadModel model_;
  SequenceCache cache_;
  std::map<int, Running> sequences_;
  std::vector<RequestSlot> free_slots_;
  std::vector<Result> results_;
  std::vector<CaptureJob> captures_;       // for the next step
  std::vector<CaptureJob> last_captures_;  // of the last submitted step
  std::vector<ResumeCopy> copies_;
  std::vector<RequestSlot> resets_;
  std::string budget_fault_;
  int next_sequence_ = 0;
  uint64_t random_ = 88172645463325252ULL;
};

}  // namespace baleen::cache
