#pragma once
// How much of a random test an instrumented build runs: its code is ten times slower, and what it
// looks for, a bad access or a race, shows in the first rounds.

namespace baleen {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr int kTestShare = 20;  ///< one round of so many is run
#else
inline constexpr int kTestShare = 1;
#endif

}  // namespace baleen
