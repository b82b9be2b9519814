// POST /v1/completions over HTTP.
#include <gtest/gtest.h>

#include "server/scripted_api_test.h"

namespace baleen::server {
namespace {

TEST(CompletionsTest, AnswersWithTextUsageAndFinish) {
  ScriptedApi api;
  api.emit("forty-two");
  const json::value body =
      api.ok(kTextPath, R"({"model": "m", "prompt": "6*7=", "max_tokens": 100})");
  EXPECT_TRUE(body.at("id").as_string().starts_with("cmpl-"));
  EXPECT_EQ(body.at("object").as_string(), "text_completion");
  EXPECT_EQ(body.at("model").as_string(), "m");
  const json::value& choice = body.at("choices").as_array().at(0);
  EXPECT_EQ(choice.at("text").as_string(), "forty-two");
  EXPECT_EQ(choice.at("finish_reason").as_string(), "stop");
  EXPECT_TRUE(choice.at("matched_stop").is_null());
  EXPECT_TRUE(choice.at("logprobs").is_null());
  EXPECT_EQ(api.last_prompt_text(), "6*7=");
  const auto prompt = static_cast<int64_t>(api.tokenizer->encode("6*7=").size());
  const auto answer = static_cast<int64_t>(api.tokenizer->encode("forty-two").size()) + 1;
  EXPECT_EQ(body.at("usage").at("prompt_tokens").as_int64(), prompt);
  EXPECT_EQ(body.at("usage").at("completion_tokens").as_int64(), answer);
  EXPECT_EQ(body.at("usage").at("total_tokens").as_int64(), prompt + answer);
}

TEST(CompletionsTest, DefaultLimitIs16Tokens) {
  ScriptedApi api;
  api.emit("x", engine::ScriptEnd::kRepeat);
  const json::value body = api.ok(kTextPath, R"({"model": "m", "prompt": "go"})");
  EXPECT_EQ(body.at("choices").at(0).at("text").as_string(), std::string(16, 'x'));
  EXPECT_EQ(body.at("choices").at(0).at("finish_reason").as_string(), "length");
}

TEST(CompletionsTest, RawPromptsMayHoldControlTokens) {
  ScriptedApi api;
  api.emit("x");
  api.ok(kTextPath, R"({"model": "m", "prompt": "<｜User｜>hi"})");
  EXPECT_EQ(api.last_prompt().at(0), api.tokenizer->find("<｜User｜>"));
}

TEST(CompletionsTest, TakesEveryFormOfPrompt) {
  ScriptedApi api;
  api.emit("x");
  api.ok(kTextPath, R"({"model": "m", "prompt": [72, 105]})");
  EXPECT_EQ(api.last_prompt(), (std::vector<int32_t>{72, 105}));
  const json::value two = api.ok(kTextPath, R"({"model": "m", "prompt": ["a", "bc"], "n": 2})");
  ASSERT_EQ(two.at("choices").as_array().size(), 4U);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(two.at("choices").at(i).at("index").as_int64(), static_cast<int64_t>(i));
  }
  EXPECT_EQ(
      two.at("usage").at("prompt_tokens").as_int64(),
      static_cast<int64_t>(api.tokenizer->encode("a").size() + api.tokenizer->encode("bc").size()));
  const json::value ids = api.ok(kTextPath, R"({"model": "m", "prompt": [[72], [105, 33]]})");
  EXPECT_EQ(ids.at("choices").as_array().size(), 2U);
  EXPECT_EQ(ids.at("usage").at("prompt_tokens").as_int64(), 3);
}

TEST(CompletionsTest, StreamJoinsToTheWholeAnswer) {
  ScriptedApi api;
  api.emit("one two 三");
  const StreamedEvents events =
      api.stream(kTextPath,
                 R"({"model": "m", "prompt": "go", "max_tokens": 50, "stream": true, "n": 2,
          "stream_options": {"include_usage": true}})");
  ASSERT_EQ(events.status, 200);
  EXPECT_TRUE(events.done);
  EXPECT_TRUE(events.after_done.empty());
  for (int64_t index : {0, 1}) {
    const JoinedChoice joined = join_choice(events.chunks, index);
    EXPECT_EQ(joined.text, "one two 三");
    EXPECT_EQ(joined.finish_reason, "stop");
  }
  const json::value& last = events.chunks.back();
  EXPECT_TRUE(last.at("choices").as_array().empty());
  const auto answer = static_cast<int64_t>(api.tokenizer->encode("one two 三").size()) + 1;
  EXPECT_EQ(last.at("usage").at("completion_tokens").as_int64(), 2 * answer);
  EXPECT_TRUE(events.chunks.front().at("usage").is_null());
}

TEST(CompletionsTest, LogprobsNameTokensAndOffsets) {
  ScriptedApi api;
  api.emit("ab é!");
  const json::value body =
      api.ok(kTextPath, R"({"model": "m", "prompt": "go", "max_tokens": 50, "logprobs": 2})");
  const json::value& logprobs = body.at("choices").at(0).at("logprobs");
  const std::vector<int32_t> ids = api.tokenizer->encode("ab é!");
  const json::array& tokens = logprobs.at("tokens").as_array();
  ASSERT_EQ(tokens.size(), ids.size());  // the end token is not part of the text
  EXPECT_EQ(logprobs.at("token_logprobs").as_array().size(), ids.size());
  EXPECT_NEAR(logprobs.at("token_logprobs").at(0).as_double(), -0.6931, 1e-4);
  EXPECT_EQ(logprobs.at("text_offset").at(0).as_int64(), 0);
  EXPECT_EQ(logprobs.at("text_offset").as_array().back().as_int64(), 4);
  EXPECT_EQ(logprobs.at("top_logprobs").at(0).as_object().size(), 2U);
  const StreamedEvents events = api.stream(
      kTextPath,
      R"({"model": "m", "prompt": "go", "max_tokens": 50, "logprobs": 2, "stream": true})");
  EXPECT_EQ(join_choice(events.chunks).logprobs, tokens);
}

TEST(CompletionsTest, StopsOnStringsAndIds) {
  ScriptedApi api;
  api.emit("abc END. tail");
  const json::value cut =
      api.ok(kTextPath, R"({"model": "m", "prompt": "go", "max_tokens": 50, "stop": ["END."]})");
  EXPECT_EQ(cut.at("choices").at(0).at("text").as_string(), "abc ");
  EXPECT_EQ(cut.at("choices").at(0).at("matched_stop").as_string(), "END.");
  const json::value kept = api.ok(
      kTextPath,
      R"({"model": "m", "prompt": "go", "max_tokens": 50, "stop": "END.", "no_stop_trim": true})");
  EXPECT_EQ(kept.at("choices").at(0).at("text").as_string(), "abc END.");
  const int32_t last = api.tokenizer->encode("abc END. tail").back();
  const json::value by_id = api.ok(kTextPath,
                                   R"({"model": "m", "prompt": "go", "max_tokens": 50,
                                       "stop_token_ids": [)" +
                                       std::to_string(last) + "]}");
  EXPECT_EQ(by_id.at("choices").at(0).at("matched_stop").as_int64(), last);
  EXPECT_EQ(by_id.at("choices").at(0).at("finish_reason").as_string(), "stop");
}

TEST(CompletionsTest, FieldsWithoutEffectAreTaken) {
  ScriptedApi api;
  api.emit("x");
  api.ok(kTextPath,
         R"({"model": "m", "prompt": "go", "user": "u", "metadata": {"a": "b"}, "store": false,
             "service_tier": "auto", "safety_identifier": "s", "prompt_cache_key": "k",
             "echo": false, "suffix": null, "best_of": 1, "n": 1, "seed": 18446744073709551615,
             "logit_bias": {"3": -100}, "temperature": 0, "top_p": 1, "top_k": -1, "min_p": 0,
             "frequency_penalty": 2, "presence_penalty": -2, "repetition_penalty": 1.1,
             "min_tokens": 0, "ignore_eos": false, "stream_options": null})");
}

TEST(CompletionsTest, AskedForLengthZeroGivesThePromptsUsageOnly) {
  ScriptedApi api;
  api.emit("x");
  const json::value body = api.ok(kTextPath, R"({"model": "m", "prompt": "go", "max_tokens": 0})");
  EXPECT_EQ(body.at("choices").at(0).at("text").as_string(), "");
  EXPECT_EQ(body.at("usage").at("completion_tokens").as_int64(), 0);
}

}  // namespace
}  // namespace baleen::server
