#include "server/api_server.h"

#include <atomic>
#include <ctime>
#include <functional>
#include <utility>

#include <boost/json/array.hpp>
#include <boost/json/serialize.hpp>

#include "base/log.h"
#include "http/response_writer.h"
#include "server/access.h"
#include "server/api_error.h"
#include "server/chat_completion_request.h"
#include "server/completion_request.h"
#include "server/generation_service.h"
#include "server/http_metrics.h"
#include "server/json_input.h"
#include "text/thinking.h"
#include "text/tokenizer.h"

namespace baleen::server {
namespace {

constexpr std::chrono::milliseconds kFlushTimeout{5'000};  // for answers that wait in a socket

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
        service_(engine, tokenizer_),
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
    server_ = std::make_unique<http::Server>(config_.http, make_router(), std::move(hooks));
  }

  http::Server& server() { return *server_; }

  bool drain() {
    draining_ = true;
    const engine::EngineStats stats = engine_.stats();
    log::info("server",
              "draining running={} waiting={} timeout_ms={}",
              stats.num_running,
              stats.num_waiting,
              config_.drain_timeout.count());
    const bool clean = engine_.drain(config_.drain_timeout);
    server_->shutdown(kFlushTimeout);
    log::info("server", "drained clean={}", clean);
    return clean;
  }

 private:
  http::Router make_router() {
    http::Router router;
    router.add("GET", "/health", [this](http::Request&&, http::ResponseWriter writer) {
      writer.respond(health());
    });
    add_guarded(router, "GET", "/metrics", [this](http::Request&&, http::ResponseWriter writer) {
      http_metrics_.refresh();
      http::Response page = http::Response::text(200, registry_.expose());
      page.headers = {{"Content-Type", "text/plain; version=0.0.4; charset=utf-8"}};
      writer.respond(std::move(page));
    });
    add_guarded(router, "GET", "/v1/models", [this](http::Request&&, http::ResponseWriter writer) {
      const json::object list{{"object", "list"}, {"data", json::array{model_card()}}};
      writer.respond(http::Response::json(200, json::serialize(list)));
    });
    router.add_prefix(
        "GET", "/v1/models/", guarded([this](http::Request&& request, http::ResponseWriter writer) {
          const Status status = check_model(request.path_parameter, config_);
          writer.respond(status.ok() ? http::Response::json(200, json::serialize(model_card()))
                                     : error_response(status));
        }));
    add_generation(router, "/v1/chat/completions", read_chat_request);
    add_generation(router, "/v1/completions", read_completion_request);
    return router;
  }

  http::Handler guarded(http::Handler handler) {
    return
        [this, handler = std::move(handler)](http::Request&& request, http::ResponseWriter writer) {
          if (const Status status = check_key(request.headers, config_.api_key); !status.ok()) {
            writer.respond(error_response(status));
            return;
          }
          handler(std::move(request), std::move(writer));
        };
  }
  void add_guarded(http::Router& router,
                   const char* method,
                   const char* path,
                   http::Handler handler) {
    router.add(method, path, guarded(std::move(handler)));
  }
  void add_generation(http::Router& router, const char* path, Reader read) {
    add_guarded(
        router, "POST", path, [this, read](http::Request&& request, http::ResponseWriter writer) {
          Result<ApiRequest> parsed = read_request(request.body, read);
          if (!parsed.ok()) {
            writer.respond(error_response(parsed.status()));
            return;
          }
          service_.answer(std::move(parsed).value(), std::move(writer));
        });
  }

  Result<ApiRequest> read_request(const std::string& text, Reader read) {
    if (draining_) {
      return Status{StatusCode::kUnavailable, "the server is shutting down", {}, {}};
    }
    const Result<json::object> body = parse_body(text);
    if (!body.ok()) {
      return body.status();
    }
    const RequestContext context{config_, tokenizer_, service_.max_context(), text, unix_seconds()};
    return read(*body, context);
  }

  http::Response health() {
    const engine::EngineState state = engine_.stats().state;
    const char* text = "ok";
    if (draining_ || state == engine::EngineState::kDraining ||
        state == engine::EngineState::kStopped) {
      text = "shutting down";
    } else if (!engine_.healthy()) {
      text = "engine failed";
    } else if (state != engine::EngineState::kRunning) {
      text = "starting";
    }
    const bool up = std::string_view(text) == "ok";
    return up ? http::Response::json(200, R"({"status": "ok"})")
              : error_response({StatusCode::kUnavailable, text, {}, {}});
  }

  json::object model_card() const {
    return {{"id", config_.model_name},
            {"object", "model"},
            {"created", created_},
            {"owned_by", "baleen"},
            {"root", config_.model_path.empty() ? config_.model_name : config_.model_path},
            {"parent", nullptr},
            {"max_model_len", service_.max_context()},
            {"chat_profile", chat_profile_name(config_.chat_profile)},
            {"default_effort", text::default_effort_name(config_.chat_profile)},
            {"default_thinking", config_.default_thinking}};
  }

  const ServerConfig config_;
  engine::Engine& engine_;
  const std::shared_ptr<const text::Tokenizer> tokenizer_;
  MetricRegistry& registry_;
  HttpMetrics http_metrics_;
  const GenerationService service_;
  const int64_t created_;
  std::atomic<bool> draining_{false};
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

int ApiServer::port() const {
  return state_->server().port();
}

bool ApiServer::drain() {
  return state_->drain();
}

}  // namespace baleen::server
