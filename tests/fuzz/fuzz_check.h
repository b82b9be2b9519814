#pragma once
// What a fuzz target says when something is wrong: it prints and aborts, in every build.
//
//   FUZZ_CHECK(run.calls_in_order);

#include <cstdio>
#include <cstdlib>

#define FUZZ_CHECK(condition)                                                        \
  do {                                                                               \
    if (!(condition)) {                                                              \
      std::fprintf(stderr, "%s:%d: %s is not so\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                  \
    }                                                                                \
  } while (false)
