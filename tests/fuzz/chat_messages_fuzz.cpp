// Requests with messages, as the dialects read them: each is refused naming the field, or becomes a
// prompt in which every control token was put by us. First byte: dialect and prompt format; then
// the body.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/log.h"
#include "fuzz_check.h"
#include "server/api_request.h"
#include "server/chat_completion_request.h"
#include "server/json_input.h"
#include "server/messages/messages_request.h"
#include "server/responses/response_store.h"
#include "server/responses/responses_request.h"
#include "text/tokenizer.h"

namespace baleen::server {
namespace {

using Reader = Result<ApiRequest> (*)(const json::object& body, const RequestContext& context);

void check(uint8_t head, const std::string& text) {
  static const auto tokenizer = text::Tokenizer::load("src/text/testdata/tiny_tokenizer.json");
  static const auto store = std::make_shared<ResponseStore>(4);
  constexpr Reader kReaders[] = {
      read_chat_request, read_messages_request, read_responses_request, read_chat_request};
  constexpr text::ChatProfile kProfiles[] = {
      text::ChatProfile::kV4, text::ChatProfile::kV4_0731, text::ChatProfile::kV41};
  ServerConfig config;
  config.model_name = "m";
  config.chat_profile = kProfiles[(head >> 2U) % 3];
  config.default_thinking = (head & 64U) != 0;
  const Result<json::object> body = parse_body(text);
  if (!body.ok()) {
    FUZZ_CHECK(body.status().code == StatusCode::kInvalidArgument);
    return;
  }
  const RequestContext context{config, tokenizer, 4096, text, 1, nullptr, store};
  const Result<ApiRequest> request = kReaders[head & 3U](*body, context);
  if (!request.ok()) {
    const Status& status = request.status();
    FUZZ_CHECK(status.code == StatusCode::kInvalidArgument || status.code == StatusCode::kNotFound);
    FUZZ_CHECK(!status.message.empty());
    FUZZ_CHECK(status.message.size() < 4096);
    return;
  }
  for (const engine::GenerationRequest& choice : request->choices) {
    FUZZ_CHECK(!choice.prompt.empty());
    FUZZ_CHECK(choice.prompt.front() == tokenizer->bos_id());
    FUZZ_CHECK(std::count(choice.prompt.begin(), choice.prompt.end(), tokenizer->bos_id()) == 1);
    FUZZ_CHECK(choice.max_new_tokens >= 1);
  }
}

}  // namespace
}  // namespace baleen::server

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  baleen::log::set_level(baleen::log::Level::kWarn);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2 || size > 8192) {
    return -1;
  }
  baleen::server::check(data[0], std::string(reinterpret_cast<const char*>(data) + 1, size - 1));
  return 0;
}
