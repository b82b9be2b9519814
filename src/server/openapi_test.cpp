// docs/serving/openapi.json against the server: the same paths, and no field that the server does
// not know.
#include <map>
#include <set>

#include <gtest/gtest.h>

#include "server/scripted_api_test.h"

namespace baleen::server {
namespace {

json::value description(ScriptedApi& api) {
  const http::Response answer = *api.client().get("/openapi.json");
  EXPECT_EQ(answer.status, 200);
  return json::parse(answer.body);
}

TEST(OpenApiTest, DescribesExactlyThePathsThatAreAnswered) {
  ScriptedApi api;
  EXPECT_EQ(description(api), read_json_file("docs/serving/openapi.json"));
  std::set<std::string> described;
  const json::value document = description(api);
  for (const auto& path : document.at("paths").as_object()) {
    for (const auto& operation : path.value().as_object()) {
      std::string method(operation.key());
      for (char& c : method) {
        c = static_cast<char>(c - 'a' + 'A');
      }
      // A prefix route is one for everything below it.
      const std::string text(path.key());
      described.insert(method + " " + text.substr(0, text.find('{')));
    }
  }
  std::set<std::string> answered;
  for (const auto& [method, path] : api.server->routes()) {
    answered.insert(method + " " + path);
  }
  EXPECT_EQ(described, answered);
}

/// A valid body for each schema, to which fields are added one by one.
const std::map<std::string, std::string>& valid_bodies() {
  static const std::map<std::string, std::string> bodies = {
      {"ChatRequest", R"({"model": "m", "messages": [{"role": "user", "content": "hi"}]})"},
      {"CompletionRequest", R"({"model": "m", "prompt": "hi"})"},
      {"MessagesRequest",
       R"({"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]})"},
      {"ResponsesRequest", R"({"model": "m", "input": "hi"})"},
      {"GenerateRequest", R"({"text": "hi"})"},
      {"TokenizeRequest", R"({"messages": [{"role": "user", "content": "hi"}]})"},
      {"DetokenizeRequest", R"({"tokens": [1]})"},
      {"ParseCallsRequest", R"({"text": "hi", "tools": []})"},
      {"SeparateReasoningRequest", R"({"text": "hi"})"},
      {"AbortRequest", R"({"rid": "x"})"},
      {"PauseRequest", R"({"mode": "in_place"})"},
      {"ContinueRequest", "{}"},
      {"FlushRequest", "{}"},
      {"UpdateWeightsRequest", R"({"model_path": "x"})"},
      {"WeightVersionRequest", R"({"new_version": "v"})"},
      {"MemoryRequest", "{}"}};
  return bodies;
}

TEST(OpenApiTest, TheServerKnowsEveryFieldThatIsDescribed) {
  ScriptedApiOptions options;
  options.on_update = [](const std::string&) { return Status(); };
  ScriptedApi api(options);
  api.emit("x");
  const json::value document = description(api);
  std::set<std::string> seen;
  for (const auto& path : document.at("paths").as_object()) {
    const json::value* operation = path.value().as_object().if_contains("post");
    if (operation == nullptr || !operation->as_object().contains("requestBody")) {
      continue;
    }
    const json::object& content = operation->at("requestBody").at("content").as_object();
    if (!content.contains("application/json")) {
      EXPECT_TRUE(path.key().starts_with("/weights/")) << path.key();  // messages, no fields
      continue;
    }
    const std::string ref(content.at("application/json").at("schema").at("$ref").as_string());
    const std::string name = ref.substr(ref.rfind('/') + 1);
    seen.insert(name);
    ASSERT_TRUE(valid_bodies().contains(name)) << name;
    const std::string url(path.key());
    EXPECT_EQ(api.post(url, valid_bodies().at(name)).status, 200) << url;
    json::object unknown = json::parse(valid_bodies().at(name)).as_object();
    unknown["no_such_field"] = 1;
    EXPECT_EQ(api.post(url, json::serialize(unknown)).status, 400) << url;
    const json::object& schema = document.at("components").at("schemas").at(name).as_object();
    for (const auto& property : schema.at("properties").as_object()) {
      json::object body = json::parse(valid_bodies().at(name)).as_object();
      body[property.key()] = json::object{{"neither", "this"}};  // wrong for every field
      const http::Response answer = api.post(url, json::serialize(body));
      const std::string fault = std::string(property.key()) + ": unknown field";
      EXPECT_EQ(answer.body.find(fault), std::string::npos) << url << ' ' << answer.body;
    }
  }
  EXPECT_EQ(seen.size(), valid_bodies().size());
}

}  // namespace
}  // namespace baleen::server
