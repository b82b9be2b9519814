// Sizes, time-outs and malformed input at the connection.
#include <future>
#include <thread>

#include <gtest/gtest.h>

#include "http/client.h"
#include "http/raw_socket_test.h"
#include "http/response_writer.h"
#include "http/server.h"

namespace baleen::http {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class LimitsTest : public testing::Test {
 protected:
  LimitsTest() {
    config.port = 0;
    router.add("POST", "/size", [](Request&& request, ResponseWriter writer) {
      writer.respond(Response::text(200, std::to_string(request.body.size())));
    });
    router.add("GET", "/flood", [this](Request&&, ResponseWriter writer) {
      writer.on_disconnect([this] { left.set_value(); });
      EventStream events = std::move(writer).start_events();
      const std::string line(10'000, 'x');
      int num_events = 0;
      while (num_events < 5000 && events.send(line)) {
        ++num_events;
      }
      if (num_events < 5000) {
        refused.set_value();
      } else {
        held = std::make_unique<EventStream>(std::move(events));
      }
    });
  }
  int start() {
    server = std::make_unique<Server>(config, std::move(router), ServerHooks{});
    server->start();
    return server->port();
  }
  ServerConfig config;
  Router router;
  std::promise<void> left;
  std::promise<void> refused;
  std::unique_ptr<EventStream> held;
  std::unique_ptr<Server> server;
};

TEST_F(LimitsTest, BodyAtTheLimitPassesOneMoreByteIs413) {
  config.max_body_bytes = 1000;
  start();
  Client client(server->url(), {});
  EXPECT_EQ(client.post("/size", std::string(1000, 'x'))->body, "1000");
  const auto answer = client.post("/size", std::string(1001, 'x'));
  EXPECT_EQ(answer->status, 413);
  EXPECT_NE(answer->body.find("1000"), std::string::npos);
  EXPECT_EQ(client.post("/size", "x")->body, "1");
}

TEST_F(LimitsTest, ClientThatKeepsSendingAHugeBodyStillReads413) {
  config.max_body_bytes = 1000;
  start();
  Client client(server->url(), {});
  EXPECT_EQ(client.post("/size", std::string(8 << 20, 'x'))->status, 413);
}

TEST_F(LimitsTest, ChunkedBodyOverTheLimitIs413) {
  config.max_body_bytes = 10;
  RawSocket socket(start());
  socket.send(
      "POST /size HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n8\r\n12345678\r\n");
  socket.send("8\r\n12345678\r\n0\r\n\r\n");
  EXPECT_EQ(socket.read().substr(0, 12), "HTTP/1.1 413");
}

TEST_F(LimitsTest, HeaderOverTheLimitIs431) {
  config.max_header_bytes = 1024;
  RawSocket socket(start());
  socket.send("POST /size HTTP/1.1\r\nHost: x\r\nX: " + std::string(2000, 'a') + "\r\n\r\n");
  EXPECT_EQ(socket.read().substr(0, 12), "HTTP/1.1 431");
}

TEST_F(LimitsTest, MalformedRequestsAre400AndTheServerLives) {
  const int port = start();
  for (const char* text : {"nonsense\r\n\r\n",
                           "GET /size HTTP/9.9\r\n\r\n",
                           "GET /%zz HTTP/1.1\r\nHost: x\r\n\r\n",
                           "GET / HTTP/1.1\r\nbad header line\r\n\r\n",
                           "POST /size HTTP/1.1\r\nContent-Length: x\r\n\r\n"}) {
    RawSocket socket(port);
    socket.send(text);
    EXPECT_EQ(socket.read().substr(0, 12), "HTTP/1.1 400") << text;
  }
  Client client(server->url(), {});
  EXPECT_EQ(client.post("/size", "four")->body, "4");
}

TEST_F(LimitsTest, ExpectContinueIsAnswered) {
  RawSocket socket(start());
  socket.send(
      "POST /size HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n");
  EXPECT_EQ(socket.read("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  socket.send("abc");
  EXPECT_NE(socket.read("\r\n\r\n3").find("200 OK"), std::string::npos);
}

TEST_F(LimitsTest, SlowHeaderAndSlowBodyAre408) {
  config.header_timeout = milliseconds(100);
  config.body_timeout = milliseconds(100);
  const int port = start();
  RawSocket header(port);
  header.send("POST /size HTTP/1.1\r\nHost");
  EXPECT_EQ(header.read().substr(0, 12), "HTTP/1.1 408");
  RawSocket body(port);
  body.send("POST /size HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\na");
  EXPECT_EQ(body.read().substr(0, 12), "HTTP/1.1 408");
}

TEST_F(LimitsTest, SlowBodyThatMovesIsRead) {
  config.body_timeout = milliseconds(2000);
  RawSocket socket(start());
  socket.send("POST /size HTTP/1.1\r\nHost: x\r\nContent-Length: 8\r\nConnection: close\r\n\r\n");
  for (int i = 0; i < 8; ++i) {
    std::this_thread::sleep_for(milliseconds(10));
    socket.send("x");
  }
  EXPECT_TRUE(socket.read().ends_with("\r\n\r\n8"));
}

TEST_F(LimitsTest, BodyThatDripsIsCutAtTheDeadline) {
  config.body_timeout = milliseconds(60'000);
  config.body_deadline = milliseconds(200);
  const int port = start();
  const auto begin = std::chrono::steady_clock::now();
  for (const char* kind : {"Content-Length: 1000000", "Transfer-Encoding: chunked"}) {
    RawSocket socket(port);
    socket.send("POST /size HTTP/1.1\r\nHost: x\r\n" + std::string(kind) + "\r\n\r\n");
    const std::string piece = std::string(kind).starts_with("Content") ? "x" : "1\r\nx\r\n";
    std::jthread drip([&](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        socket.send(piece);
        std::this_thread::sleep_for(milliseconds(5));
      }
    });
    EXPECT_EQ(socket.read("\r\n").substr(0, 12), "HTTP/1.1 408") << kind;
  }
  EXPECT_GE(std::chrono::steady_clock::now() - begin, milliseconds(400));
}

TEST_F(LimitsTest, CodedBodiesAreRefusedAndTheConnectionStays) {
  RawSocket socket(start());
  // The answer, up to the end of the text that it must hold.
  const auto answer_to = [&](const std::string& fields, const std::string& body, const char* end) {
    socket.send("POST /size HTTP/1.1\r\nHost: x\r\n" + fields + "\r\n\r\n" + body);
    return socket.read(end);
  };
  for (const std::string coding : {"gzip", "deflate", "br", "zstd", "gzip, identity"}) {
    const std::string answer = answer_to(
        "Content-Encoding: " + coding + "\r\nContent-Length: 3", "abc", "send the body as it is\n");
    EXPECT_EQ(answer.substr(0, 12), "HTTP/1.1 415") << coding;
    EXPECT_NE(answer.find("Accept-Encoding: identity\r\n"), std::string::npos) << answer;
    EXPECT_NE(answer.find("Content-Encoding " + coding), std::string::npos) << answer;
  }
  const std::string transfer =
      answer_to("Transfer-Encoding: gzip, chunked", "1\r\nx\r\n0\r\n\r\n", "only chunked\n");
  EXPECT_EQ(transfer.substr(0, 12), "HTTP/1.1 501") << transfer;
  const std::string plain =
      answer_to("Content-Encoding: Identity\r\nContent-Length: 3", "abc", "\r\n\r\n3");
  EXPECT_EQ(plain.substr(0, 12), "HTTP/1.1 200") << plain;
}

TEST_F(LimitsTest, IdleConnectionIsClosed) {
  config.idle_timeout = milliseconds(50);
  RawSocket socket(start());
  EXPECT_EQ(socket.read(), "");
}

TEST_F(LimitsTest, ConnectionOverTheLimitIs503) {
  config.max_connections = 1;
  const int port = start();
  Client first(server->url(), {});
  EXPECT_EQ(first.post("/size", "")->status, 200);
  RawSocket second(port);
  EXPECT_EQ(second.read().substr(0, 12), "HTTP/1.1 503");
  EXPECT_EQ(first.post("/size", "")->status, 200);
}

TEST_F(LimitsTest, ClientThatDoesNotReadIsBrokenOff) {
  config.max_stream_queue_bytes = 1 << 20;
  RawSocket socket(start());
  socket.send("GET /flood HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(refused.get_future().wait_for(seconds(20)), std::future_status::ready);
  EXPECT_EQ(left.get_future().wait_for(seconds(20)), std::future_status::ready);
}

TEST_F(LimitsTest, StalledWriteTimesOut) {
  config.max_stream_queue_bytes = 64 << 20;
  config.write_timeout = milliseconds(100);
  RawSocket socket(start());
  socket.send("GET /flood HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(left.get_future().wait_for(seconds(20)), std::future_status::ready);
}

}  // namespace
}  // namespace baleen::http
