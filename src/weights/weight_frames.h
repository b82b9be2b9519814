#pragma once
// A stream of weights in three kinds of messages, for engines of other processes: the manifest, one
// message for each bucket, the end. Text is JSON, buckets are binary with a digest of their own.
// What a message says is checked where it is read; whether the stream is whole, by StreamCheck.
// docs/training/weight_sync.md has the layout.
//
//   std::string begin = manifest_message(source.manifest());
//   while (auto bucket = source.next()) { send(bucket_message(update, *bucket)); }
//   std::string end = end_message({update, source.root(), source.value_digests()});

#include <cstdint>
#include <string>
#include <string_view>

#include "weights/weight_stream.h"

namespace baleen::weights {

/// Code in the error of a bucket or an end of an update that the receiver does not have open: it
/// was started anew, or another sender began. The sender's update is lost.
inline constexpr std::string_view kUpdateNotOpen = "weight_update_not_open";

std::string manifest_message(const WeightManifest& manifest);
/// Throws CheckpointError naming the field or tensor at fault.
WeightManifest read_manifest_message(std::string_view text);

/// A bucket of update `update`, a number that the receiver chose.
std::string bucket_message(uint64_t update, const WeightBucket& bucket);

struct BucketMessage {
  uint64_t update = 0;
  WeightBucket tensors;
};
/// Throws CheckpointError when the message is cut, longer than it says or changed on its way.
BucketMessage read_bucket_message(std::string_view bytes);

struct EndMessage {
  uint64_t update = 0;
  std::string root;
  TensorDigests value_digests;  // may be empty
};

std::string end_message(const EndMessage& end);
/// Throws CheckpointError naming the field at fault.
EndMessage read_end_message(std::string_view text);

}  // namespace baleen::weights
