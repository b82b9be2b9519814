#pragma once
// What the system knows of this process. Linux alone; any thread.
//
//   double begun_s = process_age_s();
//   double mb = process_memory_mb("VmRSS");

#include <string>

namespace baleen::apps {

/// Seconds since the process was started, to 10 ms: with the loading of its libraries.
double process_age_s();

/// Megabytes (10^6) of a field of /proc/self/status, 0 where there is none.
double process_memory_mb(const std::string& field);

}  // namespace baleen::apps
