#pragma once
// Reads the fields of a request's JSON object by name and type, and refuses what nobody asked for.
// The first fault wins and is kept in a Status shared by all readers of one request; afterwards
// every read gives "absent". null means absent. A value of one thread.
//
//   Status status;
//   FieldReader fields(object, "", status);
//   double top_p = fields.number("top_p").value_or(1.0);
//   fields.finish();                       // unknown fields
//   if (!status.ok()) return status;

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/value.hpp>

#include "base/result.h"

namespace baleen::server {

namespace json = boost::json;

/// "messages" + [4] is "messages[4]"; "a" + "b" is "a.b".
std::string child_path(std::string_view path, std::string_view name);
std::string element_path(std::string_view path, size_t index);

class FieldReader {
 public:
  /// `path` is where the object stands in the request, empty for the request itself. `object` and
  /// `status` outlive the reader.
  FieldReader(const json::object& object, std::string path, Status& status);

  std::optional<bool> boolean(std::string_view name);
  std::optional<int64_t> integer(std::string_view name,
                                 int64_t min = std::numeric_limits<int64_t>::min(),
                                 int64_t max = std::numeric_limits<int64_t>::max());
  std::optional<double> number(std::string_view name);
  std::optional<std::string> string(std::string_view name);
  const json::object* object(std::string_view name);
  const json::array* array(std::string_view name);
  /// Calls read(FieldReader&, index) for each element of an array, which must be objects.
  template <class Read>
  void each_object(std::string_view name, Read read) {
    const json::array* list = array(name);
    for (size_t i = 0; list != nullptr && i < list->size() && ok(); ++i) {
      if (const json::object* element = object_at(name, (*list)[i], i)) {
        FieldReader fields(*element, element_path(path_of(name), i), status_);
        read(fields, i);
      }
    }
  }
  /// Any kind; nullptr when absent or null.
  const json::value* value(std::string_view name);
  /// "a" or ["a", "b"].
  std::optional<std::vector<std::string>> string_list(std::string_view name);
  std::optional<std::vector<int32_t>> integer_list(std::string_view name, int32_t min, int32_t max);

  /// Refuses the request if the field is missing or null.
  void require(std::string_view name);
  /// Taken without effect, whatever the value.
  void ignore(std::initializer_list<std::string_view> names);
  /// Known but not built: refused unless absent or null.
  void not_supported(std::initializer_list<std::string_view> names);
  /// Known, but only `accepted` (JSON) works yet.
  void only(std::string_view name, const json::value& accepted);
  /// A fault of this field; `message` begins with what is wrong, the path is added.
  void fail(std::string_view name, std::string message, std::string api_code = {});
  /// Refuses fields that were not named; one that is null is absent.
  void finish();

  bool ok() const { return status_.ok(); }
  std::string path_of(std::string_view name) const { return child_path(path_, name); }
  Status& status() { return status_; }

 private:
  const json::object* object_at(std::string_view name, const json::value& element, size_t index);
  const json::value* wrong_kind(std::string_view name,
                                const char* expected,
                                const json::value& value);

  const json::object& object_;
  const std::string path_;
  Status& status_;
  std::set<std::string, std::less<>> seen_;
};

}  // namespace baleen::server
