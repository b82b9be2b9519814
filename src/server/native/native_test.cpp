// POST /generate over HTTP: text and ids, batches, log-probs, cumulative streams, aborts, errors.
#include <future>

#include <gtest/gtest.h>

#include "server/scripted_api_test.h"

namespace baleen::server {
namespace {

constexpr const char* kGeneratePath = "/generate";

std::string ids_text(const std::vector<int32_t>& ids) {
  return json::serialize(json::array(ids.begin(), ids.end()));
}

TEST(NativeTest, TextInTextAndIdsOut) {
  ScriptedApi api;
  api.emit("forty-two");
  const json::value body =
      api.ok(kGeneratePath, R"({"text": "6*7=", "sampling_params": {"temperature": 0}})");
  EXPECT_EQ(body.at("text"), "forty-two");
  std::vector<int32_t> expected = api.tokenizer->encode("forty-two");
  expected.push_back(api.tokenizer->eos_id());
  EXPECT_EQ(json::serialize(body.at("output_ids")), ids_text(expected));
  const json::value& meta = body.at("meta_info");
  EXPECT_EQ(meta.at("finish_reason").at("type"), "stop");
  EXPECT_EQ(meta.at("finish_reason").at("matched").as_int64(), api.tokenizer->eos_id());
  EXPECT_EQ(meta.at("prompt_tokens").as_int64(), static_cast<int64_t>(api.last_prompt().size()));
  EXPECT_EQ(meta.at("completion_tokens").as_int64(), static_cast<int64_t>(expected.size()));
  EXPECT_EQ(meta.at("weight_version"), "default");
  EXPECT_FALSE(meta.at("id").as_string().empty());
  EXPECT_FALSE(meta.as_object().contains("output_token_logprobs"));
}

TEST(NativeTest, TakesIdsAsTheyAre) {
  ScriptedApi api;
  api.emit("x");
  const std::vector<int32_t> ids = api.tokenizer->encode("<｜User｜>hi<｜Assistant｜>");
  api.ok(kGeneratePath, R"({"input_ids": )" + ids_text(ids) + "}");
  EXPECT_EQ(api.last_prompt(), ids);
  api.ok(kGeneratePath, R"({"text": "<｜User｜>hi<｜Assistant｜>"})");
  EXPECT_EQ(api.last_prompt(), ids) << "raw prompts may hold control tokens";
}

TEST(NativeTest, ABatchGivesAListWithOwnParametersAndIds) {
  ScriptedApi api;
  api.emit("a b c d e f g");
  const json::value body =
      api.ok(kGeneratePath,
             R"({"text": ["one", "two"], "rid": ["r1", "r2"], "return_logprob": [false, true],
          "sampling_params": [{"max_new_tokens": 1}, {"max_new_tokens": 2}]})");
  const json::array& list = body.as_array();
  ASSERT_EQ(list.size(), 2U);
  EXPECT_EQ(list[0].at("meta_info").at("id"), "r1");
  EXPECT_EQ(list[1].at("meta_info").at("id"), "r2");
  EXPECT_EQ(list[0].at("output_ids").as_array().size(), 1U);
  EXPECT_EQ(list[1].at("output_ids").as_array().size(), 2U);
  EXPECT_EQ(list[1].at("meta_info").at("finish_reason").at("type"), "length");
  EXPECT_EQ(list[1].at("meta_info").at("finish_reason").at("length").as_int64(), 2);
  EXPECT_FALSE(list[0].at("meta_info").as_object().contains("output_token_logprobs"));
  EXPECT_EQ(list[1].at("meta_info").at("output_token_logprobs").as_array().size(), 2U);
  // One value holds for all, and a list of one is still a list.
  const json::value one = api.ok(
      kGeneratePath, R"({"text": ["one"], "sampling_params": {"max_new_tokens": 1, "n": 3}})");
  EXPECT_EQ(one.as_array().size(), 3U);
}

TEST(NativeTest, LogprobsOfAnswerAndPrompt) {
  ScriptedApi api;
  api.emit("ab");
  const std::vector<int32_t> prompt = api.tokenizer->encode("one two three");
  const auto ask = [&](const std::string& more) {
    return api
        .ok(kGeneratePath,
            R"({"text": "one two three", "return_logprob": true, "top_logprobs_num": 2)" + more +
                "}")
        .at("meta_info")
        .as_object();
  };
  const json::object meta = ask("");
  const json::array& tokens = meta.at("output_token_logprobs").as_array();
  ASSERT_FALSE(tokens.empty());
  EXPECT_NEAR(tokens[0].at(0).as_double(), -0.6931, 1e-3);
  EXPECT_TRUE(tokens[0].at(2).is_null());
  EXPECT_EQ(meta.at("output_top_logprobs").at(0).as_array().size(), 2U);
  EXPECT_TRUE(meta.at("input_token_logprobs").as_array().empty());
  const json::object all = ask(R"(, "logprob_start_len": 0, "return_text_in_logprobs": true)");
  const json::array& inputs = all.at("input_token_logprobs").as_array();
  ASSERT_EQ(inputs.size(), prompt.size());
  EXPECT_TRUE(inputs[0].at(0).is_null()) << "nothing comes before the first token";
  for (size_t i = 0; i < prompt.size(); ++i) {
    EXPECT_EQ(inputs[i].at(1).as_int64(), prompt[i]);
    EXPECT_EQ(std::string(inputs[i].at(2).as_string()),
              api.tokenizer->decode(std::array{prompt[i]}));
  }
  EXPECT_NEAR(inputs[1].at(0).as_double(), -0.6931, 1e-3);
  EXPECT_EQ(ask(R"(, "logprob_start_len": 1)").at("input_token_logprobs").as_array().size(),
            prompt.size() - 1);
  const json::value scored = api.ok(kGeneratePath,
                                    R"({"text": "one two three", "return_logprob": true,
          "logprob_start_len": 0, "sampling_params": {"max_new_tokens": 0}})");
  EXPECT_EQ(scored.at("meta_info").at("input_token_logprobs").as_array().size(), prompt.size());
  EXPECT_TRUE(scored.at("output_ids").as_array().empty());
}

TEST(NativeTest, EachEventRepeatsTheTextSoFar) {
  ScriptedApi api;
  api.emit("Hello, 世界!");
  const StreamedEvents events = api.stream(kGeneratePath, R"({"text": "q", "stream": true})");
  ASSERT_EQ(events.status, 200);
  EXPECT_TRUE(events.done);
  std::string last;
  size_t num_ids = 0;
  for (const json::value& event : events.chunks) {
    const std::string text(event.at("text").as_string());
    EXPECT_TRUE(text.starts_with(last)) << text;
    EXPECT_GT(event.at("output_ids").as_array().size(), num_ids);
    num_ids = event.at("output_ids").as_array().size();
    last = text;
    const bool is_last = &event == &events.chunks.back();
    EXPECT_EQ(event.at("meta_info").at("finish_reason").is_null(), !is_last);
  }
  EXPECT_EQ(last, "Hello, 世界!");
}

TEST(NativeTest, AnAnswerIsCutWhereTheContextEnds) {
  ScriptedApiOptions options;
  options.max_context = 64;
  ScriptedApi api(options);
  api.emit("on and on ", engine::ScriptEnd::kRepeat);
  const json::value body =
      api.ok(kGeneratePath, R"({"text": "q", "sampling_params": {"max_new_tokens": 1000}})");
  EXPECT_EQ(body.at("meta_info").at("finish_reason").at("type"), "length");
  EXPECT_EQ(body.at("meta_info").at("prompt_tokens").as_int64() +
                body.at("meta_info").at("completion_tokens").as_int64(),
            64);
}

TEST(NativeTest, AbortsByTheClientsId) {
  ScriptedApiOptions options;
  options.step_delay = std::chrono::microseconds(1000);
  options.max_context = 1 << 20;
  ScriptedApi api(options);
  api.emit("on and on ", engine::ScriptEnd::kRepeat);
  auto answer = std::async(std::launch::async, [&] {
    return api.ok(kGeneratePath,
                  R"({"text": "q", "rid": "mine", "sampling_params": {"max_new_tokens": 100000}})");
  });
  for (int i = 0; i < 500 && api.engine->stats().num_running == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(api.ok("/abort_request", R"({"rid": "other"})").at("num_aborted").as_int64(), 0);
  EXPECT_EQ(api.engine->stats().num_running, 1);
  EXPECT_EQ(api.ok("/abort_request", R"({"rid": "mine"})").at("num_aborted").as_int64(), 1);
  EXPECT_EQ(answer.get().at("meta_info").at("finish_reason").at("type"), "abort");
  EXPECT_TRUE(api.idle_soon());
}

TEST(NativeTest, FaultsNameTheirField) {
  ScriptedApi api;
  const auto refused = [&](const std::string& body, const std::string& param) {
    const http::Response answer = api.post(kGeneratePath, body);
    EXPECT_EQ(answer.status, 400) << answer.body;
    EXPECT_EQ(json::parse(answer.body).at("error").at("param"), json::value(param)) << answer.body;
  };
  refused("{}", "text");
  refused(R"({"text": "a", "input_ids": [1]})", "input_ids");
  refused(R"({"text": ""})", "text");
  refused(R"({"text": []})", "text");
  refused(R"({"text": ["a", ""]})", "text[1]");
  refused(R"({"text": ["a", 1]})", "text[1]");
  refused(R"({"input_ids": [1, -1]})", "input_ids[1]");
  refused(R"({"input_ids": [[1], [-1]]})", "input_ids[1][0]");
  refused(R"({"text": "a", "temperature": 1})", "temperature");
  refused(R"({"text": "a", "sampling_params": {"top_p": 0}})", "sampling_params.top_p");
  refused(R"({"text": "a", "sampling_params": {"max_tokens": 1}})", "sampling_params.max_tokens");
  refused(R"({"text": "a", "sampling_params": {"max_new_tokens": -1}})",
          "sampling_params.max_new_tokens");
  refused(R"({"text": "a", "sampling_params": {"max_new_tokens": 2, "min_new_tokens": 3}})",
          "sampling_params.min_new_tokens");
  refused(R"({"text": ["a", "b"], "sampling_params": [{}, {"top_k": 0}]})",
          "sampling_params.top_k");
  refused(R"({"text": ["a", "b"], "sampling_params": [{}]})", "sampling_params");
  refused(R"({"text": ["a", "b"], "sampling_params": [{}, 1]})", "sampling_params[1]");
  refused(R"({"text": "a", "return_routed_experts": true})", "return_routed_experts");
  refused(R"({"text": "a", "session_params": {}})", "session_params");
  refused(R"({"text": "a", "rid": "two\nlines"})", "rid");
  refused(R"({"text": "a", "rid": ""})", "rid");
}

}  // namespace
}  // namespace baleen::server
