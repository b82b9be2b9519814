#pragma once
// What form a request wants its answer to have: response_format and its like in each dialect. Pure,
// any thread.
//
//   AnswerFormat format;
//   read_response_format(fields, raw, format);
//   read_grammar_fields(fields, false, format);

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/chat_messages.h"
#include "server/field_reader.h"
#include "text/grammar.h"

namespace baleen::server {

struct AnswerFormat {
  std::optional<text::GrammarSpec> grammar;  // of the answer's text; none: free
  std::optional<std::string> schema;         // as JSON text, where the prompt is to show it
  std::string field;                         // that asked for it, for errors
};

/// "response_format" of chat completions: text, json_object, json_schema, structural_tag.
void read_response_format(FieldReader& fields, RawJson& raw, AnswerFormat& format);

/// {"type": "json_schema", "name", "schema", "strict"}: `object` is read by `fields`, `raw` is the
/// same value or null; the type is read already.
void read_schema_object(FieldReader& fields, const text::JsonValue* raw, AnswerFormat& format);

/// The same kinds where the schema's fields lie beside the type: {"type": "json_schema", "name",
/// "schema", "strict"}. `raw` is the same value or null.
void read_flat_format(const json::object& object,
                      const std::string& path,
                      const text::JsonValue* raw,
                      Status& status,
                      AnswerFormat& format);

/// "regex" and "ebnf" at the top, and with `more` "json_schema" and "structural_tag", which are
/// texts there. At most one form may be asked for.
void read_grammar_fields(FieldReader& fields, bool more, AnswerFormat& format);

}  // namespace baleen::server
