#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include "apps/commands.h"
#include "apps/model_server.h"
#include "apps/number_check.h"
#include "base/log.h"
#include "http/server.h"
#include "server/stop_signal.h"

namespace baleen::apps {
namespace {

struct ServeOptions {
  OpenModelOptions model;
  server::ServerConfig server;
  std::string log_level = "info";
  int64_t max_body_mib = 64;
  double drain_timeout_s = 30.0;
};

void serve(ServeOptions options) {
  log::Level level = log::Level::kInfo;
  log::parse_level(options.log_level, level);
  log::set_level(level);
  server::StopSignal stop;
  options.server.http.max_body_bytes = options.max_body_mib << 20;
  options.server.drain_timeout =
      std::chrono::milliseconds(static_cast<int64_t>(options.drain_timeout_s * 1000.0));
  // Settings and an address that cannot be had are refused before minutes of loading, not after
  // them.
  if (options.server.model_name.empty()) {
    options.server.model_name =
        std::filesystem::weakly_canonical(options.model.folder).filename().string();
  }
  options.server.version = BALEEN_VERSION;
  options.server.validate();
  {
    const http::Server probe(options.server.http, {}, {});
  }
  options.model.show_progress = level <= log::Level::kInfo;
  ModelServer server(open_model(options.model), options.model.folder.string(), options.server);
  server.start();
  std::printf("ready %s\n", server.url().c_str());
  std::fflush(stdout);
  log::info("apps", "stopping signal={}", stop.wait());
  server.drain();
}

void add_flags(CLI::App& command, ServeOptions& o) {
  command.add_option("model", o.model.folder, "Checkpoint folder")->required();
  command.add_option("--host", o.server.http.host, "Address to listen on");
  command.add_option("--port", o.server.http.port, "Port to listen on; 0: any free one")
      ->check(CLI::Range(0, 65535));
  command.add_option("--served-model-name",
                     o.server.model_name,
                     "Name that requests use (default: the folder's name)");
  command.add_option("--api-key", o.server.api_key, "Bearer key that requests must carry");
  command.add_option("--admin-api-key",
                     o.server.admin_api_key,
                     "Bearer key of paths that control the server (default: --api-key)");
  command.add_option("--weight-version",
                     o.model.weight_version,
                     "Name of the weights in native answers and /model_info");
  command.add_option("--responses-store",
                     o.server.max_stored_responses,
                     "Responses of /v1/responses that are kept in memory");
  command.add_option("--cors-origin",
                     o.server.http.cors_origins,
                     "Origin whose pages may call, such as https://example.org; * for all; again "
                     "for more");
  command.add_option("--tls-certificate",
                     o.server.http.tls_certificate_file,
                     "PEM file with its chain: serve TLS");
  command.add_option("--tls-key", o.server.http.tls_key_file, "PEM file of the certificate's key");
  command.add_option("--default-thinking",
                     o.server.default_thinking,
                     "Whether the model thinks where a request does not say");
  add_load_flags(command, o.model);
  add_capacity_flags(command,
                     o.model,
                     {.context = "--context-length",
                      .running = "--max-running-requests",
                      .queued = "--max-queued-requests",
                      .prefill_chunk = "--chunked-prefill-size"});
  add_schedule_flags(command, o.model);
  command.add_option("--io-threads", o.server.http.io_threads, "Threads that serve sockets")
      ->check(CLI::Range(1, 64));
  command
      .add_option("--handler-threads",
                  o.server.http.handler_threads,
                  "Threads that read and encode requests")
      ->check(CLI::Range(1, 256));
  command
      .add_option("--max-connections",
                  o.server.http.max_connections,
                  "Connections at a time, idle streams included")
      ->check(CLI::Range(1, 1 << 20));
  command.add_option("--max-body-mib", o.max_body_mib, "Largest request body, MiB")
      ->check(CLI::Range(1, 1 << 20));
  command
      .add_option(
          "--drain-timeout", o.drain_timeout_s, "Seconds that answers get to finish at the end")
      ->check(number_in(0.0, 86400.0));
  command.add_option("--log-level", o.log_level, "Least important lines to log")
      ->check(CLI::IsMember({"debug", "info", "warn", "error", "off"}));
}

}  // namespace

void add_serve(CLI::App& app) {
  auto options = std::make_shared<ServeOptions>();
  options->model.cache_mib = -1;
  CLI::App* command =
      app.add_subcommand("serve", "Serve a model over HTTP: OpenAI, Anthropic and native paths");
  add_flags(*command, *options);
  command->callback([options] { serve(*options); });
}

}  // namespace baleen::apps
