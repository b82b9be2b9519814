#pragma once
// Who takes weights that come over HTTP, bucket by bucket, into the running engine. The server
// knows the paths and the keys, the program brings the rest. Called on handler threads; calls may
// block until the engine has taken what came.
//
//   config.weight_streams = std::make_shared<MyReceiver>(engine);

#include <string>
#include <string_view>

#include "base/result.h"

namespace baleen::server {

class WeightStreams {
 public:
  virtual ~WeightStreams() = default;

  /// Opens an update from its manifest; gives the answer's JSON. One that is open breaks off.
  virtual Result<std::string> begin(std::string_view manifest) = 0;
  /// An update that is not open, here and in end(): kNotFound, code weight_update_not_open.
  virtual Result<std::string> bucket(std::string_view message) = 0;
  /// Returns when the engine computes with the new weights, or why it does not.
  virtual Result<std::string> end(std::string_view message) = 0;
};

}  // namespace baleen::server
