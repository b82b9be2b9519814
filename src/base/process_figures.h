#pragma once
// What the system knows of this process. Linux alone; any thread.
//
//   double begun_s = process_age_s();
//   double peak = process_memory_bytes("VmHWM");   // "VmRSS": now

#include <string_view>

namespace baleen {

/// Seconds since the process was started, to 10 ms: with the loading of its libraries.
double process_age_s();

/// A field of /proc/self/status, bytes; 0 where there is none.
double process_memory_bytes(std::string_view field);

}  // namespace baleen
