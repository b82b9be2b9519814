#pragma once
// What the server answers with its tokenizer, prompt encoder and output parser alone, without the
// engine. Each function takes a request's body and gives the answer's. Pure, any thread.
//
//   Result<json::object> answer = tokenize(body, context);

#include <boost/json/object.hpp>

#include "base/result.h"
#include "server/api_request.h"

namespace baleen::server {

/// {"prompt": text or texts} or {"messages": ..., "tools": ...}, as in a chat request, gives
/// {"tokens", "count", "max_model_len"}; lists of them for a list of texts.
Result<json::object> tokenize(const json::object& body, const RequestContext& context);

/// {"tokens": ids, "skip_special_tokens"} gives {"text", "prompt"}, the same text twice: clients of
/// either name exist.
Result<json::object> detokenize(const json::object& body, const RequestContext& context);

/// A chat request gives what the model would be shown: {"prompt", "tokens", "count",
/// "starts_in_reasoning"}.
Result<json::object> render_chat(const json::object& body, const RequestContext& context);

/// {"text", "tools", "tool_call_parser"} gives {"normal_text", "calls"}.
Result<json::object> parse_function_call(const json::object& body, const RequestContext& context);

/// {"text", "reasoning_parser"} gives {"reasoning_text", "text"}.
Result<json::object> separate_reasoning(const json::object& body, const RequestContext& context);

}  // namespace baleen::server
