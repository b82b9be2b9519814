// What the way over HTTP costs beside the engine, as CSV on standard output: streamed tokens per
// second and per second of processor time through server-sent events, and what a request's way in
// adds to its first token. The real server on a scripted executor that takes no time. All threads
// of the server, engine included, run on one core; the clients on another, where there is one.
//
//   build/cpu/bin/server_bench [tokenizer.json]

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <sched.h>
#include <time.h>

#include "base/check.h"
#include "base/log.h"
#include "base/metrics.h"
#include "engine/collecting_sink.h"
#include "engine/engine.h"
#include "engine/scripted_executor.h"
#include "http/client.h"
#include "server/api_server.h"
#include "text/tokenizer.h"

namespace baleen::server {
namespace {

constexpr int kRepeats = 5;

using Clock = std::chrono::steady_clock;

double elapsed_s(Clock::time_point since) {
  return std::chrono::duration<double>(Clock::now() - since).count();
}

double clock_s(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// The numbers of the cores that this process may use.
std::vector<int> allowed_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  BALEEN_CHECK(sched_getaffinity(0, sizeof(set), &set) == 0);
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) {
      cores.push_back(core);
    }
  }
  return cores;
}

/// The calling thread, and the threads that it starts from now on.
void run_on(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  BALEEN_CHECK(sched_setaffinity(0, sizeof(set), &set) == 0, "core {}", core);
}

double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1))];
}

/// A prompt of about so many tokens, another one for every `salt`.
std::string prompt_text(int64_t num_tokens, const text::Tokenizer& tokenizer, int64_t salt) {
  std::string text = std::to_string(salt);
  const std::string_view sentence = " The number is ";
  const auto per_sentence = static_cast<int64_t>(tokenizer.encode(std::string(sentence)).size());
  for (int64_t i = 0; i < num_tokens / (per_sentence + 1); ++i) {
    text += sentence;
    text += std::to_string((salt + i) % 10);
  }
  return text;
}

std::string chat_body(const std::string& prompt, int32_t num_tokens) {
  return R"({"model": "bench", "stream": true, "ignore_eos": true, "max_tokens": )" +
         std::to_string(num_tokens) + R"(, "messages": [{"role": "user", "content": ")" + prompt +
         R"("}]})";
}

/// One streamed answer: when the first text came, and how many events with text there were.
struct Streamed {
  double first_s = 0.0;
  int64_t num_texts = 0;
  bool done = false;
};

class TextCounter {
 public:
  /// Counts `"content":"x` of deltas that are not empty, also where pieces cut them.
  void take(std::string_view piece, Clock::time_point begun, Streamed& out) {
    constexpr std::string_view kMark = R"("content":")";
    tail_.append(piece);
    size_t at = 0;
    for (size_t found = tail_.find(kMark);
         found != std::string::npos && found + kMark.size() < tail_.size();
         found = tail_.find(kMark, at)) {
      at = found + kMark.size();
      if (tail_[at] != '"') {
        out.first_s = out.num_texts++ == 0 ? elapsed_s(begun) : out.first_s;
      }
    }
    out.done = out.done || tail_.find("data: [DONE]", at) != std::string::npos;
    tail_.erase(0, std::max(at, tail_.size() - std::min(tail_.size(), size_t{64})));
  }

 private:
  std::string tail_;
};

Streamed stream_once(http::Client& client, const std::string& body) {
  Streamed out;
  TextCounter counter;
  const Clock::time_point begun = Clock::now();
  const http::ClientRequest request{"POST", "/v1/chat/completions", {}, body};
  const Result<http::Response> answer = client.stream(request, [&](std::string_view piece) {
    counter.take(piece, begun, out);
    return true;
  });
  BALEEN_CHECK(answer.ok() && answer->status == 200 && out.done,
               "{}",
               answer.ok() ? answer->body : answer.status().message);
  return out;
}

class ServerBench {
 public:
  explicit ServerBench(std::shared_ptr<const text::Tokenizer> tokenizer)
      : tokenizer_(std::move(tokenizer)) {
    engine::ScriptedExecutor::Options executor;
    executor.capacity = {.num_slots = 256,
                         .max_context = 1 << 20,
                         .max_step_tokens = 1 << 16,
                         .vocab_size = tokenizer_->vocab_size()};
    executor.end_token_id = tokenizer_->eos_id();
    // Single letters and blanks: one token and one event of text per step.
    executor.lookup =
        [script = engine::script_of_text(*tokenizer_, "x y z ", engine::ScriptEnd::kRepeat)](
            std::span<const int32_t>) { return script; };
    engine::EngineConfig config = engine::EngineConfig::for_tokenizer(*tokenizer_);
    config.max_running = 256;
    config.max_prefill_chunk = 1 << 16;
    engine_ = std::make_unique<engine::Engine>(
        config, std::make_unique<engine::ScriptedExecutor>(executor), tokenizer_, metrics_);
    ServerConfig server;
    server.http.port = 0;
    server.model_name = "bench";
    server_ = std::make_unique<ApiServer>(server, *engine_, tokenizer_, metrics_);
    engine_->start();
    server_->start();
  }
  ~ServerBench() { engine_->stop(); }

  const text::Tokenizer& tokenizer() const { return *tokenizer_; }
  http::Client client() const { return {server_->url(), {}}; }

  /// Seconds from submit() to the first event of the same request without HTTP.
  double engine_first_s(const std::string& prompt) {
    engine::GenerationRequest request;
    request.id = "direct-" + std::to_string(next_id_++);
    request.prompt = tokenizer_->encode(prompt);
    request.max_new_tokens = 1;
    auto sink = std::make_shared<engine::CollectingSink>();
    const Clock::time_point begun = Clock::now();
    BALEEN_CHECK(engine_->submit(std::move(request), sink).ok());
    sink->wait();
    return elapsed_s(begun);
  }

 private:
  std::shared_ptr<const text::Tokenizer> tokenizer_;
  MetricRegistry metrics_;
  std::unique_ptr<engine::Engine> engine_;
  std::unique_ptr<ApiServer> server_;
  int64_t next_id_ = 0;
};

void print_row(const std::string& name, std::vector<double> values, const char* unit) {
  std::printf("%s,%s,%.4g,%.4g,%.4g\n",
              name.c_str(),
              unit,
              quantile(values, 0.5),
              quantile(values, 0.05),
              quantile(values, 0.95));
  std::fflush(stdout);
}

void measure_streams(const ServerBench& bench, int num_streams, int32_t num_tokens) {
  std::vector<double> per_second;
  std::vector<double> per_core_second;
  for (int repeat = 0; repeat <= kRepeats; ++repeat) {
    std::vector<double> client_cpu(static_cast<size_t>(num_streams));
    std::vector<int64_t> texts(static_cast<size_t>(num_streams));
    const double cpu_before = clock_s(CLOCK_PROCESS_CPUTIME_ID);
    const double own_before = clock_s(CLOCK_THREAD_CPUTIME_ID);
    const Clock::time_point begun = Clock::now();
    {
      std::vector<std::jthread> clients;
      for (int i = 0; i < num_streams; ++i) {
        clients.emplace_back([&, i] {
          const auto place = static_cast<size_t>(i);
          http::Client client = bench.client();
          texts[place] =
              stream_once(client, chat_body("stream " + std::to_string(i), num_tokens)).num_texts;
          client_cpu[place] = clock_s(CLOCK_THREAD_CPUTIME_ID);
        });
      }
    }
    const double took = elapsed_s(begun);
    double server_cpu = clock_s(CLOCK_PROCESS_CPUTIME_ID) - cpu_before -
                        (clock_s(CLOCK_THREAD_CPUTIME_ID) - own_before);
    int64_t num_texts = 0;
    for (size_t i = 0; i < texts.size(); ++i) {
      server_cpu -= client_cpu[i];
      num_texts += texts[i];
    }
    BALEEN_CHECK(num_texts == int64_t{num_streams} * num_tokens,
                 "{} texts of {} streams",
                 num_texts,
                 num_streams);
    if (repeat > 0) {  // the first warms up
      per_second.push_back(static_cast<double>(num_texts) / took);
      per_core_second.push_back(static_cast<double>(num_texts) / server_cpu);
    }
  }
  const std::string name =
      "stream/streams:" + std::to_string(num_streams) + "/tokens:" + std::to_string(num_tokens);
  print_row(name, per_second, "tokens/s");
  print_row(name, per_core_second, "tokens/s of one core");
}

/// First token of single requests over HTTP and without it, in turns; the difference of neighbours.
void measure_first_token(ServerBench& bench, int64_t num_prompt_tokens) {
  constexpr int kRequests = 200;
  std::vector<double> over_http;
  std::vector<double> direct;
  std::vector<double> added;
  http::Client client = bench.client();
  for (int i = 0; i < kRequests; ++i) {
    const std::string prompt = prompt_text(num_prompt_tokens, bench.tokenizer(), i);
    const double engine_s = bench.engine_first_s(prompt);
    const double http_s = stream_once(client, chat_body(prompt, 1)).first_s;
    if (i >= kRequests / 10) {
      direct.push_back(1e3 * engine_s);
      over_http.push_back(1e3 * http_s);
      added.push_back(1e3 * (http_s - engine_s));
    }
  }
  const std::string name = "first_token/prompt_tokens:" + std::to_string(num_prompt_tokens);
  print_row(name + "/engine", direct, "ms");
  print_row(name + "/http", over_http, "ms");
  print_row(name + "/added", added, "ms");
}

}  // namespace
}  // namespace baleen::server

int main(int argc, char** argv) {
  using namespace baleen;
  log::set_level(log::Level::kWarn);
  const std::vector<int> cores = server::allowed_cores();
  server::run_on(cores.front());
  server::ServerBench bench(
      text::Tokenizer::load(argc > 1 ? argv[1] : "src/text/testdata/tiny_tokenizer.json"));
  server::run_on(cores.back());
  std::printf("name,unit,median,p5,p95\n");
  for (const int streams : {1, 16, 64}) {
    server::measure_streams(bench, streams, 64'000 / std::max(streams, 8));
  }
  for (const int64_t prompt_tokens : {16, 1024, 8192}) {
    server::measure_first_token(bench, prompt_tokens);
  }
  return 0;
}
