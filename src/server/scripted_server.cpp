// A program of the tests: the real API server on an executor that emits what a file says.
//
//   scripted_server SCRIPTS.json PORT     (PORT 0: the system picks one)
//
// The file: {"tokenizer": path, "model": name, "step_delay_us": 0, "num_slots": 64, "max_context":
// 4096, "max_queued": 1024, "max_connections": 1024, "max_drafts": 0, "default_thinking": false,
// "api_key": "", "drain_timeout_ms": 5000, "tls_certificate_file": "", "tls_key_file": "",
// "scripts": [{"prompt_contains": text, "text": text or "pieces": [text, ...], "end": "stop" |
// "length" | "repeat", "nan_after": tokens, "fail_after": tokens, "random_seed": number}, ...]}.
// The first script whose text the prompt contains is used. With a random seed the answer is drawn
// evenly from all tokens that are allowed, another one for each prompt. Prints `ready URL` and ends
// with 0 after SIGTERM.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include <boost/json/parse.hpp>

#include "base/error.h"
#include "base/log.h"
#include "engine/scripted_executor.h"
#include "server/api_server.h"
#include "server/field_reader.h"
#include "server/stop_signal.h"
#include "text/tokenizer.h"

namespace baleen::server {
namespace {

struct PromptScript {
  std::string prompt_contains;
  engine::Script script;
};

PromptScript read_script(const json::object& object,
                         const std::string& path,
                         const text::Tokenizer& tokenizer,
                         Status& status) {
  FieldReader fields(object, path, status);
  PromptScript out;
  out.prompt_contains = fields.string("prompt_contains").value_or("");
  const std::string end_name = fields.string("end").value_or("stop");
  engine::ScriptEnd end = engine::ScriptEnd::kStop;
  if (end_name == "length") {
    end = engine::ScriptEnd::kLength;
  } else if (end_name == "repeat") {
    end = engine::ScriptEnd::kRepeat;
  } else if (end_name != "stop") {
    fields.fail("end", "must be stop, length or repeat");
  }
  if (const auto pieces = fields.string_list("pieces")) {
    out.script = engine::script_of_pieces(tokenizer, *pieces, end);
  } else {
    out.script = engine::script_of_text(tokenizer, fields.string("text").value_or(""), end);
  }
  if (const auto after = fields.integer("nan_after", 0, 1 << 30)) {
    out.script.nan_after = static_cast<int32_t>(*after);
  }
  if (const auto after = fields.integer("fail_after", 0, 1 << 30)) {
    out.script.fail_after = static_cast<int32_t>(*after);
  }
  if (const auto seed = fields.integer("random_seed", 0)) {
    out.script.random_seed = static_cast<uint64_t>(*seed);
  }
  fields.finish();
  return out;
}

json::object read_object(const char* file) {
  std::ifstream stream(file);
  if (!stream) {
    throw SystemError(std::string("cannot read ") + file);
  }
  std::stringstream text;
  text << stream.rdbuf();
  return json::parse(text.str()).as_object();
}

int run(const char* file, int port) {
  StopSignal stop;
  const json::object object = read_object(file);
  Status status;
  FieldReader fields(object, "", status);
  const auto tokenizer = text::Tokenizer::load(
      fields.string("tokenizer").value_or("src/text/testdata/tiny_tokenizer.json"));
  std::vector<PromptScript> scripts;
  if (const json::array* list = fields.array("scripts")) {
    for (size_t i = 0; i < list->size(); ++i) {
      scripts.push_back(
          read_script((*list)[i].as_object(), element_path("scripts", i), *tokenizer, status));
    }
  }
  const auto count = [&](const char* name, int32_t otherwise) {
    return static_cast<int32_t>(fields.integer(name, 0, 1 << 30).value_or(otherwise));
  };
  ServerConfig config;
  config.http.port = port;
  config.model_name = fields.string("model").value_or("scripted");
  config.default_thinking = fields.boolean("default_thinking").value_or(false);
  config.api_key = fields.string("api_key").value_or("");
  config.http.tls_certificate_file = fields.string("tls_certificate_file").value_or("");
  config.http.tls_key_file = fields.string("tls_key_file").value_or("");
  config.http.max_connections = count("max_connections", 1024);
  config.drain_timeout = std::chrono::milliseconds(count("drain_timeout_ms", 5000));
  engine::ScriptedExecutor::Options executor;
  executor.step_delay = std::chrono::microseconds(count("step_delay_us", 0));
  executor.capacity = {.num_slots = count("num_slots", 64),
                       .max_context = count("max_context", 4096),
                       .max_step_tokens = std::max(2048, count("num_slots", 64)),
                       .vocab_size = tokenizer->vocab_size(),
                       .max_drafts = count("max_drafts", 0)};
  executor.end_token_id = tokenizer->eos_id();
  engine::EngineConfig engine_config = engine::EngineConfig::for_tokenizer(*tokenizer);
  engine_config.max_queued = count("max_queued", 1024);
  engine_config.max_running = executor.capacity.num_slots;
  fields.finish();
  if (!status.ok()) {
    throw ConfigError(std::string(file) + ": " + status.message);
  }
  executor.lookup = [&](std::span<const int32_t> prompt) {
    const std::string text = tokenizer->decode(prompt);
    for (const PromptScript& entry : scripts) {
      if (text.find(entry.prompt_contains) == std::string::npos) {
        continue;
      }
      engine::Script script = entry.script;
      if (script.random_seed) {
        *script.random_seed ^= std::hash<std::string>()(text);
      }
      return script;
    }
    return engine::script_of_text(*tokenizer, "no script for this prompt");
  };

  MetricRegistry metrics;
  engine::Engine engine(
      engine_config, std::make_unique<engine::ScriptedExecutor>(executor), tokenizer, metrics);
  ApiServer server(config, engine, tokenizer, metrics);
  engine.start();
  server.start();
  std::printf("ready %s\n", server.url().c_str());
  std::fflush(stdout);
  stop.wait();
  server.drain();
  return 0;
}

}  // namespace
}  // namespace baleen::server

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: scripted_server SCRIPTS.json PORT\n");
    return 2;
  }
  int code = 1;
  try {
    code = baleen::server::run(argv[1], std::stoi(argv[2]));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "scripted_server: %s\n", error.what());
  }
  baleen::log::flush();
  return code;
}
