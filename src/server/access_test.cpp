#include "server/access.h"

#include <boost/json/parse.hpp>
#include <gtest/gtest.h>

#include "server/api_error.h"

namespace baleen::server {
namespace {

TEST(AccessTest, NoKeyConfiguredLetsEverybodyIn) {
  EXPECT_TRUE(check_key({}, "").ok());
}

TEST(AccessTest, TakesTheKeyAndRefusesOthers) {
  EXPECT_TRUE(check_key({{"authorization", "Bearer sesame"}}, "sesame").ok());
  EXPECT_TRUE(check_key({{"Authorization", "bearer sesame"}}, "sesame").ok());
  for (const char* header : {"Bearer sesam",
                             "Bearer sesame2",
                             "Bearer ",
                             "Bearer",
                             "Basic sesame",
                             "sesame",
                             "",
                             "Bearer sesamf",
                             "Bearer sesamesesame"}) {
    const Status status = check_key({{"Authorization", header}}, "sesame");
    EXPECT_EQ(status.code, StatusCode::kUnauthenticated) << header;
    EXPECT_EQ(status.api_code, "invalid_api_key") << header;
  }
  EXPECT_EQ(check_key({}, "sesame").api_code, "missing_api_key");
}

TEST(ApiErrorTest, GivesStatusTypeAndFields) {
  struct Row {
    StatusCode code;
    int http;
    const char* type;
  };
  const Row rows[] = {{StatusCode::kInvalidArgument, 400, "invalid_request_error"},
                      {StatusCode::kUnauthenticated, 401, "authentication_error"},
                      {StatusCode::kPermissionDenied, 403, "permission_error"},
                      {StatusCode::kNotFound, 404, "not_found_error"},
                      {StatusCode::kTooLarge, 413, "request_too_large"},
                      {StatusCode::kResourceExhausted, 429, "rate_limit_error"},
                      {StatusCode::kInternal, 500, "server_error"},
                      {StatusCode::kUnavailable, 503, "service_unavailable"}};
  for (const Row& row : rows) {
    const http::Response response =
        error_response({row.code, "say \"why\"", "a[1].b", "some_code"});
    EXPECT_EQ(response.status, row.http);
    const boost::json::value body = boost::json::parse(response.body);
    const boost::json::object& error = body.at("error").as_object();
    EXPECT_EQ(error.at("message").as_string(), "say \"why\"");
    EXPECT_EQ(error.at("type").as_string(), row.type);
    EXPECT_EQ(error.at("param").as_string(), "a[1].b");
    EXPECT_EQ(error.at("code").as_string(), "some_code");
    EXPECT_EQ(response.headers.find("Retry-After") != nullptr, row.http == 429 || row.http == 503);
  }
}

TEST(ApiErrorTest, EmptyFieldsAreNull) {
  const boost::json::value body = boost::json::parse(http_error_page(405, "no", "/x").body);
  EXPECT_TRUE(body.at("error").at("param").is_null());
  EXPECT_TRUE(body.at("error").at("code").is_null());
  EXPECT_EQ(body.at("error").at("type").as_string(), "invalid_request_error");
}

}  // namespace
}  // namespace baleen::server
