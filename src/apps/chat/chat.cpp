#include <atomic>
#include <csignal>
#include <cstdio>
#include <iostream>
#include <memory>
#include <optional>
#include <string>

#include <unistd.h>

#include "apps/chat/conversation.h"
#include "apps/commands.h"
#include "apps/model_server.h"
#include "base/error.h"
#include "base/log.h"

namespace baleen::apps {
namespace {

struct ChatOptions {
  OpenModelOptions model;
  std::string url;
  std::string api_key;
  std::string system;
  bool thinking = false;
};

constexpr const char* kHelp =
    "/reset          forget the conversation\n"
    "/think on|off   let the model reason before it answers\n"
    "/exit, Ctrl-D   end; Ctrl-C stops an answer\n";

// The only thing a signal handler may touch: Ctrl-C stops the answer that is being printed.
std::atomic<bool> interrupted{false};

/// Prints an answer as it comes, reasoning dimmed on a terminal.
class Printer {
 public:
  explicit Printer(bool color) : color_(color) {}
  bool print(Conversation::Part part, std::string_view text) {
    if (part_ != part) {
      begin(part);
    }
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
    return !interrupted;
  }
  void end() {
    std::fputs(color_ ? "\033[0m\n" : "\n", stdout);
    std::fflush(stdout);
  }

 private:
  void begin(Conversation::Part part) {
    if (part == Conversation::Part::kReasoning) {
      std::fputs(color_ ? "\033[2m" : "[thinking] ", stdout);
    } else if (part_) {
      std::fputs(color_ ? "\033[0m\n" : "\n[answer] ", stdout);
    }
    part_ = part;
  }
  bool color_;
  std::optional<Conversation::Part> part_;
};

/// True when `line` was a command. /exit ends the conversation through `running`.
bool run_command(const std::string& line, Conversation& conversation, bool& running) {
  if (line.empty() || line[0] != '/') {
    return false;
  }
  if (line == "/exit" || line == "/quit") {
    running = false;
  } else if (line == "/reset") {
    conversation.reset();
    std::puts("(forgotten)");
  } else if (line == "/think on" || line == "/think off") {
    conversation.set_thinking(line == "/think on");
    std::printf("(thinking %s)\n", conversation.thinking() ? "on" : "off");
  } else {
    std::fputs(kHelp, stdout);
  }
  return true;
}

void talk(Conversation& conversation) {
  const bool terminal = isatty(STDIN_FILENO) != 0 && isatty(STDOUT_FILENO) != 0;
  if (terminal) {
    std::printf("Chatting with %s; /help lists the commands.\n", conversation.model().c_str());
  }
  std::string line;
  for (bool running = true; running;) {
    if (terminal) {
      std::fputs("> ", stdout);
      std::fflush(stdout);
    }
    if (!std::getline(std::cin, line)) {
      break;
    }
    if (line.empty() || run_command(line, conversation, running)) {
      continue;
    }
    Printer printer(terminal);
    interrupted = false;
    try {
      conversation.say(line, [&](Conversation::Part part, std::string_view text) {
        return printer.print(part, text);
      });
    } catch (const Error& error) {
      std::printf("error: %s", error.what());
    }
    printer.end();
  }
}

void chat(ChatOptions options) {
  if (options.url.empty() == options.model.folder.empty()) {
    throw ConfigError("give either a checkpoint folder or --url");
  }
  log::set_level(log::Level::kWarn);
  std::signal(SIGPIPE, SIG_IGN);
  std::unique_ptr<ModelServer> server;
  if (options.url.empty()) {
    server::ServerConfig config;
    config.http.port = 0;
    config.drain_timeout = std::chrono::milliseconds(0);
    server = std::make_unique<ModelServer>(
        open_model(options.model), options.model.folder.string(), config);
    server->start();
    options.url = server->url();
  }
  std::signal(SIGINT, [](int) { interrupted = true; });
  Conversation conversation(options.url, options.api_key);
  conversation.set_system(options.system);
  conversation.set_thinking(options.thinking);
  talk(conversation);
  if (server) {
    server->drain();
  }
}

}  // namespace

void add_chat(CLI::App& app) {
  auto options = std::make_shared<ChatOptions>();
  CLI::App* command = app.add_subcommand("chat", "Chat with a model on the terminal");
  command->add_option("model", options->model.folder, "Checkpoint folder, run in this process");
  command->add_option("--url", options->url, "Server to talk to instead, http://host:port");
  command->add_option("--api-key", options->api_key, "Key for --url");
  command->add_option("--system", options->system, "System message");
  command->add_flag("--thinking", options->thinking, "Start with thinking on");
  add_load_flags(*command, options->model);
  command->callback([options] { chat(*options); });
}

}  // namespace baleen::apps
