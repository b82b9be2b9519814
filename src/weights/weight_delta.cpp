#include "weights/weight_delta.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <boost/json.hpp>
#include <fmt/format.h>

#include "base/error.h"
#include "weights/digest.h"
#include "weights/digest_file.h"
#include "weights/mapped_file.h"
#include "weights/shard_set.h"

namespace baleen::weights {
namespace {

namespace fs = std::filesystem;
namespace json = boost::json;
using Bytes = std::span<const std::byte>;

constexpr std::string_view kDeltaMagic = "BALEENW1";
constexpr std::size_t kBridge = 4;  // equal bytes inside of a run that are cheaper than a new run

[[noreturn]] void refuse_delta(const fs::path& path, const std::string& reason) {
  throw CheckpointError(fmt::format("{}: {}", path.string(), reason));
}

void put_number(std::string& out, uint64_t value) {
  for (; value >= 0x80U; value >>= 7U) {
    out.push_back(static_cast<char>(static_cast<uint8_t>(value) | 0x80U));
  }
  out.push_back(static_cast<char>(value));
}

/// Distance from the end of the run before, length, bytes; for every run of changed bytes.
std::string changed_runs(Bytes before, Bytes after) {
  std::string out;
  std::size_t done = 0;
  for (std::size_t i = 0; i < after.size();) {
    if (before[i] == after[i]) {
      ++i;
      continue;
    }
    std::size_t last = i;
    for (std::size_t j = i; j < after.size() && j <= last + kBridge; ++j) {
      last = before[j] != after[j] ? j : last;
    }
    put_number(out, i - done);
    put_number(out, last + 1 - i);
    out.append(reinterpret_cast<const char*>(after.data()) + i, last + 1 - i);
    done = i = last + 1;
  }
  return out;
}

/// Reads what changed_runs() wrote.
class RunReader {
 public:
  explicit RunReader(std::string_view bytes) : bytes_(bytes) {}

  /// False where the runs do not fit the tensor.
  bool apply(std::span<char> tensor) {
    std::size_t at = 0;
    while (next_ < bytes_.size()) {
      uint64_t gap = 0;
      uint64_t length = 0;
      if (!number(gap) || !number(length) || gap > tensor.size() - at ||
          length > tensor.size() - at - gap || length > bytes_.size() - next_) {
        return false;
      }
      at += gap;
      std::memcpy(tensor.data() + at, bytes_.data() + next_, length);
      at += length;
      next_ += length;
    }
    return true;
  }

 private:
  bool number(uint64_t& value) {
    value = 0;
    for (unsigned shift = 0; next_ < bytes_.size() && shift < 64; shift += 7) {
      const auto byte = static_cast<uint8_t>(bytes_[next_++]);
      value |= static_cast<uint64_t>(byte & 0x7FU) << shift;
      if ((byte & 0x80U) == 0) {
        return true;
      }
    }
    return false;
  }

  std::string_view bytes_;
  std::size_t next_ = 0;
};

/// A published folder with its version and the digest of every tensor as it is stored.
struct Version {
  explicit Version(const fs::path& path) : folder(path), shards(ShardSet::open(path)) {
    const auto told = read_digest_file(path);
    if (!told) {
      refuse_delta(path, fmt::format("has no {}", kDigestFileName));
    }
    number = told->version;
    for (const ShardSet::Entry& entry : shards.entries()) {
      digests.emplace_back(entry.tensor->name,
                           tensor_digest(entry.tensor->name, {shards.bytes(entry)}));
    }
    std::sort(digests.begin(), digests.end());
  }

  fs::path folder;
  ShardSet shards;
  int64_t number = 0;
  TensorDigests digests;  // by name
};

bool is_shard(const fs::path& path) {
  return path.extension() == ".safetensors";
}

/// What stands before the tensors of a shard, which ShardSet has checked.
std::string head_of(const fs::path& shard) {
  const MappedFile file = MappedFile::open(shard);
  uint64_t length = 0;
  std::memcpy(&length, file.bytes().data(), sizeof(length));
  return {reinterpret_cast<const char*>(file.bytes().data()),
          static_cast<std::size_t>(length) + sizeof(length)};
}

void check_layout(const Version& before, const Version& after) {
  std::vector<std::string> names;
  for (const ShardSet::Entry& entry : after.shards.entries()) {
    names.push_back(after.shards.file_name(entry));
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  for (const std::string& name : names) {
    if (!fs::exists(before.folder / name) ||
        head_of(before.folder / name) != head_of(after.folder / name)) {
      refuse_delta(after.folder / name,
                   fmt::format("is laid out otherwise than in {}; publish the whole folder",
                               before.folder.string()));
    }
  }
}

std::string text_of(const json::object& object, const char* key) {
  const json::value* value = object.if_contains(key);
  return value != nullptr && value->is_string() ? std::string(value->as_string()) : std::string();
}

int64_t number_of(const json::object& object, const char* key) {
  const json::value* value = object.if_contains(key);
  return value != nullptr && value->is_int64() ? value->as_int64() : -1;
}

/// A delta file, opened.
struct Delta {
  explicit Delta(const fs::path& path) : file(MappedFile::open(path)) {
    const std::string_view all(reinterpret_cast<const char*>(file.bytes().data()),
                               file.bytes().size());
    uint64_t length = 0;
    constexpr std::size_t kFront = kDeltaMagic.size() + sizeof(length);
    if (!all.starts_with(kDeltaMagic) || all.size() < kFront) {
      refuse_delta(path, "is no delta of weights");
    }
    std::memcpy(&length, all.data() + kDeltaMagic.size(), sizeof(length));
    if (length > all.size() - kFront) {
      refuse_delta(path, "is cut off");
    }
    json::error_code error;
    json::value parsed = json::parse(all.substr(kFront, length), error);
    payload = all.substr(kFront + length);
    if (error || !parsed.is_object() || !parsed.as_object()["tensors"].is_object() ||
        !parsed.as_object()["files"].is_object() ||
        text_of(parsed.as_object(), "payload") != text_digest(payload)) {
      refuse_delta(path, "is damaged");
    }
    head = std::move(parsed.as_object());
  }

  MappedFile file;
  json::object head;
  std::string_view payload;
};

/// Changes one tensor of a shard that was read whole.
void change_tensor(const fs::path& path,
                   const json::object& change,
                   std::string_view payload,
                   const std::string& name,
                   std::span<char> tensor) {
  const int64_t begin = number_of(change, "begin");
  const int64_t bytes = number_of(change, "bytes");
  if (begin < 0 || bytes < 0 || static_cast<uint64_t>(begin) > payload.size() ||
      static_cast<uint64_t>(bytes) > payload.size() - static_cast<uint64_t>(begin)) {
    refuse_delta(path, name + ": its change lies outside of the file");
  }
  const std::string_view stored =
      payload.substr(static_cast<std::size_t>(begin), static_cast<std::size_t>(bytes));
  const bool whole = text_of(change, "encoding") == "whole";
  if (whole ? stored.size() != tensor.size() : !RunReader(stored).apply(tensor)) {
    refuse_delta(path, name + ": its change does not fit");
  }
  if (whole) {
    std::memcpy(tensor.data(), stored.data(), stored.size());
  }
  const uint64_t digest = tensor_digest(name, {std::as_bytes(std::span<const char>(tensor))});
  if (text_of(change, "digest") != fmt::format("{:016x}", digest)) {
    refuse_delta(path, name + ": other bytes come out than were published");
  }
}

void write_file(const fs::path& path, std::string_view bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (!file) {
    throw SystemError(fmt::format("{}: cannot be written", path.string()));
  }
}

/// What lies beside the shards, by name: digest, and the text where it is not that of `before`.
json::object other_files(const fs::path& before, const fs::path& after) {
  std::map<std::string, std::string> texts;
  for (const fs::directory_entry& entry : fs::directory_iterator(after)) {
    if (entry.is_regular_file() && !is_shard(entry.path())) {
      texts[entry.path().filename().string()] = read_text_file(entry.path());
    }
  }
  json::object files;
  for (const auto& [name, text] : texts) {
    json::object file = {{"digest", text_digest(text)}};
    if (!fs::exists(before / name) || read_text_file(before / name) != text) {
      file["text"] = text;
    }
    files[name] = std::move(file);
  }
  return files;
}

/// The text that other_files() told of.
std::string other_file(const fs::path& base,
                       const fs::path& delta,
                       const std::string& name,
                       const json::value& told) {
  if (!told.is_object() || name.empty() || fs::path(name) != fs::path(name).filename()) {
    refuse_delta(delta, fmt::format("\"{}\" is no file of a version", name));
  }
  const bool changed = told.as_object().contains("text");
  if (!changed && !fs::exists(base / name)) {
    refuse_delta(base, fmt::format("has no {}", name));
  }
  std::string text = changed ? text_of(told.as_object(), "text") : read_text_file(base / name);
  if (text_of(told.as_object(), "digest") != text_digest(text)) {
    refuse_delta(changed ? delta : base, name + " is not what was published");
  }
  return text;
}

}  // namespace

DeltaReport write_delta(const fs::path& before, const fs::path& after, const fs::path& delta) {
  const Version from(before);
  const Version to(after);
  check_layout(from, to);
  std::map<std::string_view, const ShardSet::Entry*> old;
  for (const ShardSet::Entry& entry : from.shards.entries()) {
    old[entry.tensor->name] = &entry;
  }
  DeltaReport report;
  json::object tensors;
  std::string payload;
  for (const ShardSet::Entry& entry : to.shards.entries()) {
    const Bytes was = from.shards.bytes(*old.at(entry.tensor->name));
    const Bytes is = to.shards.bytes(entry);
    report.full_bytes += static_cast<int64_t>(is.size());
    if (std::equal(was.begin(), was.end(), is.begin(), is.end())) {
      continue;
    }
    ++report.changed_tensors;
    std::string stored = changed_runs(was, is);
    const bool whole = stored.size() >= is.size();
    if (whole) {
      stored.assign(reinterpret_cast<const char*>(is.data()), is.size());
    }
    tensors[entry.tensor->name] =
        json::object{{"encoding", whole ? "whole" : "runs"},
                     {"begin", payload.size()},
                     {"bytes", stored.size()},
                     {"digest", fmt::format("{:016x}", tensor_digest(entry.tensor->name, {is}))}};
    payload += stored;
  }
  const std::string head = json::serialize(json::object{{"from_version", from.number},
                                                        {"to_version", to.number},
                                                        {"from_root", digest_root(from.digests)},
                                                        {"to_root", digest_root(to.digests)},
                                                        {"payload", text_digest(payload)},
                                                        {"files", other_files(before, after)},
                                                        {"tensors", std::move(tensors)}});
  const uint64_t length = head.size();
  std::string all(kDeltaMagic);
  all.append(reinterpret_cast<const char*>(&length), sizeof(length));
  all += head + payload;
  report.delta_bytes = static_cast<int64_t>(all.size());
  write_text_file(delta, all);
  return report;
}

void apply_delta(const fs::path& base, const fs::path& delta, const fs::path& target) {
  if (fs::exists(target)) {
    refuse_delta(target, "exists already");
  }
  const Version from(base);
  const Delta change(delta);
  if (from.number != number_of(change.head, "from_version")) {
    refuse_delta(delta,
                 fmt::format("changes version {}, {} has version {}",
                             number_of(change.head, "from_version"),
                             base.string(),
                             from.number));
  }
  if (digest_root(from.digests) != text_of(change.head, "from_root")) {
    refuse_delta(base, "has other bytes than the version that the delta changes");
  }
  const json::object& changes = change.head.at("tensors").as_object();
  const fs::path beside = target.string() + ".part";
  fs::remove_all(beside);  // of a run that was ended
  fs::create_directories(beside);
  std::map<std::string, std::string> shards;
  std::size_t used = 0;
  for (const ShardSet::Entry& entry : from.shards.entries()) {
    const std::string name = from.shards.file_name(entry);
    const auto [shard, fresh] = shards.try_emplace(name);
    if (fresh) {
      shard->second = read_text_file(base / name);
    }
    const json::value* one = changes.if_contains(entry.tensor->name);
    if (one == nullptr) {
      continue;
    }
    ++used;
    if (!one->is_object()) {
      refuse_delta(delta, entry.tensor->name + ": its change does not fit");
    }
    uint64_t head = 0;
    std::memcpy(&head, shard->second.data(), sizeof(head));
    change_tensor(delta,
                  one->as_object(),
                  change.payload,
                  entry.tensor->name,
                  std::span(shard->second)
                      .subspan(sizeof(head) + head + entry.tensor->begin,
                               entry.tensor->end - entry.tensor->begin));
  }
  if (used != changes.size()) {
    refuse_delta(delta, fmt::format("changes tensors that {} has not", base.string()));
  }
  for (const auto& [name, bytes] : shards) {
    write_file(beside / name, bytes);
  }
  for (const auto& file : change.head.at("files").as_object()) {
    write_file(beside / std::string(file.key()),
               other_file(base, delta, std::string(file.key()), file.value()));
  }
  if (digest_root(Version(beside).digests) != text_of(change.head, "to_root")) {
    refuse_delta(delta, "other bytes come out than were published");
  }
  std::error_code failed;
  fs::rename(beside, target, failed);
  if (failed) {
    throw SystemError(fmt::format("{}: cannot be renamed: {}", beside.string(), failed.message()));
  }
}

}  // namespace baleen::weights
