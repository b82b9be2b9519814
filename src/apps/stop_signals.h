#pragma once
// How long-running commands are asked to save and end.

namespace baleen::apps {

/// Whether SIGINT or SIGTERM came. From the first call on neither ends the program by itself.
bool stop_asked();

}  // namespace baleen::apps
