#pragma once
// Faults at start-up: configuration, checkpoints, devices, sockets. The text names the file, tensor
// or key, what was expected and what came. `apps` prints it and exits with code 1.

#include <stdexcept>
#include <string>

namespace baleen {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A command line flag, TOML key or config.json key is missing, unknown or out of range.
class ConfigError : public Error {
 public:
  using Error::Error;
};

/// A checkpoint file or one of its tensors cannot be used.
class CheckpointError : public Error {
 public:
  using Error::Error;
};

/// The operating system refused: file, socket, memory map.
class SystemError : public Error {
 public:
  using Error::Error;
};

}  // namespace baleen
