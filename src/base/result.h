#pragma once
// What a request can fail with. `Status` says which field is at fault (`param`, a JSON path) and is
// turned into an HTTP status and an API error body in one place, in `server`. `Result<T>` is a
// value or a Status.
//
//   Result<int> parse(...);
//   auto r = parse(...);
//   if (!r.ok()) return r.status();
//   use(r.value());

#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "base/check.h"

namespace baleen {

enum class StatusCode {
  kOk,
  kInvalidArgument,    // 400
  kUnauthenticated,    // 401
  kPermissionDenied,   // 403
  kNotFound,           // 404
  kTooLarge,           // 413
  kResourceExhausted,  // 429: queue full
  kCancelled,          // the client left; nothing is sent
  kUnavailable,        // 503: starting, draining, engine unhealthy, queue time-out
  kInternal,           // 500
};

const char* status_code_name(StatusCode code);

struct Status {
  StatusCode code = StatusCode::kOk;
  std::string message;
  std::string param;     // JSON path of the field at fault, such as messages[4].role; may be empty
  std::string api_code;  // machine-readable code, such as context_length_exceeded; may be empty

  bool ok() const { return code == StatusCode::kOk; }
  static Status invalid(std::string message, std::string param = {}, std::string api_code = {}) {
    return {
        StatusCode::kInvalidArgument, std::move(message), std::move(param), std::move(api_code)};
  }
};

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}        // NOLINT: a value is a result
  Result(Status status) : state_(std::move(status)) {  // NOLINT: so is a failure
    BALEEN_CHECK(!std::get<Status>(state_).ok(), "a Result without value needs a failing Status");
  }
  bool ok() const { return std::holds_alternative<T>(state_); }
  explicit operator bool() const { return ok(); }
  const Status& status() const {
    static const Status kFine;
    return ok() ? kFine : std::get<Status>(state_);
  }
  T& value() & {
    BALEEN_CHECK(ok(), "{}", status().message);
    return std::get<T>(state_);
  }
  const T& value() const& {
    BALEEN_CHECK(ok(), "{}", status().message);
    return std::get<T>(state_);
  }
  T&& value() && {
    BALEEN_CHECK(ok(), "{}", status().message);
    return std::get<T>(std::move(state_));
  }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }

 private:
  std::variant<T, Status> state_;
};

}  // namespace baleen
