#pragma once
// One rank's end of a group of ranks that work together: collectives and point-to-point messages on
// plain memory. Every member must make the same calls in the same order; a call waits for the other
// members. Sums have one order, that of a binary tree over the ranks of the group, whatever the
// sizes and the timing. Two back ends are meant: threads of one process (thread_world.h) on host
// memory, and NCCL on device memory.
// Owned by the rank that made it; one thread at a time; the world must outlive it.
//
//   group.all_reduce(gradient, gradient, count, Element::kFloat64, Reduction::kSum);
//   group.all_to_all(out, out_bytes, in, in_bytes);
//   if (group.rank() > 0) group.receive(buffer, bytes, group.rank() - 1);

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"

namespace baleen::comm {

/// The ranks do not fit together any more: a member failed, ended, called something else, or did
/// not come in time. The text says who waited for whom in which call.
class CommError : public Error {
 public:
  using Error::Error;
};

enum class Element : uint8_t { kFloat32, kFloat64, kInt64 };
enum class Reduction : uint8_t { kSum, kMax };  // kMax of a NaN and anything is NaN

const char* element_name(Element element);
int64_t element_bytes(Element element);

class Group {
 public:
  Group(std::vector<int> members, int rank) : members_(std::move(members)), rank_(rank) {}
  virtual ~Group() = default;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int size() const { return static_cast<int>(members_.size()); }
  int rank() const { return rank_; }                            // of this group
  const std::vector<int>& members() const { return members_; }  // ranks of the world, in order

  /// out[i] = in of all ranks reduced, for `count` elements. `in` may be `out`.
  virtual void all_reduce(
      const void* in, void* out, int64_t count, Element element, Reduction reduction) = 0;
  /// in: size() blocks of `count` elements; out: block rank() of the sum over all ranks. No
  /// overlap of `in` and `out`.
  virtual void reduce_scatter(const void* in, void* out, int64_t count, Element element) = 0;
  /// out: the `bytes` of every rank, in order of rank. No overlap of `in` and `out`.
  virtual void all_gather(const void* in, void* out, int64_t bytes) = 0;
  /// in: for every rank its part, one behind another; out: what every rank sent here, likewise.
  /// Sizes of both, per rank; a pair that exchanges nothing sends nothing. No overlap.
  virtual void all_to_all(const void* in,
                          std::span<const int64_t> in_bytes,
                          void* out,
                          std::span<const int64_t> out_bytes) = 0;
  /// `data` of rank `root` on all ranks.
  virtual void broadcast(void* data, int64_t bytes, int root) = 0;
  virtual void barrier() = 0;

  /// Messages from one rank to another arrive in order. A send may return before it is received.
  virtual void send(const void* data, int64_t bytes, int to) = 0;
  /// The next message of rank `from`, which must have this size.
  virtual void receive(void* data, int64_t bytes, int from) = 0;

  /// Bytes that this rank has handed to others so far: its own part of every collective, once
  /// however many ranks read it, and of all_to_all and send what goes to each.
  int64_t bytes_contributed() const { return bytes_contributed_; }

 protected:
  void count_bytes(int64_t bytes) { bytes_contributed_ += bytes; }

 private:
  std::vector<int> members_;
  int rank_;
  int64_t bytes_contributed_ = 0;
};

}  // namespace baleen::comm
