#pragma once
// A progress line on standard error: rewritten in place on a terminal, silent elsewhere. The
// returned function may be called from any thread.
//
//   options.progress = progress_line("loading");

#include <string>

#include "weights/checkpoint.h"

namespace baleen::apps {

weights::ProgressFn progress_line(std::string label);

}  // namespace baleen::apps
