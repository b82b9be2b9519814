# Language level, warnings, sanitizers, linker and compiler cache: the same for every room.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
string(TOUPPER "${CMAKE_BUILD_TYPE}" BALEEN_BUILD_TYPE_UPPER)
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")
# The sanitizer presets: instrumented code costs twice the compile time at -O1, and the tests are short.
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O0 -g1")
# The fuzz preset runs many inputs through code that is compiled once.
set(CMAKE_CXX_FLAGS_FUZZ "-O1 -g1")

# Contraction is off so that a formula has one rounding per operation, as its oracle says.
add_compile_options(-march=${BALEEN_CPU_ARCH} -ffp-contract=off)
if(BALEEN_SANITIZE)
  add_compile_options(-fsanitize=${BALEEN_SANITIZE} -fno-omit-frame-pointer
                      -fno-sanitize-recover=undefined)
  add_link_options(-fsanitize=${BALEEN_SANITIZE})
endif()
set(BALEEN_WARNINGS -Wall -Wextra -Wconversion -Wshadow -Werror)
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  set(BALEEN_WARNINGS -w)  # the warnings are those of GCC, which compiles every other preset
elseif(BALEEN_SANITIZE)
  # Instrumented code makes GCC 12 see impossible null and overflow paths inside the standard library.
  list(APPEND BALEEN_WARNINGS -Wno-maybe-uninitialized -Wno-null-dereference -Wno-stringop-overflow
       -Wno-array-bounds)
endif()

find_program(BALEEN_CCACHE ccache)
if(BALEEN_CCACHE)
  # The base folder makes entries valid in every checkout of the project, not just in this one.
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env "CCACHE_BASEDIR=${CMAKE_SOURCE_DIR}" CCACHE_NOHASHDIR=1 CCACHE_PCH_EXTSUM=1
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      ${BALEEN_CCACHE})
endif()
find_program(BALEEN_MOLD mold)
if(BALEEN_MOLD)
  add_link_options(-fuse-ld=mold)
endif()
