#include "apps/bench/load/load_run.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <iterator>
#include <mutex>
#include <stop_token>
#include <thread>
#include <utility>

namespace baleen::apps {
namespace {

/// What the threads of a run share.
class LoadStage {
 public:
  LoadStage(const LoadTarget& target, const LoadMix& mix, const LoadPlan& plan)
      : target_(target), mix_(mix), plan_(plan), records_(plan.conversations.size()) {}

  void play(int32_t num_threads) {
    std::vector<std::jthread> threads;
    for (int32_t i = 0; i < num_threads; ++i) {
      threads.emplace_back([this] { work(); });
    }
  }

  LoadProgress progress() const {
    return {done_, failed_, running_, plan_.num_requests, answer_tokens_, seconds()};
  }
  double seconds() const {
    return std::chrono::duration<double>(LoadClock::now() - epoch_).count();
  }
  std::vector<LoadRecord> take_records() {
    std::vector<LoadRecord> all;
    for (std::vector<LoadRecord>& some : records_) {
      std::move(some.begin(), some.end(), std::back_inserter(all));
    }
    return all;
  }

 private:
  void work() {
    LoadClient client(target_, epoch_);
    while (true) {
      const size_t index = next_++;
      if (index >= plan_.conversations.size()) {
        return;
      }
      const LoadConversation& conversation = plan_.conversations[index];
      std::this_thread::sleep_until(epoch_ +
                                    std::chrono::duration_cast<LoadClock::duration>(
                                        std::chrono::duration<double>(conversation.arrival_s)));
      talk(client, conversation, records_[index]);
    }
  }

  void talk(LoadClient& client,
            const LoadConversation& conversation,
            std::vector<LoadRecord>& records) {
    std::vector<LoadMessage> messages;
    if (!conversation.system.empty()) {
      messages.push_back({"system", conversation.system});
    } else if (conversation.group >= 0) {
      // A seed of its own for each group, the same in every run.
      const auto seed = 0x5eedULL + static_cast<uint64_t>(conversation.group);
      messages.push_back(
          {"system", made_up_words(seed, target_.words_of(mix_.shared_tokens, false))});
    }
    uint64_t seed = conversation.text_seed;
    for (const LoadTurn& turn : conversation.turns) {
      const bool is_first = records.empty();
      messages.push_back(
          {"user",
           turn.text.empty() ? made_up_words(seed++, target_.words_of(turn.prompt_tokens, is_first))
                             : turn.text});
      ++running_;
      LoadAnswer answer = client.run(messages, turn.answer_tokens);
      --running_;
      ++done_;
      answer_tokens_ += answer.record.answer_tokens;
      answer.record.wanted_s = is_first ? conversation.arrival_s : answer.record.begin_s;
      const bool ok = answer.record.ok;
      failed_ += ok ? 0 : 1;
      records.push_back(std::move(answer.record));
      if (!ok) {
        return;
      }
      messages.push_back({"assistant", std::move(answer.text)});
    }
  }

  const LoadTarget& target_;
  const LoadMix& mix_;
  const LoadPlan& plan_;
  const LoadClock::time_point epoch_ = LoadClock::now();
  std::vector<std::vector<LoadRecord>> records_;  // by conversation, each one thread's
  std::atomic<size_t> next_{0};
  std::atomic<int64_t> done_{0};
  std::atomic<int64_t> failed_{0};
  std::atomic<int64_t> running_{0};
  std::atomic<int64_t> answer_tokens_{0};
};

}  // namespace

LoadRun run_load(const LoadTarget& target,
                 const LoadMix& mix,
                 const LoadPlan& plan,
                 const LoadLevel& level,
                 const std::function<void(const LoadProgress&)>& progress) {
  LoadRun run;
  run.level = level;
  const std::optional<DraftTotals> before = read_draft_totals(target);
  LoadStage stage(target, mix, plan);
  {
    std::mutex mutex;
    std::condition_variable_any ended;
    std::jthread teller([&](const std::stop_token& stop) {
      std::unique_lock lock(mutex);
      while (progress && !stop.stop_requested()) {
        ended.wait_for(lock, stop, std::chrono::seconds(1), [] { return false; });
        if (!stop.stop_requested()) {
          progress(stage.progress());
        }
      }
    });
    stage.play(std::min(level.concurrency, static_cast<int32_t>(plan.conversations.size())));
    run.wall_s = stage.seconds();
  }
  run.records = stage.take_records();
  const std::optional<DraftTotals> after = read_draft_totals(target);
  if (before && after) {
    run.drafts = {after->verify_steps - before->verify_steps,
                  after->drafted - before->drafted,
                  after->accepted - before->accepted};
  }
  return run;
}

}  // namespace baleen::apps
