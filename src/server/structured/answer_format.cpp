#include "server/structured/answer_format.h"

#include <utility>

#include <boost/json/serialize.hpp>
#include <fmt/format.h>

#include "server/echo.h"
#include "server/json_input.h"

namespace baleen::server {
namespace {

constexpr const char* kObjectSchema = R"({"type": "object"})";

void set_grammar(FieldReader& fields,
                 std::string_view name,
                 text::GrammarKind kind,
                 std::string text,
                 AnswerFormat& format) {
  if (format.grammar) {
    fields.fail(name, fmt::format("contradicts {}: one form of the answer at most", format.field));
    return;
  }
  format.grammar = text::GrammarSpec{kind, std::move(text), false};
  format.field = fields.path_of(name);
}

/// A schema is an object or a truth value.
bool is_schema(FieldReader& fields, std::string_view name) {
  const json::value* schema = fields.value(name);
  if (schema != nullptr && !schema->is_object() && !schema->is_bool()) {
    fields.fail(name,
                fmt::format("must be a JSON schema, an object, is {}", json_kind_name(*schema)));
  }
  return schema != nullptr && fields.ok();
}

}  // namespace

void read_schema_object(FieldReader& fields, const text::JsonValue* raw, AnswerFormat& format) {
  fields.string("name");
  fields.string("description");
  fields.boolean("strict");  // the grammar holds either way
  fields.require("schema");
  if (!is_schema(fields, "schema")) {
    return;
  }
  const text::JsonValue* raw_schema = raw != nullptr ? raw->find("schema") : nullptr;
  std::string text = raw_schema != nullptr ? text::json_text(*raw_schema)
                                           : json::serialize(*fields.value("schema"));
  format.schema = text;
  set_grammar(fields, "schema", text::GrammarKind::kJsonSchema, std::move(text), format);
}

void read_response_format(FieldReader& fields, RawJson& raw, AnswerFormat& format) {
  const json::object* object = fields.object("response_format");
  if (object == nullptr) {
    return;
  }
  FieldReader inner(*object, fields.path_of("response_format"), fields.status());
  inner.require("type");
  const std::string type = inner.string("type").value_or("");
  const text::JsonValue* raw_format = raw.member("response_format");
  if (type == "json_object") {
    format.schema = kObjectSchema;
    set_grammar(inner, "type", text::GrammarKind::kJsonObject, {}, format);
  } else if (type == "json_schema") {
    inner.require("json_schema");
    if (const json::object* schema = inner.object("json_schema")) {
      FieldReader schema_fields(*schema, inner.path_of("json_schema"), fields.status());
      read_schema_object(
          schema_fields, raw_format != nullptr ? raw_format->find("json_schema") : nullptr, format);
      schema_fields.finish();
    }
  } else if (type == "structural_tag") {
    inner.require("format");
    const text::JsonValue* tag = raw_format != nullptr ? raw_format->find("format") : nullptr;
    if (inner.object("format") != nullptr && tag != nullptr) {
      set_grammar(
          inner,
          "format",
          text::GrammarKind::kStructuralTag,
          fmt::format(R"({{"type": "structural_tag", "format": {}}})", text::json_text(*tag)),
          format);
    }
  } else if (type != "text") {
    inner.fail("type",
               fmt::format("must be text, json_object, json_schema or structural_tag, is \"{}\"",
                           shortened(type)));
  }
  inner.finish();
}

void read_flat_format(const json::object& object,
                      const std::string& path,
                      const text::JsonValue* raw,
                      Status& status,
                      AnswerFormat& format) {
  FieldReader fields(object, path, status);
  fields.require("type");
  const std::string type = fields.string("type").value_or("");
  if (type == "json_object") {
    format.schema = kObjectSchema;
    set_grammar(fields, "type", text::GrammarKind::kJsonObject, {}, format);
  } else if (type == "json_schema") {
    read_schema_object(fields, raw, format);
  } else if (type != "text") {
    fields.fail(
        "type",
        fmt::format("must be text, json_object or json_schema, is \"{}\"", shortened(type)));
  }
  fields.finish();
}

void read_grammar_fields(FieldReader& fields, bool more, AnswerFormat& format) {
  const auto take = [&](std::string_view name, text::GrammarKind kind) {
    if (auto text = fields.string(name)) {
      set_grammar(fields, name, kind, std::move(*text), format);
    }
  };
  take("regex", text::GrammarKind::kRegex);
  take("ebnf", text::GrammarKind::kEbnf);
  if (more) {
    take("json_schema", text::GrammarKind::kJsonSchema);
    take("structural_tag", text::GrammarKind::kStructuralTag);
  }
}

}  // namespace baleen::server
