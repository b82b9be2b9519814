#include <chrono>
#include <cstdio>
#include <memory>
#include <string>

#include <fmt/format.h>

#include "apps/commands.h"
#include "apps/model_server.h"
#include "base/error.h"
#include "base/log.h"
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
  if (!log::parse_level(options.log_level, level)) {
    throw ConfigError(fmt::format("--log-level is debug, info, warn, error or off, not \"{}\"",
                                  options.log_level));
  }
  log::set_level(level);
  server::StopSignal stop;
  options.server.http.max_body_bytes = options.max_body_mib << 20;
  options.server.drain_timeout =
      std::chrono::milliseconds(static_cast<int64_t>(options.drain_timeout_s * 1000.0));
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
  command.add_option("--port", o.server.http.port, "Port to listen on; 0: any free one");
  command.add_option("--served-model-name",
                     o.server.model_name,
                     "Name that requests use (default: the folder's name)");
  command.add_option("--api-key", o.server.api_key, "Bearer key that requests must carry");
  command.add_option("--chat-profile",
                     o.model.chat_profile,
                     "v4, v4-0731 or v4.1 (default: as the checkpoint says)");
  command.add_option("--default-thinking",
                     o.server.default_thinking,
                     "Whether the model thinks where a request does not say");
  command.add_option(
      "--context-length", o.model.max_context, "Tokens of one sequence; 0: as config.json says");
  command.add_option("--max-running-requests", o.model.max_running, "Requests that run at a time");
  command.add_option(
      "--max-queued-requests", o.model.max_queued, "Requests that wait; more get 429");
  command.add_option("--chunked-prefill-size",
                     o.model.max_prefill_chunk,
                     "Prompt tokens of one request in one step");
  command.add_option("--max-step-tokens", o.model.max_step_tokens, "Tokens of one forward step");
  command.add_option("--numerics", o.model.numerics, "checkpoint, reference or plain");
  command.add_option("--threads", o.model.num_threads, "CPU threads of one operator")
      ->check(CLI::Range(1, 1024));
  command.add_option("--io-threads", o.server.http.io_threads, "Threads that serve sockets");
  command.add_option(
      "--handler-threads", o.server.http.handler_threads, "Threads that read and encode requests");
  command.add_option("--max-body-mib", o.max_body_mib, "Largest request body, MiB")
      ->check(CLI::Range(1, 1 << 20));
  command
      .add_option(
          "--drain-timeout", o.drain_timeout_s, "Seconds that answers get to finish at the end")
      ->check(CLI::Range(0.0, 86400.0));
  command.add_option("--log-level", o.log_level, "debug, info, warn, error or off");
}

}  // namespace

void add_serve(CLI::App& app) {
  auto options = std::make_shared<ServeOptions>();
  CLI::App* command = app.add_subcommand("serve", "Serve a model over the OpenAI API");
  add_flags(*command, *options);
  command->callback([options] { serve(*options); });
}

}  // namespace baleen::apps
