# C tests: every tests/c/test_<name>.c is one cmocka program. Benchmarks:
# tests/bench/bench_<name>.c, built beside them, never run by ctest.
pkg_check_modules(CMOCKA IMPORTED_TARGET cmocka)
if(CMOCKA_FOUND)
  file(GLOB c_tests CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/c/test_*.c)
  if(TARGET rlengine_emu)
    # The emulated device without the engine, with kernels of its own that are wrong on purpose.
    set(emu_kernels ${PROJECT_SOURCE_DIR}/tests/c/emu_kernels.cu)
    set_source_files_properties(${emu_kernels} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS "-xc++")
    add_library(rle_emu_test SHARED ${emu_sources} ${emu_kernels})
    target_link_libraries(rle_emu_test PRIVATE rle_flags)
    target_include_directories(rle_emu_test BEFORE PUBLIC
      ${PROJECT_SOURCE_DIR}/kernels/emu/include)
    set_target_properties(rle_emu_test PROPERTIES CXX_STANDARD 17 CXX_EXTENSIONS ON
      LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  else()
    list(FILTER c_tests EXCLUDE REGEX "/test_emu")
  endif()
  foreach(source IN LISTS c_tests)
    get_filename_component(name ${source} NAME_WE)
    add_executable(${name} ${source})
    target_link_libraries(${name} PRIVATE rle_flags rlengine_static PkgConfig::CMOCKA)
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
    if(name MATCHES "^test_emu")
      target_link_libraries(${name} PRIVATE rle_emu_test)
    endif()
    add_test(NAME ${name} COMMAND ${name})
    if(TARGET rlengine_emu AND name MATCHES "^test_(device|emu)")
      add_dependencies(${name} rlengine_emu)
    endif()
  endforeach()
else()
  message(STATUS "cmocka was not found: the C tests are not built (apt install libcmocka-dev)")
endif()
# The line that tests of faults break: tests/faults/proxy.c.
add_executable(fault_proxy ${PROJECT_SOURCE_DIR}/tests/faults/proxy.c)
target_link_libraries(fault_proxy PRIVATE rle_flags rlengine_static)
set_target_properties(fault_proxy PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)

# Preloaded by tests: clocks that jump, signals without end. Not instrumented, whatever the rest is.
add_library(fault_disturb MODULE ${PROJECT_SOURCE_DIR}/tests/faults/disturb.c)
target_compile_options(fault_disturb PRIVATE -Wall -Wextra -Werror)
set_target_properties(fault_disturb PROPERTIES PREFIX "" C_VISIBILITY_PRESET default
  LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)

file(GLOB benches CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/bench/bench_*.c)
foreach(source IN LISTS benches)
  get_filename_component(name ${source} NAME_WE)
  add_executable(${name} ${source})
  target_link_libraries(${name} PRIVATE rle_flags rlengine_static)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bench)
  # A benchmark's plain C loop is compiled for this machine: that is the limit we measure against.
  target_compile_options(${name} PRIVATE -O3 -march=native -ffp-contract=fast)
endforeach()
# Programs whose output scripts in tests/golden compare with other implementations.
file(GLOB golden CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/golden/*.c)
foreach(source IN LISTS golden)
  get_filename_component(name ${source} NAME_WE)
  add_executable(${name} ${source})
  target_link_libraries(${name} PRIVATE rle_flags rlengine_static)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/golden)
endforeach()

# The module for the other Luas, where their headers are: <build>/lua5.1/rlengine/core.so.
if(NOT RLE_LUA_INCLUDE_DIR AND NOT RLE_SANITIZE)
  foreach(version 5.1 5.4)
    pkg_check_modules(PUC${version} lua${version})
    if(PUC${version}_FOUND)
      rle_lua_module(rle_lua${version} rlengine_module_lua${version} lua${version}
        "${PUC${version}_INCLUDE_DIRS}")
    else()
      message(STATUS "Lua ${version} was not found: no module for it is built "
        "(apt install liblua${version}-dev)")
    endif()
  endforeach()
endif()
