#include "rewards/external_verifier.h"

#include <cerrno>
#include <cstring>
#include <mutex>
#include <optional>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"

extern char** environ;  // NOLINT: declared by no header

namespace baleen::rewards {
namespace {

using ProgramClock = std::chrono::steady_clock;

Status unavailable(std::string message) {
  return {StatusCode::kUnavailable, std::move(message), {}, {}};
}
std::string system_text(int error) {
  return std::strerror(error);
}  // NOLINT: names only

/// One running program and the socket that is its standard input and output.
class RewardProgram {
 public:
  explicit RewardProgram(const ExternalConfig& config) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
      throw SystemError("reward program: cannot make a socket pair: " + system_text(errno));
    }
    socket_ = ends[0];
    const int error = spawn(config, ends[1]);
    close(ends[1]);
    if (error != 0) {
      close(socket_);
      throw SystemError(fmt::format(
          "reward program: cannot start {}: {}", config.command.front(), system_text(error)));
    }
    if (config.memory_bytes > 0) {
      const auto bytes = static_cast<rlim_t>(config.memory_bytes);
      const rlimit limit{bytes, bytes};
      prlimit(pid_, RLIMIT_AS, &limit, nullptr);
    }
  }
  RewardProgram(const RewardProgram&) = delete;
  RewardProgram& operator=(const RewardProgram&) = delete;
  ~RewardProgram() {
    close(socket_);
    kill(-pid_, SIGKILL);
    int status = 0;
    while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
  }

  /// Sends a line, returns the line that comes back. After a failure the program is of no more use.
  Result<std::string> ask(const std::string& line,
                          ProgramClock::time_point deadline,
                          int64_t max_line_bytes) {
    size_t sent = 0;
    std::string answer;
    while (true) {
      // Reads while it writes: a program may answer before it has taken everything.
      const short events = sent < line.size() ? POLLIN | POLLOUT : POLLIN;
      const std::optional<short> ready = wait(events, deadline);
      if (!ready) {
        return unavailable("the reward program gave no answer in time");
      }
      if ((*ready & POLLOUT) != 0) {
        const ssize_t count =
            send(socket_, line.data() + sent, line.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (count < 0 && errno != EAGAIN && errno != EINTR) {
          return ended("reading");
        }
        sent += count > 0 ? static_cast<size_t>(count) : 0;
      }
      if ((*ready & (POLLIN | POLLHUP | POLLERR)) != 0) {
        char piece[4096];
        const ssize_t count = recv(socket_, piece, sizeof(piece), MSG_DONTWAIT);
        if (count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR)) {
          return ended("answering");
        }
        answer.append(piece, count > 0 ? static_cast<size_t>(count) : 0);
        if (const size_t end = answer.find('\n'); end != std::string::npos) {
          const bool exact = end + 1 == answer.size() && sent == line.size();
          answer.resize(end);
          return exact ? Result<std::string>(std::move(answer))
                       : Status{StatusCode::kInternal,
                                "the reward program wrote more than one line for a sample",
                                {},
                                {}};
        }
        if (static_cast<int64_t>(answer.size()) > max_line_bytes) {
          return Status{StatusCode::kInternal, "the reward program's line is too long", {}, {}};
        }
      }
    }
  }

 private:
  int spawn(const ExternalConfig& config, int end) {
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
    posix_spawn_file_actions_adddup2(&actions, end, STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, end, STDOUT_FILENO);
    sigset_t none;
    sigemptyset(&none);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
    std::vector<char*> arguments;
    for (const std::string& argument : config.command) {
      arguments.push_back(const_cast<char*>(argument.c_str()));  // NOLINT: not written to
    }
    arguments.push_back(nullptr);
    const int error =
        posix_spawnp(&pid_, arguments[0], &actions, &attributes, arguments.data(), environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    return error;
  }

  std::optional<short> wait(short events, ProgramClock::time_point deadline) const {
    while (true) {
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(deadline - ProgramClock::now());
      if (left.count() <= 0) {
        return std::nullopt;
      }
      pollfd watched{socket_, events, 0};
      const int ready =
          poll(&watched, 1, static_cast<int>(std::min<int64_t>(left.count(), 60'000)));
      if (ready > 0) {
        return watched.revents;
      }
      if (ready < 0 && errno != EINTR) {
        return std::nullopt;
      }
    }
  }

  Status ended(const char* while_what) {
    return {StatusCode::kInternal,
            fmt::format("the reward program ended while {}", while_what),
            {},
            {}};
  }

  pid_t pid_ = -1;
  int socket_ = -1;
};

}  // namespace

class ExternalVerifier::Pool {
 public:
  std::unique_ptr<RewardProgram> take(const ExternalConfig& config) {
    {
      const std::lock_guard lock(mutex_);
      if (!idle_.empty()) {
        std::unique_ptr<RewardProgram> program = std::move(idle_.back());
        idle_.pop_back();
        return program;
      }
    }
    return std::make_unique<RewardProgram>(config);
  }
  void give_back(std::unique_ptr<RewardProgram> program) {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(program));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<RewardProgram>> idle_;
};

ExternalVerifier::ExternalVerifier(ExternalConfig config)
    : config_(std::move(config)), pool_(std::make_unique<Pool>()) {
  if (config_.command.empty() || config_.command.front().empty()) {
    throw ConfigError("rm_type external needs rm_command");
  }
}

ExternalVerifier::~ExternalVerifier() = default;

Result<Score> ExternalVerifier::verify(const RewardInput& input, const CallLimits& limits) const {
  std::unique_ptr<RewardProgram> program;
  try {
    program = pool_->take(config_);
  } catch (const SystemError& error) {
    return Status{StatusCode::kInternal, error.what(), {}, {}};
  }
  const Result<std::string> answer =
      program->ask(reward_request_json(input) + "\n", limits.deadline, config_.max_line_bytes);
  if (!answer.ok()) {
    return answer.status();
  }
  Result<Score> score = read_reward_answer(*answer);
  if (score.ok()) {
    pool_->give_back(std::move(program));
  }
  return score;
}

}  // namespace baleen::rewards
