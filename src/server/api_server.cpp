#include "server/api_server.h"

#include <algorithm>
#include <atomic>
#include <ctime>
#include <functional>
#include <optional>
#include <utility>

#include <boost/json/array.hpp>
#include <boost/json/serialize.hpp>

#include "base/log.h"
#include "http/response_writer.h"
#include "server/access.h"
#include "server/api_error.h"
#include "server/chat_completion_request.h"
#include "server/completion_request.h"
#include "server/echo.h"
#include "server/field_reader.h"
#include "server/generation_service.h"
#include "server/http_metrics.h"
#include "server/json_input.h"
#include "server/live/live_routes.h"
#include "server/messages/messages_request.h"
#include "server/native/native_request.h"
#include "server/openapi_text.h"
#include "server/operations/cache_metrics.h"
#include "server/operations/engine_control.h"
#include "server/operations/health_probe.h"
#include "server/operations/server_facts.h"
#include "server/operations/weight_control.h"
#include "server/responses/response_store.h"
#include "server/responses/responses_request.h"
#include "server/structured/answer_grammar.h"
#include "server/text_tools.h"
#include "server/web/web_page.h"
#include "text/tokenizer.h"

namespace baleen::server {
namespace {

constexpr std::chrono::milliseconds kFlushTimeout{5'000};  // for answers that wait in a socket

constexpr const char* kHealthy = R"({"status": "ok"})";
using Answerer = Result<json::object> (*)(const json::object& body, const RequestContext& context);
using Reader = Result<ApiRequest> (*)(const json::object& body, const RequestContext& context);

int64_t unix_seconds() {
  return static_cast<int64_t>(std::time(nullptr));
}

}  // namespace

class ApiServer::State {
 public:
  State(ServerConfig config,
        engine::Engine& engine,
        std::shared_ptr<const text::Tokenizer> tokenizer,
        MetricRegistry& registry)
      : config_(std::move(config)),
        engine_(engine),
        tokenizer_(std::move(tokenizer)),
        registry_(registry),
        http_metrics_(registry),
        cache_metrics_(registry, engine),
        service_(engine, tokenizer_),
        grammars_(*tokenizer_,
                  engine.config().end_token_ids,
                  engine.stats().capacity.vocab_size,
                  registry),
        responses_(std::make_shared<ResponseStore>(config_.max_stored_responses)),
        probe_(engine, std::max(tokenizer_->bos_id(), 0), config_.health_timeout),
        live_feed_(engine),
        created_(unix_seconds()) {
    config_.validate();
    http::ServerHooks hooks;
    hooks.error_page = http_error_page;
    hooks.on_request = [this](const std::string& method, const std::string& route) {
      http_metrics_.on_request(method, route);
    };
    hooks.on_response = [this](const std::string& route, int status, std::chrono::nanoseconds) {
      http_metrics_.on_response(route, status);
    };
    http::Router router = make_router();
    routes_ = router.routes();
    server_ = std::make_unique<http::Server>(config_.http, std::move(router), std::move(hooks));
  }

  http::Server& server() { return *server_; }
  LiveSeries& live_series() { return live_feed_.series(); }
  const std::vector<std::pair<std::string, std::string>>& routes() const { return routes_; }

  bool drain() {
    draining_ = true;
    const engine::EngineStats stats = engine_.stats();
    log::info("server",
              "draining running={} waiting={} timeout_ms={}",
              stats.num_running,
              stats.num_waiting,
              config_.drain_timeout.count());
    const bool clean = engine_.drain(config_.drain_timeout);
    live_feed_.close();
    server_->shutdown(kFlushTimeout);
    log::info("server", "drained clean={}", clean);
    return clean;
  }

 private:
  http::Router make_router() {
    http::Router router;
    add_web_page(router);
    add_live_routes(router, live_feed_, engine_, [this](http::Handler handler) {
      return guarded(std::move(handler));
    });
    router.add("GET", "/health", [this](http::Request&&, http::ResponseWriter writer) {
      writer.respond(health());
    });
    add_guarded(router, "GET", "/metrics", [this](http::Request&&, http::ResponseWriter writer) {
      http_metrics_.refresh();
      cache_metrics_.refresh();
      http::Response page = http::Response::text(200, registry_.expose());
      page.headers = {{"Content-Type", "text/plain; version=0.0.4; charset=utf-8"}};
      writer.respond(std::move(page));
    });
    router.add("GET", "/health_generate", [this](http::Request&&, http::ResponseWriter writer) {
      auto shared = std::make_shared<http::ResponseWriter>(std::move(writer));
      probe_.ask([shared](const Status& status) {
        shared->respond(status.ok() ? http::Response::json(200, kHealthy) : error_response(status));
      });
    });
    router.add("GET", "/ping", [this](http::Request&&, http::ResponseWriter writer) {
      writer.respond(health());
    });
    router.add("GET", "/openapi.json", [](http::Request&&, http::ResponseWriter writer) {
      writer.respond(http::Response::json(200, std::string(openapi_text())));
    });
    add_fact(router, "/v1/models", [this] {
      return json::object{{"object", "list"}, {"data", json::array{model_card(facts())}}};
    });
    router.add_prefix(
        "GET", "/v1/models/", guarded([this](http::Request&& request, http::ResponseWriter writer) {
          const Status status = check_model(request.path_parameter, config_);
          writer.respond(status.ok()
                             ? http::Response::json(200, json::serialize(model_card(facts())))
                             : error_response(status));
        }));
    for (const char* path : {"/model_info", "/get_model_info"}) {
      add_fact(router, path, [this] { return model_info(facts()); });
    }
    for (const char* path : {"/server_info", "/get_server_info"}) {
      add_fact(router, path, [this] { return server_info(facts()); });
    }
    add_fact(router, "/get_load", [this] { return json::array{server_load(facts())}; });
    add_control(router, "POST", "/abort_request", [this](const json::object& body) {
      return abort_request(body);
    });
    add_engine_control(router, "POST", "/pause_generation", pause_generation);
    add_engine_control(router, "POST", "/continue_generation", continue_generation);
    add_engine_control(router, "POST", "/update_weights_from_disk", update_weights_from_disk);
    add_engine_control(router, "POST", "/update_weight_version", update_weight_version);
    add_weight_message(router, "/weights/begin", &WeightStreams::begin);
    add_weight_message(router, "/weights/bucket", &WeightStreams::bucket);
    add_weight_message(router, "/weights/end", &WeightStreams::end);
    for (const char* method : {"GET", "POST"}) {
      add_engine_control(router, method, "/flush_cache", flush_cache);
      add_engine_control(router, method, "/release_memory_occupation", release_memory);
      add_engine_control(router, method, "/resume_memory_occupation", resume_memory);
    }
    add_fact(router, "/weight_version", [this] {
      return json::object{{"weight_version", *engine_.stats().weight_version}};
    });
    for (const char* prefix : {"", "/v1"}) {
      add_answer(router, std::string(prefix) + "/tokenize", tokenize);
      add_answer(router, std::string(prefix) + "/detokenize", detokenize);
    }
    add_answer(router, "/v1/chat/completions/render", render_chat);
    add_answer(router, "/parse_function_call", parse_function_call);
    add_answer(router, "/separate_reasoning", separate_reasoning);
    add_answer(router, "/v1/messages/count_tokens", count_message_tokens);
    for (const char* method : {"POST", "PUT"}) {
      add_generation(router, "/generate", read_native_request, method);
    }
    add_generation(router, "/v1/chat/completions", read_chat_request);
    add_generation(router, "/v1/completions", read_completion_request);
    add_generation(router, "/v1/messages", read_messages_request);
    add_generation(router, "/v1/responses", read_responses_request);
    router.add_prefix("GET",
                      "/v1/responses/",
                      guarded([this](http::Request&& request, http::ResponseWriter writer) {
                        writer.respond(stored_response(request.path_parameter, false));
                      }));
    router.add_prefix("POST",
                      "/v1/responses/",
                      guarded([this](http::Request&& request, http::ResponseWriter writer) {
                        writer.respond(stored_response(request.path_parameter, true));
                      }),
                      "/cancel");
    return router;
  }

  http::Handler guarded(http::Handler handler) {
    return
        [this, handler = std::move(handler)](http::Request&& request, http::ResponseWriter writer) {
          if (const Status status = check_key(request.headers, config_.api_key); !status.ok()) {
            writer.respond(error_response(status, error_form_of(request.path)));
            return;
          }
          handler(std::move(request), std::move(writer));
        };
  }
  void add_guarded(http::Router& router,
                   const char* method,
                   std::string path,
                   http::Handler handler) {
    router.add(method, std::move(path), guarded(std::move(handler)));
  }
  /// GET: what `fact` gives.
  template <class Fact>
  void add_fact(http::Router& router, const char* path, Fact fact) {
    add_guarded(router, "GET", path, [fact](http::Request&&, http::ResponseWriter writer) {
      writer.respond(http::Response::json(200, json::serialize(fact())));
    });
  }
  /// POST: answered at once from the body.
  void add_answer(http::Router& router, std::string path, Answerer answer) {
    add_guarded(router,
                "POST",
                std::move(path),
                [this, answer](http::Request&& request, http::ResponseWriter writer) {
                  const Result<json::object> body = read_body(request.body, answer);
                  writer.respond(body.ok()
                                     ? http::Response::json(200, json::serialize(*body))
                                     : error_response(body.status(), error_form_of(request.path)));
                });
  }
  /// For those who run the server; an empty body is an empty object.
  template <class Control>
  void add_control(http::Router& router, const char* method, const char* path, Control control) {
    router.add(method, path, [this, control](http::Request&& request, http::ResponseWriter writer) {
      Status status = check_admin_key(request.headers, config_.api_key, config_.admin_api_key);
      json::object body;
      if (status.ok() && !request.body.empty()) {
        Result<json::object> parsed = parse_body(request.body);
        if (parsed.ok()) {
          body = std::move(parsed).value();
        }
        status = parsed.status();
      }
      if (!status.ok()) {
        writer.respond(error_response(status));
        return;
      }
      const Result<json::object> answer = control(body);
      writer.respond(answer.ok() ? http::Response::json(200, json::serialize(*answer))
                                 : error_response(answer.status()));
    });
  }
  void add_engine_control(http::Router& router,
                          const char* method,
                          const char* path,
                          Result<json::object> (*control)(const json::object&, engine::Engine&)) {
    add_control(router, method, path, [this, control](const json::object& body) {
      return control(body, engine_);
    });
  }
  /// A body of any kind, for those who run the server.
  void add_weight_message(http::Router& router,
                          const char* path,
                          Result<std::string> (WeightStreams::*take)(std::string_view)) {
    router.add("POST", path, [this, take](http::Request&& request, http::ResponseWriter writer) {
      Status status = check_admin_key(request.headers, config_.api_key, config_.admin_api_key);
      if (status.ok() && config_.weight_streams == nullptr) {
        status = {StatusCode::kNotFound, "this server takes no weights over HTTP", {}, {}};
      }
      if (!status.ok()) {
        writer.respond(error_response(status));
        return;
      }
      const Result<std::string> answer = (config_.weight_streams.get()->*take)(request.body);
      writer.respond(answer.ok() ? http::Response::json(200, *answer)
                                 : error_response(answer.status()));
    });
  }
  void add_generation(http::Router& router,
                      const char* path,
                      Reader read,
                      const char* method = "POST") {
    add_guarded(
        router, method, path, [this, read](http::Request&& request, http::ResponseWriter writer) {
          Result<ApiRequest> parsed = read_body(request.body, read, &grammars_);
          if (!parsed.ok()) {
            writer.respond(error_response(parsed.status(), error_form_of(request.path)));
            return;
          }
          service_.answer(std::move(parsed).value(), std::move(writer));
        });
  }

  /// What `read` makes of a request's body.
  template <class Value>
  Result<Value> read_body(const std::string& text,
                          Result<Value> (*read)(const json::object&, const RequestContext&),
                          const AnswerGrammars* grammars = nullptr) {
    if (draining_) {
      return Status{StatusCode::kUnavailable, "the server is shutting down", {}, {}};
    }
    const Result<json::object> body = parse_body(text);
    if (!body.ok()) {
      return body.status();
    }
    const RequestContext context{config_,
                                 tokenizer_,
                                 service_.max_context(),
                                 text,
                                 unix_seconds(),
                                 grammars,
                                 responses_,
                                 service_.choices()};
    return read(*body, context);
  }

  http::Response health() {
    const engine::EngineState state = engine_.stats().state;
    std::string text = "ok";
    if (draining_ || state == engine::EngineState::kDraining ||
        state == engine::EngineState::kStopped) {
      text = "shutting down";
    } else if (!engine_.healthy()) {
      // A failure's own words are in the log; a step that does not end is said with its time.
      text = state == engine::EngineState::kFailed ? "engine failed" : engine_.health_message();
    } else if (state != engine::EngineState::kRunning) {
      text = "starting";
    }
    return text == "ok" ? http::Response::json(200, kHealthy)
                        : error_response({StatusCode::kUnavailable, std::move(text), {}, {}});
  }

  /// {"rid": id} or {"abort_all": true}. An id that is not being answered is no fault: it may have
  /// ended just now.
  Result<json::object> abort_request(const json::object& body) {
    Status status;
    FieldReader fields(body, "", status);
    const auto id = fields.string("rid");
    const bool all = fields.boolean("abort_all").value_or(false);
    fields.finish();
    if (status.ok() && !id && !all) {
      fields.fail("rid", "rid or abort_all: true is needed");
    }
    if (!status.ok()) {
      return status;
    }
    const size_t count = all ? service_.live().abort_all() : service_.live().abort(*id) ? 1 : 0;
    return json::object{{"success", true}, {"num_aborted", count}};
  }

  /// What is kept of it; `cancels`: its request is ended first.
  http::Response stored_response(const std::string& id, bool cancels) {
    if (cancels) {
      service_.live().abort(id);
    }
    const std::optional<StoredResponse> stored = responses_->find(id);
    if (!stored) {
      return error_response({StatusCode::kNotFound,
                             "there is no kept response \"" + shortened(id) + "\"",
                             {},
                             "response_not_found"});
    }
    return http::Response::json(200, stored->body);
  }

  ServerFacts facts() const { return {config_, engine_, service_.max_context(), created_}; }

  const ServerConfig config_;
  engine::Engine& engine_;
  const std::shared_ptr<const text::Tokenizer> tokenizer_;
  MetricRegistry& registry_;
  HttpMetrics http_metrics_;
  CacheMetrics cache_metrics_;
  const GenerationService service_;
  const AnswerGrammars grammars_;
  const std::shared_ptr<ResponseStore> responses_;  // with the answers in progress
  HealthProbe probe_;
  LiveFeed live_feed_;
  const int64_t created_;
  std::atomic<bool> draining_{false};
  std::vector<std::pair<std::string, std::string>> routes_;
  std::unique_ptr<http::Server> server_;
};

ApiServer::ApiServer(ServerConfig config,
                     engine::Engine& engine,
                     std::shared_ptr<const text::Tokenizer> tokenizer,
                     MetricRegistry& metrics)
    : state_(std::make_unique<State>(std::move(config), engine, std::move(tokenizer), metrics)) {}

ApiServer::~ApiServer() = default;

void ApiServer::start() {
  state_->server().start();
}

std::string ApiServer::url() const {
  return state_->server().url();
}

std::vector<std::pair<std::string, std::string>> ApiServer::routes() const {
  return state_->routes();
}

int ApiServer::port() const {
  return state_->server().port();
}

LiveSeries& ApiServer::live_series() {
  return state_->live_series();
}

bool ApiServer::drain() {
  return state_->drain();
}

}  // namespace baleen::server
