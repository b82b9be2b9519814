#include "server/field_reader.h"

#include <boost/json/parse.hpp>
#include <gtest/gtest.h>

#include "server/json_input.h"

namespace baleen::server {
namespace {

/// Reads one object with `read`, then refuses the rest.
template <class Read>
Status status_after(const char* text, Read read) {
  const json::value value = json::parse(text);
  Status status;
  FieldReader fields(value.get_object(), "", status);
  read(fields);
  fields.finish();
  return status;
}

TEST(FieldReaderTest, ReadsEveryKind) {
  const Status status = status_after(
      R"({"b": true, "i": -3, "f": 2.0, "d": 0.5, "s": "x", "o": {"k": 1}, "a": [1], "l": ["p", "q"],
          "one": "p", "ids": [0, 7]})",
      [](FieldReader& fields) {
        EXPECT_EQ(fields.boolean("b"), true);
        EXPECT_EQ(fields.integer("i"), -3);
        EXPECT_EQ(fields.integer("f"), 2);
        EXPECT_EQ(fields.number("d"), 0.5);
        EXPECT_EQ(fields.string("s"), "x");
        ASSERT_NE(fields.object("o"), nullptr);
        ASSERT_NE(fields.array("a"), nullptr);
        EXPECT_EQ(fields.string_list("l"), (std::vector<std::string>{"p", "q"}));
        EXPECT_EQ(fields.string_list("one"), (std::vector<std::string>{"p"}));
        EXPECT_EQ(fields.integer_list("ids", 0, 7), (std::vector<int32_t>{0, 7}));
      });
  EXPECT_TRUE(status.ok()) << status.message;
}

TEST(FieldReaderTest, NullIsAbsent) {
  const Status status =
      status_after(R"({"a": null, "b": null, "c": null, "d": null})", [](FieldReader& fields) {
        EXPECT_EQ(fields.boolean("a"), std::nullopt);
        EXPECT_EQ(fields.string_list("b"), std::nullopt);
        fields.not_supported({"c"});
        fields.only("d", false);
        EXPECT_EQ(fields.integer("missing"), std::nullopt);
      });
  EXPECT_TRUE(status.ok()) << status.message;
}

struct Fault {
  const char* text;
  void (*read)(FieldReader&);
  const char* param;
  const char* mentions;
};

class FieldFaultTest : public testing::TestWithParam<Fault> {};

TEST_P(FieldFaultTest, NamesTheFieldAndWhatCame) {
  const Status status = status_after(GetParam().text, GetParam().read);
  EXPECT_EQ(status.code, StatusCode::kInvalidArgument);
  EXPECT_EQ(status.param, GetParam().param);
  EXPECT_NE(status.message.find(GetParam().mentions), std::string::npos) << status.message;
}

INSTANTIATE_TEST_SUITE_P(
    Fields,
    FieldFaultTest,
    testing::Values(
        Fault{R"({"x": 1})", [](FieldReader&) {}, "x", "unknown field"},
        Fault{
            R"({"x": 1})", [](FieldReader& f) { f.boolean("x"); }, "x", "a boolean, is an integer"},
        Fault{R"({"x": "1"})",
              [](FieldReader& f) { f.integer("x"); },
              "x",
              "an integer, is a string"},
        Fault{R"({"x": 1.5})",
              [](FieldReader& f) { f.integer("x"); },
              "x",
              "an integer, is a number"},
        Fault{R"({"x": 8})", [](FieldReader& f) { f.integer("x", 0, 7); }, "x", "0 .. 7, is 8"},
        Fault{R"({"x": -1})", [](FieldReader& f) { f.integer("x", 0); }, "x", "at least 0, is -1"},
        Fault{R"({"x": 18446744073709551615})",
              [](FieldReader& f) { f.integer("x", 0); },
              "x",
              "is 18446744073709551615"},
        Fault{
            R"({"x": true})", [](FieldReader& f) { f.number("x"); }, "x", "a number, is a boolean"},
        Fault{R"({"x": 1e999})", [](FieldReader& f) { f.number("x"); }, "x", "finite"},
        Fault{R"({"x": []})", [](FieldReader& f) { f.string("x"); }, "x", "a string, is an array"},
        Fault{
            R"({"x": 1})", [](FieldReader& f) { f.object("x"); }, "x", "an object, is an integer"},
        Fault{R"({"x": {}})", [](FieldReader& f) { f.array("x"); }, "x", "an array, is an object"},
        Fault{R"({"x": ["a", 1]})",
              [](FieldReader& f) { f.string_list("x"); },
              "x[1]",
              "a string, is an integer"},
        Fault{R"({"x": 1})",
              [](FieldReader& f) { f.string_list("x"); },
              "x",
              "a string or an array of strings"},
        Fault{R"({"x": [0, 9]})",
              [](FieldReader& f) { f.integer_list("x", 0, 8); },
              "x[1]",
              "0 .. 8, is 9"},
        Fault{R"({})", [](FieldReader& f) { f.require("x"); }, "x", "is required"},
        Fault{R"({"x": null})", [](FieldReader& f) { f.require("x"); }, "x", "is required"},
        Fault{R"({"x": 0})", [](FieldReader& f) { f.not_supported({"x"}); }, "x", "not supported"},
        Fault{R"({"x": true})",
              [](FieldReader& f) { f.only("x", false); },
              "x",
              "true is not supported; accepted: false"}));

TEST(FieldReaderTest, FirstFaultWinsAndPathsNest) {
  const json::value value = json::parse(R"({"inner": {"a": "no", "b": "no"}})");
  Status status;
  FieldReader fields(value.get_object(), "", status);
  FieldReader inner(*fields.object("inner"), "list[2].inner", status);
  inner.integer("a");
  inner.integer("b");
  inner.finish();
  EXPECT_EQ(status.param, "list[2].inner.a");
  EXPECT_EQ(fields.value("inner"), nullptr);
}

TEST(JsonInputTest, TakesOneObject) {
  const Result<json::object> body = parse_body(" {\"a\": \"\xC3\xA9\\ud83d\\ude00\"} \n");
  ASSERT_TRUE(body.ok()) << body.status().message;
  EXPECT_EQ(body->at("a").as_string(), "\xC3\xA9\xF0\x9F\x98\x80");
}

TEST(JsonInputTest, RefusesWhatIsNotOneObjectInUtf8) {
  const std::pair<std::string, const char*> faults[] = {
      {"", "empty"},
      {"  ", "empty"},
      {"{", "not valid JSON"},
      {"{\"a\": 1,}", "at byte"},
      {"{} {}", "not valid JSON"},
      {"[]", "an array"},
      {"3", "an integer"},
      {"{\"a\": NaN}", "not valid JSON"},
      {"{\"a\": \"\xFF\"}", "not valid JSON"},
      {"{\"a\": \"\xC3\"}", "not valid JSON"},
      {"{\"a\": \"\\ud83d\"}", "not valid JSON"},
  };
  for (const auto& [text, mentions] : faults) {
    const Result<json::object> body = parse_body(text);
    ASSERT_FALSE(body.ok()) << text;
    EXPECT_EQ(body.status().code, StatusCode::kInvalidArgument);
    EXPECT_NE(body.status().message.find(mentions), std::string::npos)
        << text << ": " << body.status().message;
  }
}

TEST(JsonInputTest, BoundsTheDepth) {
  const auto nested = [](int depth) {
    return "{\"a\": " + std::string(static_cast<size_t>(depth) - 1, '[') +
           std::string(static_cast<size_t>(depth) - 1, ']') + "}";
  };
  EXPECT_TRUE(parse_body(nested(kMaxJsonDepth)).ok());
  const Result<json::object> body = parse_body(nested(kMaxJsonDepth + 1));
  ASSERT_FALSE(body.ok());
  EXPECT_NE(body.status().message.find("64 levels"), std::string::npos) << body.status().message;
  EXPECT_FALSE(parse_body(nested(1'000'000)).ok());
}

}  // namespace
}  // namespace baleen::server
