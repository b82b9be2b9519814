#include "http/server.h"

#include <atomic>
#include <future>
#include <mutex>
#include <thread>

#include <gtest/gtest.h>

#include "base/error.h"
#include "http/client.h"
#include "http/raw_socket_test.h"
#include "http/response_writer.h"
#include "http/sse_reader.h"

namespace baleen::http {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// A server with a few routes; streams are held open by the test through `held`.
class ServerTest : public testing::Test {
 protected:
  ServerTest() {
    config.port = 0;
    router.add("POST", "/echo", [](Request&& request, ResponseWriter writer) {
      std::string text = request.method + " " + request.path;
      for (const auto& [key, value] : request.query) {
        text += " " + key + "=" + value;
      }
      writer.respond(Response::text(200, text + "\n" + request.body));
    });
    router.add("GET", "/hello", [](Request&&, ResponseWriter writer) {
      writer.respond(Response::text(200, "hello"));
    });
    router.add_prefix("GET", "/item/", [](Request&& request, ResponseWriter writer) {
      writer.respond(Response::text(200, request.path_parameter));
    });
    router.add("GET", "/throw", [](Request&&, ResponseWriter) { throw Error("no luck"); });
    router.add("GET", "/forget", [](Request&&, ResponseWriter) {});
    router.add("GET", "/events", [](Request&&, ResponseWriter writer) {
      EventStream events = std::move(writer).start_events();
      for (int i = 0; i < 100; ++i) {
        events.send(std::to_string(i));
      }
      events.send("[DONE]");
      events.close();
    });
    router.add("GET", "/hold", [this](Request&&, ResponseWriter writer) {
      writer.on_disconnect([this] { left.set_value(); });
      EventStream events = std::move(writer).start_events();
      events.send("begin");
      held.set_value(std::move(events));
    });
    router.add("GET", "/think", [this](Request&&, ResponseWriter writer) {
      writer.on_disconnect([this] { left.set_value(); });
      thinking.set_value(std::make_unique<ResponseWriter>(std::move(writer)));
    });
  }
  Server& start() {
    server = std::make_unique<Server>(config, std::move(router), std::move(hooks));
    server->start();
    return *server;
  }
  bool left_within(milliseconds time) {
    return left.get_future().wait_for(time) == std::future_status::ready;
  }

  ServerConfig config;
  Router router;
  ServerHooks hooks;
  std::promise<void> left;
  std::promise<EventStream> held;
  std::promise<std::unique_ptr<ResponseWriter>> thinking;
  std::unique_ptr<Server> server;
};

TEST_F(ServerTest, AnswersSeveralRequestsOnOneConnection) {
  Client client(start().url(), {});
  for (int i = 0; i < 3; ++i) {
    const auto answer = client.post("/echo?a=1%202&b=%C3%A9", std::string(70'000, 'x'));
    ASSERT_TRUE(answer.ok()) << answer.status().message;
    EXPECT_EQ(answer->status, 200);
    EXPECT_EQ(answer->body, "POST /echo a=1 2 b=\xC3\xA9\n" + std::string(70'000, 'x'));
  }
  EXPECT_EQ(client.get("/item/a%2Fb%20c")->body, "a/b c");
  EXPECT_EQ(server->num_connections(), 1);
}

TEST_F(ServerTest, UnknownPathAndWrongMethodUseTheErrorPage) {
  hooks.error_page = [](int status, const std::string& message, std::string_view) {
    return Response::json(status, "{\"m\": \"" + message + "\"}");
  };
  Client client(start().url(), {});
  const auto missing = client.get("/nope");
  EXPECT_EQ(missing->status, 404);
  EXPECT_EQ(missing->body, "{\"m\": \"no such path: /nope\"}");
  const auto wrong = client.post("/hello", "");
  EXPECT_EQ(wrong->status, 405);
  EXPECT_EQ(*wrong->headers.find("allow"), "GET");
  EXPECT_EQ(server->num_connections(), 1);
}

TEST_F(ServerTest, HandlerThatThrowsOrForgetsAnswers500) {
  Client client(start().url(), {});
  EXPECT_EQ(client.get("/throw")->status, 500);
  EXPECT_EQ(client.get("/forget")->status, 500);
  EXPECT_EQ(client.get("/hello")->status, 200);
}

TEST_F(ServerTest, HeadSendsNoBody) {
  Client client(start().url(), {});
  const auto answer = client.send({"HEAD", "/hello", {}, {}});
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(answer->status, 200);
  EXPECT_EQ(*answer->headers.find("content-length"), "5");
  EXPECT_EQ(answer->body, "");
  EXPECT_EQ(client.get("/hello")->body, "hello");
}

TEST_F(ServerTest, StreamsEventsInOrderAndKeepsTheConnection) {
  Client client(start().url(), {});
  for (int round = 0; round < 2; ++round) {
    SseReader reader;
    std::vector<std::string> data;
    const auto answer = client.stream({"GET", "/events", {}, {}}, [&](std::string_view piece) {
      reader.push(piece, [&](const SseEvent& event) { data.push_back(event.data); });
      return true;
    });
    ASSERT_TRUE(answer.ok()) << answer.status().message;
    EXPECT_EQ(*answer->headers.find("content-type"), "text/event-stream");
    ASSERT_EQ(data.size(), 101U);
    for (size_t i = 0; i < 100; ++i) {
      EXPECT_EQ(data[i], std::to_string(i));
    }
    EXPECT_EQ(data[100], "[DONE]");
  }
  EXPECT_EQ(server->num_connections(), 1);
}

TEST_F(ServerTest, Http10StreamEndsWithTheConnection) {
  RawSocket socket(start().port());
  socket.send("GET /events HTTP/1.0\r\n\r\n");
  const std::string answer = socket.read();
  EXPECT_EQ(answer.find("Transfer-Encoding"), std::string::npos);
  EXPECT_NE(answer.find("\r\n\r\ndata: 0\n\n"), std::string::npos);
  EXPECT_TRUE(answer.ends_with("data: [DONE]\n\n"));
}

TEST_F(ServerTest, NoticesAClientThatLeavesAQuietStream) {
  RawSocket socket(start().port());
  socket.send("GET /hold HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_NE(socket.read("data: begin").find("data: begin"), std::string::npos);
  EventStream events = held.get_future().get();
  socket.close();
  EXPECT_TRUE(left_within(seconds(5)));
  EXPECT_FALSE(events.send("nobody listens"));
}

TEST_F(ServerTest, NoticesAClientThatLeavesBeforeTheAnswer) {
  std::promise<int> status;
  hooks.on_response = [&](const std::string&, int code, std::chrono::nanoseconds) {
    status.set_value(code);
  };
  RawSocket socket(start().port());
  socket.send("GET /think HTTP/1.1\r\nHost: x\r\n\r\n");
  const auto writer = thinking.get_future().get();
  socket.close();
  EXPECT_TRUE(left_within(seconds(5)));
  EXPECT_EQ(status.get_future().get(), 499);
  writer->respond(Response::text(200, "late"));
}

TEST_F(ServerTest, ClientThatOnlyEndsItsSendingGetsItsAnswer) {
  start();
  for (const char* version : {"1.0", "1.1"}) {
    RawSocket socket(server->port());
    thinking = {};
    socket.send("GET /think HTTP/" + std::string(version) + "\r\nHost: x\r\n\r\n");
    const auto writer = thinking.get_future().get();
    socket.end_sending();
    std::this_thread::sleep_for(milliseconds(50));  // the server has seen the end
    writer->respond(Response::text(200, "thought"));
    EXPECT_TRUE(socket.read().ends_with("\r\n\r\nthought")) << version;
  }
  EXPECT_FALSE(left_within(milliseconds(0)));
}

TEST_F(ServerTest, ClientThatOnlyEndsItsSendingGetsItsStream) {
  RawSocket socket(start().port());
  socket.send("GET /hold HTTP/1.1\r\nHost: x\r\n\r\n");
  EventStream events = held.get_future().get();
  socket.end_sending();
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_TRUE(events.send("end"));
  events.close();
  const std::string answer = socket.read();
  EXPECT_NE(answer.find("data: begin"), std::string::npos);
  EXPECT_NE(answer.find("data: end"), std::string::npos);
  EXPECT_TRUE(answer.ends_with("0\r\n\r\n"));
  EXPECT_FALSE(left_within(milliseconds(0)));
}

/// The server looks whether such a client still reads, by an interim answer. The answer itself,
/// made by another thread at that very moment, must not be lost: it comes at many moments behind
/// it.
TEST_F(ServerTest, AnswersArriveThatComeBesideTheInterimOne) {
  start();
  constexpr int kRounds = 2000;
  constexpr int kMoments = 100;
  for (int round = 0; round < kRounds; ++round) {
    RawSocket socket(server->port());
    thinking = {};
    socket.send("GET /think HTTP/1.1\r\nHost: x\r\n\r\n");
    const auto writer = thinking.get_future().get();
    socket.end_sending();
    while (!socket.has_bytes()) {
    }
    const auto due =
        std::chrono::steady_clock::now() + std::chrono::nanoseconds(100 * (round % kMoments));
    while (std::chrono::steady_clock::now() < due) {
    }
    if (round % 2 == 0) {
      writer->respond(Response::text(200, "thought"));
    } else {
      EventStream events = std::move(*writer).start_events();
      events.send("thought");
      events.close();
    }
    const std::string answer = socket.read();
    ASSERT_NE(answer.find("HTTP/1.1 200"), std::string::npos) << round << answer;
    ASSERT_NE(answer.find("thought"), std::string::npos) << round << answer;
  }
}

TEST_F(ServerTest, PipelinedRequestsOfAClientThatEndedItsSendingAreAllAnswered) {
  RawSocket socket(start().port());
  std::string requests;
  for (int i = 0; i < 5; ++i) {
    requests += "GET /item/n" + std::to_string(i) + " HTTP/1.1\r\nHost: x\r\n\r\n";
  }
  socket.send(requests);
  socket.end_sending();
  const std::string answers = socket.read();
  for (int i = 0; i < 5; ++i) {
    EXPECT_NE(answers.find("\r\n\r\nn" + std::to_string(i)), std::string::npos) << i;
  }
}

TEST_F(ServerTest, AnswersFromAnotherThreadLater) {
  Client client(start().url(), {});
  std::jthread other([this] {
    const auto writer = thinking.get_future().get();
    std::this_thread::sleep_for(milliseconds(20));
    writer->respond(Response::text(200, "thought"));
  });
  EXPECT_EQ(client.get("/think")->body, "thought");
}

TEST_F(ServerTest, PipelinedRequestsAreAnsweredInOrder) {
  RawSocket socket(start().port());
  socket.send(
      "GET /hello HTTP/1.1\r\nHost: x\r\n\r\nGET /item/2 HTTP/1.1\r\nHost: x\r\n\r\n"
      "GET /item/3 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  const std::string all = socket.read();
  const size_t first = all.find("\r\n\r\nhello");
  const size_t second = all.find("\r\n\r\n2");
  const size_t third = all.find("\r\n\r\n3");
  EXPECT_LT(first, second);
  EXPECT_LT(second, third);
  EXPECT_NE(third, std::string::npos);
}

TEST_F(ServerTest, ManyClientsAtOnce) {
  config.io_threads = 2;
  start();
  std::atomic<int> good{0};
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 16; ++i) {
      threads.emplace_back([&] {
        Client client(server->url(), {});
        for (int k = 0; k < 20; ++k) {
          const std::string name = std::to_string(k);
          if (client.get("/item/" + name)->body == name) {
            ++good;
          }
        }
      });
    }
  }
  EXPECT_EQ(good, 16 * 20);
}

TEST_F(ServerTest, ClientReconnectsButDoesNotRepeatWhatTimedOut) {
  std::atomic<int> num_requests{0};
  router.add("POST", "/count", [&](Request&&, ResponseWriter writer) {
    ++num_requests;
    writer.on_disconnect([this] { left.set_value(); });
    thinking.set_value(std::make_unique<ResponseWriter>(std::move(writer)));
  });
  config.idle_timeout = milliseconds(20);
  start();
  ClientConfig client_config;
  client_config.read_timeout = milliseconds(100);
  Client client(server->url(), client_config);
  EXPECT_EQ(client.get("/hello")->body, "hello");
  std::this_thread::sleep_for(milliseconds(60));  // the server closes the idle connection
  EXPECT_EQ(client.get("/hello")->body, "hello");
  EXPECT_EQ(client.post("/count", "").status().code, StatusCode::kUnavailable);
  EXPECT_TRUE(left_within(seconds(5)));
  EXPECT_EQ(num_requests, 1);
}

TEST_F(ServerTest, BindErrorNamesTheAddress) {
  config.port = start().port();
  try {
    const Server second(config, {}, {});
    FAIL() << "two servers on one port";
  } catch (const SystemError& error) {
    EXPECT_NE(std::string(error.what()).find("127.0.0.1:" + std::to_string(config.port)),
              std::string::npos)
        << error.what();
  }
  config.host = "no.such.host.invalid";
  EXPECT_THROW(Server(config, {}, {}), SystemError);
  config.port = 70'000;
  EXPECT_THROW(Server(config, {}, {}), ConfigError);
}

TEST_F(ServerTest, ShutdownLetsAnAnswerInProgressFinish) {
  start();
  auto answer = std::async(std::launch::async, [this] {
    Client client(server->url(), {});
    return client.get("/think");
  });
  const auto writer = thinking.get_future().get();
  Client idle(server->url(), {});
  EXPECT_TRUE(idle.get("/hello").ok());
  std::jthread finisher([&] {
    std::this_thread::sleep_for(milliseconds(50));
    writer->respond(Response::text(200, "done"));
  });
  server->shutdown(seconds(20));
  EXPECT_EQ(answer.get()->body, "done");
  const auto late = idle.get("/hello");
  EXPECT_EQ(late.status().code, StatusCode::kUnavailable);
}

TEST_F(ServerTest, ShutdownCutsWhatOutlastsTheGrace) {
  start();
  RawSocket socket(server->port());
  socket.send("GET /hold HTTP/1.1\r\nHost: x\r\n\r\n");
  EventStream events = held.get_future().get();
  server->shutdown(milliseconds(20));
  EXPECT_TRUE(left_within(milliseconds(0)));
  EXPECT_EQ(socket.read().find("0\r\n\r\n"), std::string::npos);  // no regular end of the stream
  EXPECT_FALSE(events.send("x"));
}

TEST(ClientTest, RefusesOtherUrlsAndNamesADeadServer) {
  EXPECT_THROW(Client("https://127.0.0.1", {}), ConfigError);
  EXPECT_THROW(Client("nonsense", {}), ConfigError);
  int port = 0;
  {
    ServerConfig config;
    config.port = 0;
    const Server server(config, {}, {});
    port = server.port();
  }
  Client client("http://127.0.0.1:" + std::to_string(port), {});
  const auto answer = client.get("/");
  EXPECT_EQ(answer.status().code, StatusCode::kUnavailable);
  EXPECT_NE(answer.status().message.find(std::to_string(port)), std::string::npos);
}

}  // namespace
}  // namespace baleen::http
