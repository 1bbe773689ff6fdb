# Fuzz targets, tests/fuzz/fuzz_<name>.c, in a build folder of their own: clang's libFuzzer with
# AddressSanitizer and UndefinedBehaviorSanitizer, and of the engine only the layers that they
# test. tests/fuzz/run.sh configures, builds and runs them.
if(NOT CMAKE_C_COMPILER_ID MATCHES "Clang")
  message(FATAL_ERROR "RLE_FUZZ needs clang: libFuzzer is part of it (-DCMAKE_C_COMPILER=clang)")
endif()
target_compile_options(rle_flags INTERFACE -fsanitize=fuzzer-no-link,address,undefined
  -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
target_link_options(rle_flags INTERFACE -fsanitize=address,undefined)

add_library(rle_fuzzed STATIC $<TARGET_OBJECTS:rle_base> $<TARGET_OBJECTS:rle_rpc>)
target_link_libraries(rle_fuzzed PUBLIC
  $<TARGET_PROPERTY:rlengine_static,INTERFACE_LINK_LIBRARIES>)

add_custom_target(fuzz)
file(GLOB fuzz_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/fuzz/fuzz_*.c)
foreach(source IN LISTS fuzz_sources)
  get_filename_component(name ${source} NAME_WE)
  add_executable(${name} ${source})
  target_link_libraries(${name} PRIVATE rle_flags rle_fuzzed)
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  add_dependencies(fuzz ${name})
endforeach()
target_sources(fuzz_command_line PRIVATE ${PROJECT_SOURCE_DIR}/engine/cli/options.c)
# Writes the corpus: sessions of real workers.
add_executable(record ${PROJECT_SOURCE_DIR}/tests/fuzz/record.c)
target_link_libraries(record PRIVATE rle_flags rle_fuzzed)
add_dependencies(fuzz record)
