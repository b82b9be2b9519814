#pragma once
// Training data from JSON lines. A line is one sample:
//   {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}
//   {"prompt": "...", "completion": "..."}
// A message may have reasoning_content, tool_calls, tool_call_id and "train": false; a conversation
// "tools". Unknown keys are refused. A line that cannot be used is named, counted and, up to a
// limit that the run sets, left out. Read once at start; then immutable, any thread.
//
//   SftData data = SftData::read({"chat.jsonl"}, tokenizer, options);
//   const Sample sample = data.sample(drawn_sample(seed, data.size(), draw), draw);

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "text/tokenizer.h"
#include "train/chat_sample.h"
#include "train/packed_batch.h"

namespace baleen::train {

struct SftDataOptions {
  ChatSampleOptions chat;
  int64_t max_length = 4096;     // tokens of a sample; longer ones are bad lines
  int64_t max_bad_lines = 0;     // more of them are an error
  int64_t max_named_lines = 20;  // of the bad ones
};

struct BadLine {
  std::string file;
  int64_t line = 0;  // from 1
  std::string reason;
  std::string text() const;  // "FILE:LINE: reason"
};

class SftData {
 public:
  /// Throws SystemError for a file that cannot be read, ConfigError when there are more bad lines
  /// than allowed (its text names the first ones) or no sample is left.
  static SftData read(const std::vector<std::filesystem::path>& files,
                      const text::Tokenizer& tokenizer,
                      const SftDataOptions& options);

  int64_t size() const { return static_cast<int64_t>(samples_.size()); }
  /// Sample `index` as draw number `draw` of the run.
  Sample sample(int64_t index, int64_t draw) const;
  int64_t num_bad_lines() const { return num_bad_lines_; }
  const std::vector<BadLine>& named_bad_lines() const { return bad_lines_; }
  int64_t num_tokens() const { return num_tokens_; }
  /// Of all tokens and weights in order: a resumed run must find the same data.
  uint64_t digest() const { return digest_; }

 private:
  std::vector<EncodedSample> samples_;
  std::vector<BadLine> bad_lines_;
  int64_t num_bad_lines_ = 0;
  int64_t num_tokens_ = 0;
  uint64_t digest_ = 0;
};

/// One line to a sample; a Status says what is wrong with it.
Result<EncodedSample> encode_line(const std::string& line,
                                  const text::Tokenizer& tokenizer,
                                  const ChatSampleOptions& options);

}  // namespace baleen::train
