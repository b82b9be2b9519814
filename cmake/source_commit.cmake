# Writes HEADER with the commit of SOURCE, touching it only when the commit changed. Run in every build.
cmake_policy(VERSION 3.25)
execute_process(COMMAND git -C "${SOURCE}" describe --always --dirty --abbrev=12 --exclude=*
                OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE result ERROR_QUIET)
if(NOT result EQUAL 0)
  set(commit "unknown")
endif()
set(text "#pragma once
// The commit that this program was built from.
inline constexpr const char* kSourceCommit = \"${commit}\";
")
if(EXISTS "${HEADER}")
  file(READ "${HEADER}" old)
endif()
if(NOT "${text}" STREQUAL "${old}")
  file(WRITE "${HEADER}" "${text}")
endif()
