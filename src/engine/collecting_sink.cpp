#include "engine/collecting_sink.h"

#include <iterator>
#include <utility>

#include "base/check.h"

namespace baleen::engine {
namespace {

template <class T>
void append(std::vector<T>& to, std::vector<T>&& from) {
  to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

}  // namespace

void CollectingSink::on_event(OutputEvent&& event) {
  std::lock_guard lock(mutex_);
  BALEEN_CHECK(!finish_, "an event after the last one");
  append(tokens_, std::move(event.tokens));
  weight_versions_.resize(tokens_.size(),
                          event.weight_version == nullptr ? "" : *event.weight_version);
  append(deltas_, std::move(event.deltas));
  append(prompt_logprobs_, std::move(event.prompt_logprobs));
  finish_ = std::move(event.finish);
  ++num_events_;
  changed_.notify_all();
}

void CollectingSink::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return finish_.has_value(); });
}

bool CollectingSink::wait_for(std::chrono::milliseconds time) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, time, [&] { return finish_.has_value(); });
}

bool CollectingSink::wait_for_tokens(size_t count, std::chrono::milliseconds time) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, time, [&] { return tokens_.size() >= count; });
}

bool CollectingSink::ended() const {
  std::lock_guard lock(mutex_);
  return finish_.has_value();
}

std::vector<GeneratedToken> CollectingSink::tokens() const {
  std::lock_guard lock(mutex_);
  return tokens_;
}

std::vector<int32_t> CollectingSink::ids() const {
  std::lock_guard lock(mutex_);
  std::vector<int32_t> out;
  for (const GeneratedToken& token : tokens_) {
    out.push_back(token.id);
  }
  return out;
}

std::vector<std::string> CollectingSink::weight_versions() const {
  std::lock_guard lock(mutex_);
  return weight_versions_;
}

std::vector<text::OutputDelta> CollectingSink::deltas() const {
  std::lock_guard lock(mutex_);
  return deltas_;
}

std::string CollectingSink::text(text::OutputPart part) const {
  std::lock_guard lock(mutex_);
  std::string out;
  for (const text::OutputDelta& delta : deltas_) {
    if (delta.part == part) {
      out += delta.text;
    }
  }
  return out;
}

std::vector<TokenLogprob> CollectingSink::prompt_logprobs() const {
  std::lock_guard lock(mutex_);
  return prompt_logprobs_;
}

size_t CollectingSink::num_events() const {
  std::lock_guard lock(mutex_);
  return num_events_;
}

FinishInfo CollectingSink::finish() const {
  std::lock_guard lock(mutex_);
  BALEEN_CHECK(finish_.has_value(), "the request has not ended");
  return *finish_;
}

}  // namespace baleen::engine
