// JSON schemas: each keyword allows and refuses, references, refusals by name, bounds.

#include "rewards/json_schema.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baleen::rewards {
namespace {

bool valid(const std::string& schema, const std::string& text) {
  const Result<JsonSchema> compiled = JsonSchema::compile(schema);
  EXPECT_TRUE(compiled.ok()) << schema << ": " << compiled.status().message;
  StepBudget budget;
  return compiled.ok() && compiled->validate(text, budget).valid;
}

struct SchemaCase {
  const char* schema;
  const char* allowed;
  const char* refused;
};

TEST(JsonSchemaTest, EveryKeywordAllowsAndRefuses) {
  const SchemaCase cases[] = {
      {R"({"type":"integer"})", "3.0", "3.5"},
      {R"({"type":["string","null"]})", "null", "1"},
      {R"({"type":"boolean"})", "true", "\"true\""},
      {R"({"enum":[1,"a",{"x":[1]}]})", R"({"x":[1.0]})", "2"},
      {R"({"const":{"a":1,"b":2}})", R"({"b":2,"a":1})", R"({"a":1})"},
      {R"({"properties":{"a":{"type":"string"}}})", R"({"a":"x","b":1})", R"({"a":1})"},
      {R"({"required":["a","b"]})", R"({"a":1,"b":2})", R"({"a":1})"},
      {R"({"properties":{"a":true},"additionalProperties":false})", R"({"a":1})", R"({"b":1})"},
      {R"({"additionalProperties":{"type":"integer"}})", R"({"a":1})", R"({"a":"x"})"},
      {R"({"minProperties":1,"maxProperties":2})", R"({"a":1})", "{}"},
      {R"({"items":{"type":"integer"}})", "[1,2]", "[1,\"x\"]"},
      {R"({"prefixItems":[{"type":"integer"}],"items":{"type":"string"}})", "[1,\"a\"]", "[1,2]"},
      {R"({"minItems":2,"maxItems":3})", "[1,2]", "[1]"},
      {R"({"uniqueItems":true})", "[1,2]", "[1,1.0]"},
      {R"({"minimum":1,"maximum":5})", "5", "5.5"},
      {R"({"exclusiveMinimum":1,"exclusiveMaximum":5})", "2", "1"},
      {R"({"multipleOf":0.1})", "0.3", "0.35"},
      {R"({"minLength":2,"maxLength":3})", "\"\xC3\xA9\xC3\xA9\"", "\"\xC3\xA9\""},
      {R"({"pattern":"^a+$"})", "\"aa\"", "\"ab\""},
      {R"({"allOf":[{"minimum":1},{"maximum":2}]})", "1.5", "3"},
      {R"({"anyOf":[{"type":"string"},{"minimum":5}]})", "7", "3"},
      {R"({"oneOf":[{"minimum":5},{"multipleOf":2}]})", "4", "6"},
      {R"({"not":{"type":"string"}})", "1", "\"a\""},
      {R"({"$ref":"#/$defs/n","$defs":{"n":{"type":"integer"}}})", "1", "\"a\""},
      {R"({"properties":{"next":{"$ref":"#"}},"required":["v"]})",
       R"({"v":1,"next":{"v":2}})",
       R"({"v":1,"next":{}})"},
      {"true", "[]", "{"}};
  for (const SchemaCase& one : cases) {
    EXPECT_TRUE(valid(one.schema, one.allowed)) << one.schema << " allows " << one.allowed;
    EXPECT_FALSE(valid(one.schema, one.refused)) << one.schema << " refuses " << one.refused;
  }
  EXPECT_FALSE(valid("false", "1"));
}

TEST(JsonSchemaTest, RulesOfAKindLeaveOtherKindsAlone) {
  EXPECT_TRUE(valid(R"({"minLength":5,"minItems":5,"minimum":5,"required":["a"]})", "null"));
}

TEST(JsonSchemaTest, TheReasonNamesThePlace) {
  StepBudget budget;
  const auto schema = JsonSchema::compile(R"({"properties":{"a":{"items":{"type":"integer"}}}})");
  ASSERT_TRUE(schema.ok());
  EXPECT_THAT(schema->validate(R"({"a":[1,"x"]})", budget).reason, testing::HasSubstr("/a/1"));
}

TEST(JsonSchemaTest, WhatIsNotKnownIsRefusedByName) {
  for (const char* schema : {R"({"patternProperties":{}})", R"({"properties":{"a":{"if":{}}}})"}) {
    const Result<JsonSchema> compiled = JsonSchema::compile(schema);
    ASSERT_FALSE(compiled.ok());
    EXPECT_THAT(compiled.status().message, testing::HasSubstr("not supported"));
  }
  for (const char* schema : {"",
                             "[]",
                             "3",
                             R"({"type":"int"})",
                             R"({"required":[1]})",
                             R"({"$ref":"#/nowhere"})",
                             R"({"$ref":"other.json"})",
                             R"({"pattern":"("})",
                             R"({"minLength":-1})",
                             R"({"anyOf":[]})"}) {
    EXPECT_FALSE(JsonSchema::compile(schema).ok()) << schema;
  }
}

TEST(JsonSchemaTest, WorkIsBounded) {
  // A schema that refers to itself twice per level would take 2^64 steps.
  const auto schema = JsonSchema::compile(R"({"allOf":[{"$ref":"#"},{"$ref":"#"}]})");
  ASSERT_TRUE(schema.ok());
  StepBudget budget(100'000);
  EXPECT_FALSE(schema->validate("1", budget).valid);
  std::string deep(400, '[');
  deep += std::string(400, ']');
  StepBudget other(100'000);
  const auto nested = JsonSchema::compile(R"({"items":{"$ref":"#"}})");
  ASSERT_TRUE(nested.ok());
  EXPECT_FALSE(nested->validate(deep, other).valid);  // deeper than 64 levels is refused
}

}  // namespace
}  // namespace baleen::rewards
