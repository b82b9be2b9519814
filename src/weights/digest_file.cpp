#include "weights/digest_file.h"

#include <charconv>
#include <fstream>
#include <string_view>

#include <fmt/format.h>

#include "base/error.h"
#include "weights/json_fields.h"
#include "weights/json_text.h"
#include "weights/mapped_file.h"

namespace baleen::weights {

void write_digest_file(const std::filesystem::path& folder, const DigestFile& digests) {
  boost::json::object values;
  for (const auto& [name, digest] : digests.values) {
    values[name] = fmt::format("{:016x}", digest);
  }
  boost::json::object object;
  object["version"] = digests.version;
  object["contract"] = digests.contract;
  object["root"] = digest_root(digests.values);
  object["values"] = std::move(values);
  const std::filesystem::path path = folder / kDigestFileName;
  std::ofstream file(path, std::ios::binary);
  file << json_object_text(object);
  file.close();
  if (!file) {
    throw SystemError(fmt::format("{}: cannot be written", path.string()));
  }
}

std::optional<DigestFile> read_digest_file(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / kDigestFileName;
  if (!std::filesystem::exists(path)) {
    return std::nullopt;
  }
  const std::string where = path.string();
  const boost::json::object object = parse_json_object(read_text_file(path), where);
  JsonFields fields(object, where);
  DigestFile digests;
  digests.version = fields.integer("version");
  digests.contract = fields.text("contract").value_or("");
  const boost::json::object* values = fields.object("values");
  if (values == nullptr) {
    fields.refuse("values", "is missing");
  }
  for (const auto& [name, value] : *values) {
    uint64_t digest = 0;
    const std::string_view text =
        value.is_string() ? std::string_view(value.get_string()) : std::string_view();
    const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), digest, 16);
    if (code != std::errc() || end != text.data() + text.size() || text.empty()) {
      fields.refuse("values", fmt::format("{} is no digest", std::string(name)));
    }
    digests.values.emplace_back(std::string(name), digest);
  }
  if (const std::string root = digest_root(digests.values);
      fields.text("root").value_or("") != root) {
    fields.refuse("root", fmt::format("is not {}, that of the digests", root));
  }
  return digests;
}

}  // namespace baleen::weights
