#pragma once
// Write-ahead log of the tokens of one rollout: every accepted token is appended as it comes, so a
// run that was ended goes on behind the tokens that it had. Draws are a function of seed, sample
// and position, and with fixed sums of the sequence alone: the continuation has the bits of the
// unbroken answer. A torn last record is dropped. Owned by the rollout manager; one thread.
//
//   TokenLog log(folder / "tokens_12.log");
//   const LoggedTokens* known = log.find(sample_index);   // of the run before
//   log.append(sample_index, id, logprob, version);
//   log.flush();

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace baleen::rl {

struct LoggedTokens {
  std::vector<int32_t> ids;
  std::vector<float> logprobs;
  std::vector<int64_t> versions;
};

class TokenLog {
 public:
  /// Reads what is there; what follows a damaged record is cut away. Throws SystemError.
  explicit TokenLog(std::filesystem::path path);
  TokenLog(const TokenLog&) = delete;
  TokenLog& operator=(const TokenLog&) = delete;
  ~TokenLog();

  /// Tokens of an earlier run of this rollout; null: none.
  const LoggedTokens* find(int64_t sample) const;
  int64_t known_tokens() const { return known_tokens_; }

  void append(int64_t sample, int32_t id, float logprob, int64_t version);
  /// The answer begins anew: what was logged of it before does not count.
  void restart(int64_t sample);
  /// Hands what was appended to the system; a killed program loses nothing of it.
  void flush();

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  std::map<int64_t, LoggedTokens> known_;
  int64_t known_tokens_ = 0;
  std::vector<char> pending_;
};

}  // namespace baleen::rl
