#pragma once
// Reads the fields of one JSON object with errors that name file, key, expected and found value,
// and remembers which keys were looked at, so that the rest can be reported. Used while parsing
// config files; owned by the parser, one thread. The object must outlive the reader.
//
//   JsonFields fields(object, "config.json", {{"hidden_size", "dim"}});
//   int64_t width = fields.integer("hidden_size");
//   for (const std::string& key : fields.unused()) { ... }

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <boost/json.hpp>

namespace baleen::weights {

/// Throws ConfigError naming the file when the text is not one JSON object.
boost::json::object parse_json_object(const std::string& text, const std::string& where);

class JsonFields {
 public:
  /// aliases: other spelling -> key. Both spellings in one object must have equal values.
  JsonFields(const boost::json::object& object,
             std::string where,
             const std::multimap<std::string, std::string>& aliases = {});

  /// The value, or null when the key is absent or JSON null. Marks the key as used.
  const boost::json::value* find(std::string_view key);
  bool has(std::string_view key) { return find(key) != nullptr; }
  int64_t integer(std::string_view key, std::optional<int64_t> fallback = std::nullopt);
  double number(std::string_view key, std::optional<double> fallback = std::nullopt);
  std::optional<std::string> text(std::string_view key);
  std::vector<int64_t> integers(std::string_view key);
  std::vector<std::string> texts(std::string_view key);
  const boost::json::object* object(std::string_view key);
  /// Marks a key as known without reading it.
  void ignore(std::string_view key) { used_.emplace(key); }
  /// If the key is there, it must have this value.
  void expect(std::string_view key, const boost::json::value& value);
  /// Throws ConfigError "FILE: KEY: reason".
  [[noreturn]] void refuse(std::string_view key, std::string_view reason) const;
  std::vector<std::string> unused() const;
  const std::string& where() const { return where_; }

 private:
  int64_t as_integer(std::string_view key, const boost::json::value& value) const;
  const boost::json::object& object_;
  std::string where_;
  std::map<std::string, std::string, std::less<>> spelling_;  // key -> spelling in the object
  std::set<std::string, std::less<>> used_;
};

}  // namespace baleen::weights
