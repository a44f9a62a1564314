# find_package(ortmodule): the engine as a library for C++ programs, without Python at run time.
#
#   cmake -S . -B build -Dortmodule_DIR=$(python -m ortmodule --cmake-dir)
#   target_link_libraries(program PRIVATE ortmodule::ortmodule)
#
# Torch is the one that the engine was built for: TORCH_ROOT (its package folder), the folder beside the installed
# package, or what the Python in front asks; another version is an error, because its binary interface is another.
# Not torch's own CMake package: it demands a whole CUDA toolkit wherever torch is a CUDA build.
get_filename_component(_ortmodule_package "${CMAKE_CURRENT_LIST_DIR}/../.." ABSOLUTE)

function(_ortmodule_fail message)
  set(ortmodule_FOUND FALSE PARENT_SCOPE)
  set(ortmodule_NOT_FOUND_MESSAGE "${message}" PARENT_SCOPE)
endfunction()

set(TORCH_ROOT "" CACHE PATH "The folder of the torch package, for ortmodule")
set(_ortmodule_torch "${TORCH_ROOT}")
if(NOT _ortmodule_torch AND EXISTS "${_ortmodule_package}/../torch/version.py")
  get_filename_component(_ortmodule_torch "${_ortmodule_package}/../torch" ABSOLUTE)
endif()
if(NOT _ortmodule_torch)
  find_package(Python3 QUIET COMPONENTS Interpreter)
  execute_process(
    COMMAND ${Python3_EXECUTABLE} -c
      "import importlib.util, os; print(os.path.dirname(importlib.util.find_spec('torch').origin))"
    OUTPUT_VARIABLE _ortmodule_torch OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
if(NOT EXISTS "${_ortmodule_torch}/lib/libtorch_cpu.so")
  _ortmodule_fail("torch was not found; pass -DTORCH_ROOT=<the folder of the torch package>")
  return()
endif()

# Both files say which torch they are of, in one line.
file(STRINGS "${_ortmodule_package}/_build_info.py" _ortmodule_built REGEX "^TORCH_VERSION")
file(STRINGS "${_ortmodule_torch}/version.py" _ortmodule_found REGEX "^__version__ =")
string(REGEX REPLACE ".*\"(.*)\".*" "\\1" _ortmodule_built "${_ortmodule_built}")
string(REGEX REPLACE ".*'(.*)'.*" "\\1" _ortmodule_found "${_ortmodule_found}")
if(NOT _ortmodule_built STREQUAL _ortmodule_found)
  _ortmodule_fail("ortmodule was built for torch ${_ortmodule_built}; ${_ortmodule_torch} is ${_ortmodule_found}")
  return()
endif()

if(NOT TARGET ortmodule::ortmodule)
  add_library(ortmodule::ortmodule SHARED IMPORTED)
  set_target_properties(ortmodule::ortmodule PROPERTIES IMPORTED_LOCATION "${_ortmodule_package}/libortmodule.so")
  target_compile_features(ortmodule::ortmodule INTERFACE cxx_std_20)
  target_compile_definitions(ortmodule::ortmodule INTERFACE _GLIBCXX_USE_CXX11_ABI=1)
  target_include_directories(ortmodule::ortmodule SYSTEM INTERFACE
    "${_ortmodule_package}/include" "${_ortmodule_torch}/include" "${_ortmodule_torch}/include/torch/csrc/api/include")
  # A CUDA build of torch registers itself when libtorch.so is loaded: it must stay, though no symbol of it is named.
  # Libraries that torch finds beside itself need not be known to the linker.
  target_link_options(ortmodule::ortmodule INTERFACE -Wl,--allow-shlib-undefined -Wl,--no-as-needed)
  target_link_libraries(ortmodule::ortmodule INTERFACE "${_ortmodule_torch}/lib/libtorch.so"
    "${_ortmodule_torch}/lib/libtorch_cpu.so" "${_ortmodule_torch}/lib/libc10.so")
  # What passes, execution providers and their kernels are written with. These headers are the engine's own, and may
  # change with every version: a library that uses them is built for the ortmodule that loads it, and refused by others.
  add_library(ortmodule::core INTERFACE IMPORTED)
  target_include_directories(ortmodule::core SYSTEM INTERFACE "${_ortmodule_package}/include/ortmodule/core")
  file(STRINGS "${_ortmodule_package}/_build_info.py" _ortmodule_headers REGEX "^CORE_HEADERS")
  string(REGEX REPLACE ".*\"(.*)\".*" "\\1" _ortmodule_headers "${_ortmodule_headers}")
  target_compile_definitions(ortmodule::core INTERFACE ORTMODULE_BUILT_WITH=${_ortmodule_headers})
  target_compile_options(ortmodule::core INTERFACE
    "SHELL:-include ${_ortmodule_package}/include/ortmodule/core/base/built_with.h")
  target_link_libraries(ortmodule::core INTERFACE ortmodule::ortmodule)
endif()
