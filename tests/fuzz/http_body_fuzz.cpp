// Bytes on the wire to the real server on a scripted model. First byte 0 to 9: a POST to one of the
// paths, whose body is the rest; above: the rest is all that the client sends. The server answers
// or closes, its errors are JSON objects, and no answer is a 500.
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include <arpa/inet.h>
#include <boost/json/parse.hpp>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/metrics.h"
#include "engine/engine.h"
#include "engine/scripted_executor.h"
#include "fuzz_check.h"
#include "server/api_server.h"
#include "text/tokenizer.h"

namespace baleen::server {
namespace {

constexpr const char* kPaths[] = {"/v1/chat/completions",
                                  "/v1/completions",
                                  "/v1/messages",
                                  "/v1/responses",
                                  "/generate",
                                  "/tokenize",
                                  "/detokenize",
                                  "/parse_function_call",
                                  "/v1/messages/count_tokens",
                                  "/abort_request"};

/// The server of all inputs.
class Target {
 public:
  Target() : tokenizer_(text::Tokenizer::load("src/text/testdata/tiny_tokenizer.json")) {
    engine::ScriptedExecutor::Options executor;
    executor.capacity = {.num_slots = 16,
                         .max_context = 256,
                         .max_step_tokens = 2048,
                         .vocab_size = tokenizer_->vocab_size()};
    executor.end_token_id = tokenizer_->eos_id();
    executor.lookup = [this](std::span<const int32_t>) {
      return engine::script_of_text(*tokenizer_, "Well.\n\n<｜DSML｜tool_calls>\nfine");
    };
    engine_ = std::make_unique<engine::Engine>(engine::EngineConfig::for_tokenizer(*tokenizer_),
                                               std::make_unique<engine::ScriptedExecutor>(executor),
                                               tokenizer_,
                                               metrics_);
    ServerConfig config;
    config.http.port = 0;
    config.http.max_body_bytes = 1 << 16;
    config.http.header_timeout = std::chrono::milliseconds(500);
    config.http.body_timeout = std::chrono::milliseconds(500);
    config.model_name = "m";
    config.max_stored_responses = 4;
    server_ = std::make_unique<ApiServer>(config, *engine_, tokenizer_, metrics_);
    engine_->start();
    server_->start();
  }

  /// Sends everything, shuts the sending half, and reads to the end.
  std::string exchange(std::string_view bytes) {
    const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    FUZZ_CHECK(socket >= 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(server_->port()));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    FUZZ_CHECK(::connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    const timeval patience{20, 0};
    ::setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    const linger at_once{1, 0};  // thousands of closed connections would use the ports up
    ::setsockopt(socket, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    while (!bytes.empty()) {
      const ssize_t sent = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) {
        break;  // it has closed already
      }
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
    ::shutdown(socket, SHUT_WR);
    std::string answer;
    char buffer[1 << 14];
    ssize_t got = 0;
    do {
      got = ::recv(socket, buffer, sizeof(buffer), 0);
      answer.append(buffer, static_cast<size_t>(std::max<ssize_t>(got, 0)));
    } while (got > 0 || (got < 0 && errno == EINTR));  // the fuzzer's clock interrupts
    FUZZ_CHECK(got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK));  // it hangs
    ::close(socket);
    return answer;
  }

 private:
  std::shared_ptr<const text::Tokenizer> tokenizer_;
  MetricRegistry metrics_;
  std::unique_ptr<engine::Engine> engine_;
  std::unique_ptr<ApiServer> server_;
};

/// Without the interim answers by which the server finds out whether a client that ended its
/// sending still reads.
std::string final_answer(std::string answer) {
  constexpr std::string_view kInterim = "HTTP/1.1 100 Continue\r\n\r\n";
  while (answer.starts_with(kInterim)) {
    answer.erase(0, kInterim.size());
  }
  return answer;
}

/// Status of the first response, 0 where there is none.
int status_of(const std::string& answer) {
  constexpr std::string_view kHead = "HTTP/1.1 ";
  if (answer.empty()) {
    return 0;
  }
  FUZZ_CHECK(answer.starts_with("HTTP/1."));
  return std::stoi(answer.substr(kHead.size(), 3));
}

void check(uint8_t head, std::string_view rest) {
  static Target* const target = new Target();  // lives as long as the process
  const bool is_raw = head >= std::size(kPaths);
  std::string bytes(rest);
  if (!is_raw) {
    bytes = std::string("POST ") + kPaths[head] +
            " HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: " +
            std::to_string(rest.size()) + "\r\n\r\n" + std::string(rest);
  }
  const std::string answer = final_answer(target->exchange(bytes));
  const int status = status_of(answer);
  FUZZ_CHECK(status != 500);
  if (!is_raw) {
    FUZZ_CHECK(status >= 200 && status < 500);
    if (status >= 400) {
      const size_t body = answer.find("\r\n\r\n");
      FUZZ_CHECK(body != std::string::npos);
      boost::system::error_code error;
      const boost::json::value value = boost::json::parse(answer.substr(body + 4), error);
      FUZZ_CHECK(!error && value.is_object() && value.get_object().contains("error"));
    }
  }
}

}  // namespace
}  // namespace baleen::server

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  baleen::log::set_level(baleen::log::Level::kOff);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1 || size > 8192) {
    return -1;
  }
  baleen::server::check(data[0],
                        std::string_view(reinterpret_cast<const char*>(data) + 1, size - 1));
  return 0;
}
