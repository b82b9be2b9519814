// POST /generate over HTTP: text and ids, batches, log-probs, cumulative streams, aborts, errors.
#include <future>
#include <span>

#include <gtest/gtest.h>

#include "cache/choice_arrays.h"
#include "engine/scripted_choices.h"
#include "server/base64.h"
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

/// Layers 0 and 2 choose by score, 1 by token id; layer 2 picks.
cache::ChoiceLayout recorded_layers() {
  cache::ChoiceLayout layout;
  layout.routed_layers = {0, 2};
  layout.picking_layers = {2};
  layout.num_experts = 300;
  layout.experts_per_token = 2;
  layout.ratio = 4;
  layout.topk = 3;
  return layout;
}

ScriptedApiOptions recording(int64_t vocab_size) {
  ScriptedApiOptions options;
  options.choices = recorded_layers();
  auto routes = std::make_shared<cache::TokenRoutes>();
  routes->layers = {1};
  routes->vocab_size = vocab_size;
  routes->experts_per_token = 2;
  for (int32_t id = 0; id < vocab_size; ++id) {
    routes->experts.push_back(id % 150);
    routes->experts.push_back(id % 150 + 100);
  }
  options.token_routes = std::move(routes);
  return options;
}

TEST(NativeTest, ChoicesOfAllTokensThatRanComeAsArrays) {
  const auto tokenizer = text::Tokenizer::load("src/text/testdata/tiny_tokenizer.json");
  const ScriptedApiOptions options = recording(tokenizer->vocab_size());
  ScriptedApi api(options);
  api.emit_pieces({"f", "orty", "-two and more of it"});  // a prompt gives one token
  for (const int32_t from : {0, 3}) {
    for (const bool streams : {false, true}) {
      const std::string request =
          R"({"text": "what is six times seven?", "return_routed_experts": true,
              "return_indexer_topk": true, "routed_experts_start_len": )" +
          std::to_string(from) + (streams ? R"(, "stream": true})" : "}");
      const json::value body = streams ? api.stream(kGeneratePath, request).chunks.back()
                                       : api.ok(kGeneratePath, request);
      std::vector<int32_t> ids = api.last_prompt();
      for (const json::value& id : body.at("output_ids").as_array()) {
        ids.push_back(static_cast<int32_t>(id.as_int64()));
      }
      ids.pop_back();  // the last token has not run
      const auto of = std::span(ids).subspan(static_cast<size_t>(from));
      const cache::ChoiceRecords records = engine::scripted_choices(recorded_layers(), of, from);
      const json::value& meta = body.at("meta_info");
      EXPECT_EQ(std::string(meta.at("routed_experts").as_string()),
                base64_of_numbers(cache::expert_array(
                    recorded_layers(), records, options.token_routes.get(), of)));
      EXPECT_EQ(std::string(meta.at("indexer_topk").as_string()),
                base64_of_numbers(cache::pick_array(recorded_layers(), records)));
      EXPECT_EQ(meta.at("routed_experts").as_string().size(), (of.size() * 3 * 2 * 4 + 2) / 3 * 4);
      EXPECT_EQ(meta.at("indexer_topk").as_string().size(), (of.size() * 3 * 4 + 2) / 3 * 4);
    }
  }
}

TEST(NativeTest, ChoicesComeCodedAndOnlyWhereAskedFor) {
  const auto tokenizer = text::Tokenizer::load("src/text/testdata/tiny_tokenizer.json");
  ScriptedApi api(recording(tokenizer->vocab_size()));
  api.emit("abcdefghijklmnop");
  const json::value body = api.ok(
      kGeneratePath, R"({"text": "q", "return_indexer_topk": true, "choices_encoding": "coded"})");
  std::vector<int32_t> ids = api.last_prompt();
  for (const json::value& id : body.at("output_ids").as_array()) {
    ids.push_back(static_cast<int32_t>(id.as_int64()));
  }
  ids.pop_back();
  const json::object& meta = body.at("meta_info").as_object();
  EXPECT_EQ(std::string(meta.at("indexer_topk").as_string()),
            base64(engine::scripted_choices(recorded_layers(), ids, 0).picks));
  EXPECT_FALSE(meta.contains("routed_experts"));
  const json::object plain = api.ok(kGeneratePath, R"({"text": "q"})").at("meta_info").as_object();
  EXPECT_FALSE(plain.contains("routed_experts") || plain.contains("indexer_topk"));
  for (const char* fields : {R"("choices_encoding": "text")",
                             R"("return_routed_experts": 1)",
                             R"("return_routed_experts": true, "routed_experts_start_len": -1)",
                             R"("return_routed_experts": true, "routed_experts_start_len": 99)"}) {
    EXPECT_EQ(api.post(kGeneratePath, R"({"text": "q", )" + std::string(fields) + "}").status, 400)
        << fields;
  }
  const json::value facts = json::parse(api.client().get("/server_info")->body);
  EXPECT_EQ(json::serialize(facts.at("recorded_choices").at("routed_layers")), "[0,2]");
}

TEST(NativeTest, SaysWhatSpeculationDid) {
  ScriptedApiOptions options;
  options.max_drafts = 3;
  ScriptedApi api(options);
  std::vector<std::string> pieces(8, "abcd");
  api.emit_pieces(pieces);
  const json::value body = api.ok(kGeneratePath, R"({"text": "q", "rid": "x"})");
  const json::object& meta = body.at("meta_info").as_object();
  const int64_t steps = meta.at("spec_verify_ct").as_int64();
  const int64_t drafted = meta.at("spec_draft_token_num").as_int64();
  const int64_t accepted = meta.at("spec_accept_token_num").as_int64();
  EXPECT_GT(steps, 0);
  EXPECT_GT(accepted, 0);
  EXPECT_GE(drafted, accepted);
  EXPECT_DOUBLE_EQ(meta.at("spec_accept_rate").as_double(),
                   static_cast<double>(accepted) / static_cast<double>(drafted));
  const json::value usage = api.ok(kTextPath, R"({"model": "m", "prompt": "q"})").at("usage");
  const json::value& details = usage.at("completion_tokens_details");
  EXPECT_GT(details.at("accepted_prediction_tokens").as_int64(), 0);
  EXPECT_FALSE(api.ok(kGeneratePath, R"({"text": "q", "sampling_params": {"max_drafts": 0}})")
                   .at("meta_info")
                   .as_object()
                   .contains("spec_verify_ct"));
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
