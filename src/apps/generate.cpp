#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <memory>
#include <mutex>
#include <string>

#include <fmt/format.h>

#include "apps/commands.h"
#include "apps/opened_model.h"
#include "apps/sampling_flags.h"
#include "base/error.h"
#include "base/log.h"
#include "base/metrics.h"
#include "engine/engine.h"
#include "text/chat_request.h"

namespace baleen::apps {
namespace {

using Clock = std::chrono::steady_clock;

struct GenerateOptions {
  OpenModelOptions model;
  SamplingFlags sampling;
  std::string prompt;
  std::string chat;
  std::string system;
  bool thinking = false;
  bool quiet = false;
};

/// Writes the answer to stdout as it comes.
class PrintingSink final : public engine::OutputSink {
 public:
  void on_event(engine::OutputEvent&& event) override {
    for (const text::OutputDelta& delta : event.deltas) {
      if (delta.part != part_ && started_) {
        std::fputs("\n\n", stdout);
      }
      part_ = delta.part;
      started_ = true;
      std::fwrite(delta.text.data(), 1, delta.text.size(), stdout);
    }
    std::fflush(stdout);
    std::lock_guard lock(mutex_);
    if (!event.tokens.empty() && !first_token_) {
      first_token_ = Clock::now();
    }
    if (event.finish) {
      finish_ = std::move(event.finish);
      changed_.notify_all();
    }
  }

  engine::FinishInfo wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return finish_.has_value(); });
    return *finish_;
  }
  Clock::time_point first_token() const { return first_token_.value_or(Clock::now()); }

 private:
  std::mutex mutex_;  // guards finish_ and first_token_
  std::condition_variable changed_;
  std::optional<engine::FinishInfo> finish_;
  std::optional<Clock::time_point> first_token_;
  text::OutputPart part_ = text::OutputPart::kContent;
  bool started_ = false;
};

engine::GenerationRequest make_request(const GenerateOptions& options, const OpenedModel& model) {
  engine::GenerationRequest request;
  request.id = "generate";
  if (options.chat.empty()) {
    request.prompt = model.tokenizer->encode(options.prompt);
    request.output.parse_markup = false;
  } else {
    text::ChatRequest chat;
    if (!options.system.empty()) {
      chat.messages.emplace_back().role = text::Role::kSystem;
      chat.messages.back().content = options.system;
    }
    chat.messages.emplace_back().content = options.chat;
    text::ThinkingDecision decision;
    decision.thinking = options.thinking;
    const Result<text::RenderedPrompt> prompt =
        text::render_request(chat, model.chat_profile.profile, decision);
    if (!prompt.ok()) {
      throw ConfigError(prompt.status().message);
    }
    request.prompt = model.tokenizer->encode(prompt->pieces);
    request.output.starts_in_reasoning = prompt->starts_in_reasoning;
    request.output.profile = model.chat_profile.profile;
  }
  options.sampling.apply(model.generation, request);
  return request;
}

void report(const engine::FinishInfo& finish,
            Clock::time_point begin,
            Clock::time_point first,
            Clock::time_point end) {
  const auto seconds = [](auto duration) {
    return std::chrono::duration<double>(duration).count();
  };
  const double decode = seconds(end - first);
  const auto num_more = static_cast<double>(finish.completion_tokens - 1);
  const char* reason = finish.reason == engine::FinishReason::kStop ? "stop" : "length";
  fmt::print(stderr,
             "\nprompt {} tokens, answer {} tokens ({}), first token {:.0f} ms, {:.0f} tok/s\n",
             finish.prompt_tokens,
             finish.completion_tokens,
             reason,
             1e3 * seconds(first - begin),
             decode > 0 ? num_more / decode : 0.0);
  if (const engine::DraftCounts& drafts = finish.drafts; drafts.verify_steps > 0) {
    fmt::print(stderr,
               "{} verify steps gave {:.2f} tokens each, {:.0f} % of the drafts stood\n",
               drafts.verify_steps,
               static_cast<double>(drafts.accepted + drafts.verify_steps) /
                   static_cast<double>(drafts.verify_steps),
               100.0 * static_cast<double>(drafts.accepted) / static_cast<double>(drafts.drafted));
  }
}

void generate(GenerateOptions options) {
  if (options.prompt.empty() == options.chat.empty()) {
    throw ConfigError("give either --prompt or --chat");
  }
  if (options.chat.empty() && (!options.system.empty() || options.thinking)) {
    throw ConfigError("--system and --thinking need --chat; --prompt is taken as it is");
  }
  log::set_level(log::Level::kWarn);
  options.model.show_progress = !options.quiet;
  options.model.max_running = 1;
  OpenedModel model = open_model(options.model);
  const engine::GenerationRequest request = make_request(options, model);
  MetricRegistry metrics;
  engine::Engine engine(model.engine_config, std::move(model.executor), model.tokenizer, metrics);
  engine.start();
  const auto sink = std::make_shared<PrintingSink>();
  const Clock::time_point begin = Clock::now();
  if (const Status status = engine.submit(request, sink); !status.ok()) {
    throw ConfigError(fmt::format("{}: {}", status.param, status.message));
  }
  const engine::FinishInfo finish = sink->wait();
  const Clock::time_point end = Clock::now();
  engine.stop();
  std::fputs("\n", stdout);
  if (finish.reason == engine::FinishReason::kError) {
    throw Error(finish.error.message);
  }
  if (!options.quiet) {
    report(finish, begin, sink->first_token(), end);
  }
}

}  // namespace

void add_generate(CLI::App& app) {
  auto options = std::make_shared<GenerateOptions>();
  CLI::App* command = app.add_subcommand("generate", "Answer one prompt and end");
  add_model_flags(*command, options->model);
  command->add_option("--prompt", options->prompt, "Text to continue, taken as it is");
  command->add_option("--chat", options->chat, "Message of a user, put into the chat format");
  command->add_option("--system", options->system, "System message before --chat");
  command->add_flag("--thinking", options->thinking, "Let the model reason before it answers");
  command->add_flag("--quiet", options->quiet, "Print the answer alone");
  options->sampling.add(*command);
  command->callback([options] { generate(*options); });
}

}  // namespace baleen::apps
