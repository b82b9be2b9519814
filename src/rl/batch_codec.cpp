#include "rl/batch_codec.h"

#include <cstring>
#include <type_traits>

#include <fmt/format.h>
#include <xxhash.h>

#include "base/error.h"

namespace baleen::rl {
namespace {

constexpr uint64_t kMagic = 0x324854424C524C42;  // "BLRLBTH2"

class ByteWriter {
 public:
  template <class T>
    requires std::is_trivially_copyable_v<T>
  void put(const T& value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(T));
  }
  template <class T>
    requires std::is_trivially_copyable_v<T>
  void put(const std::vector<T>& values) {
    put(static_cast<uint64_t>(values.size()));
    bytes_.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
  }
  void put(const std::string& text) {
    put(static_cast<uint64_t>(text.size()));
    bytes_ += text;
  }
  std::string take() {
    put(static_cast<uint64_t>(XXH3_64bits(bytes_.data(), bytes_.size())));
    return std::move(bytes_);
  }

 private:
  std::string bytes_;
};

class ByteReader {
 public:
  ByteReader(const std::string& bytes, const std::string& where) : bytes_(bytes), where_(where) {
    uint64_t sum = 0;
    if (bytes.size() < 2 * sizeof(uint64_t)) {
      fail("cut short");
    }
    end_ = bytes.size() - sizeof(uint64_t);
    std::memcpy(&sum, bytes.data() + end_, sizeof(sum));
    if (sum != XXH3_64bits(bytes.data(), end_)) {
      fail("its checksum is wrong");
    }
  }

  template <class T>
    requires std::is_trivially_copyable_v<T>
  void get(T& value) {
    std::memcpy(&value, next(sizeof(T)), sizeof(T));
  }
  template <class T>
    requires std::is_trivially_copyable_v<T>
  void get(std::vector<T>& values) {
    values.resize(count(sizeof(T)));
    if (!values.empty()) {
      std::memcpy(values.data(), next(values.size() * sizeof(T)), values.size() * sizeof(T));
    }
  }
  void get(std::string& text) {
    const std::size_t size = count(1);
    text.assign(next(size), size);
  }
  /// Of things that take at least one byte each.
  std::size_t count(std::size_t bytes_each) {
    uint64_t n = 0;
    get(n);
    if (n > (end_ - at_) / bytes_each) {
      fail("a length is wrong");
    }
    return static_cast<std::size_t>(n);
  }
  void must_be_done() const {
    if (at_ != end_) {
      fail("there is more than expected");
    }
  }
  [[noreturn]] void fail(const char* what) const {
    throw CheckpointError(fmt::format("{}: {}", where_, what));
  }

 private:
  const char* next(std::size_t size) {
    if (size > end_ - at_) {
      fail("cut short");
    }
    at_ += size;
    return bytes_.data() + at_ - size;
  }

  const std::string& bytes_;
  const std::string& where_;
  std::size_t at_ = 0;
  std::size_t end_ = 0;
};

/// visit(field) for every field, in the order of the bytes.
template <class Sample, class Visit>
void walk_sample(Sample& s, Visit&& visit) {
  visit(s.group);
  visit(s.index);
  visit(s.rollout_id);
  visit(s.prompt_tokens);
  visit(s.ids);
  visit(s.logprobs);
  visit(s.mask);
  visit(s.versions);
  visit(s.response);
  visit(s.reward);
  visit(s.status);
  visit(s.reward_fault);
  visit(s.remove_sample);
  visit(s.retries);
  visit(s.cached_tokens);
}

template <class Counts, class Visit>
void walk_counts(Counts& c, Visit&& visit) {
  visit(c.groups_submitted);
  visit(c.groups_judged);
  visit(c.rounds);
  visit(c.first_samples);
  visit(c.first_reward);
  visit(c.unfinished);
  visit(c.retries);
  visit(c.reward_errors);
  visit(c.reward_timeouts);
}

template <class Group, class Visit>
void walk_group(Group& g, Visit&& visit) {
  visit(g.group);
  visit(g.round);
  visit(g.prompt.number);
  visit(g.prompt.ids);
  visit(g.prompt.text);
  visit(g.prompt.label);
  visit(g.prompt.metadata);
}

void put_groups(ByteWriter& writer, const std::vector<RolloutGroup>& groups) {
  const auto put = [&](const auto& field) { writer.put(field); };
  put(static_cast<uint64_t>(groups.size()));
  for (const RolloutGroup& group : groups) {
    walk_group(group, put);
    put(static_cast<uint64_t>(group.samples.size()));
    for (const RolloutSample& sample : group.samples) {
      walk_sample(sample, put);
      put(sample.accuracy.has_value());
      put(sample.accuracy.value_or(0.0));
      put(sample.choices.has_value());
      if (sample.choices) {
        put(sample.choices->first_position);
        put(sample.choices->count);
        put(sample.choices->routes);
        put(sample.choices->picks);
      }
    }
  }
}

void get_groups(ByteReader& reader, std::vector<RolloutGroup>& groups) {
  const auto get = [&](auto& field) { reader.get(field); };
  groups.resize(reader.count(1));
  for (RolloutGroup& group : groups) {
    walk_group(group, get);
    group.samples.resize(reader.count(1));
    for (RolloutSample& sample : group.samples) {
      walk_sample(sample, get);
      bool there = false;
      double accuracy = 0.0;
      get(there);
      get(accuracy);
      sample.accuracy = there ? std::optional(accuracy) : std::nullopt;
      get(there);
      if (there) {
        cache::ChoiceRecords& choices = sample.choices.emplace();
        get(choices.first_position);
        get(choices.count);
        get(choices.routes);
        get(choices.picks);
      }
    }
  }
}

}  // namespace

std::string encode_batch(const RolloutBatch& batch, const DataState& data) {
  ByteWriter writer;
  writer.put(kMagic);
  writer.put(batch.rollout_id);
  walk_counts(batch.counts, [&](const auto& field) { writer.put(field); });
  writer.put(static_cast<uint64_t>(batch.counts.filter.size()));
  for (const auto& [name, value] : batch.counts.filter) {
    writer.put(name);
    writer.put(value);
  }
  put_groups(writer, batch.groups);
  writer.put(data.next_group);
  put_groups(writer, data.unfinished);
  return writer.take();
}

DecodedBatch decode_batch(const std::string& bytes, const std::string& where) {
  ByteReader reader(bytes, where);
  uint64_t magic = 0;
  reader.get(magic);
  if (magic != kMagic) {
    reader.fail("not a rollout of this format");
  }
  DecodedBatch out;
  reader.get(out.batch.rollout_id);
  walk_counts(out.batch.counts, [&](auto& field) { reader.get(field); });
  out.batch.counts.filter.resize(reader.count(1));
  for (auto& [name, value] : out.batch.counts.filter) {
    reader.get(name);
    reader.get(value);
  }
  get_groups(reader, out.batch.groups);
  reader.get(out.data.next_group);
  get_groups(reader, out.data.unfinished);
  reader.must_be_done();
  return out;
}

}  // namespace baleen::rl
