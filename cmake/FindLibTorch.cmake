# Finds LibTorch in the pinned wheel without importing it, and defines LibTorch::cpu and LibTorch::cuda.
# The wheel's own package file is not used: it probes for a GPU, does not know C++20 for nvcc, and can
# pick up a system copy of libc10.
execute_process(
  COMMAND "${BALEEN_PYTHON}" -c
          "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
  OUTPUT_VARIABLE torch_folder OUTPUT_STRIP_TRAILING_WHITESPACE
  RESULT_VARIABLE torch_result ERROR_QUIET)
if(NOT torch_result EQUAL 0)
  message(FATAL_ERROR "LibTorch not found through ${BALEEN_PYTHON}: run tools/bootstrap first, "
                      "or set BALEEN_PYTHON to a Python that has the torch wheel")
endif()
set(LibTorch_FOLDER "${torch_folder}")
file(STRINGS "${torch_folder}/version.py" torch_version_line REGEX "^__version__ = ")
string(REGEX REPLACE ".*'(.*)'.*" "\\1" LibTorch_VERSION "${torch_version_line}")
foreach(name IN ITEMS torch_cpu c10 torch_cuda c10_cuda)
  find_library(LibTorch_${name} ${name} PATHS "${torch_folder}/lib" NO_DEFAULT_PATH)
endforeach()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch REQUIRED_VARS LibTorch_torch_cpu LibTorch_c10
                                  VERSION_VAR LibTorch_VERSION)

add_library(LibTorch::cpu INTERFACE IMPORTED)
target_include_directories(LibTorch::cpu SYSTEM INTERFACE
  "${torch_folder}/include" "${torch_folder}/include/torch/csrc/api/include")
target_compile_definitions(LibTorch::cpu INTERFACE USE_DISTRIBUTED FMT_HEADER_ONLY=1)
target_link_libraries(LibTorch::cpu INTERFACE "${LibTorch_torch_cpu}" "${LibTorch_c10}")
# Operators register themselves, so no library may be dropped; our run path must serve the wheel's own
# dependencies too; some of those are needed only to run on a GPU.
target_link_options(LibTorch::cpu INTERFACE
  "LINKER:--no-as-needed" "LINKER:--disable-new-dtags" "LINKER:--allow-shlib-undefined"
  "LINKER:-rpath,${torch_folder}/lib")
if(LibTorch_torch_cuda)
  add_library(LibTorch::cuda INTERFACE IMPORTED)
  target_link_libraries(LibTorch::cuda INTERFACE
    LibTorch::cpu "${LibTorch_torch_cuda}" "${LibTorch_c10_cuda}")
endif()
