# The C tests of remote calls and collectives under ThreadSanitizer, in a build folder of their
# own: only the layers that have threads. `ninja tsan` builds them; scripts/test.sh runs them.
pkg_check_modules(CMOCKA REQUIRED IMPORTED_TARGET cmocka)
target_compile_options(rle_flags INTERFACE -fsanitize=thread -fno-omit-frame-pointer
  # Fences are not seen by it; where one stands, loop.h says what is instead.
  $<$<C_COMPILER_ID:GNU>:-Wno-tsan>)
target_link_options(rle_flags INTERFACE -fsanitize=thread)

# Collectives without tensors, which only their owner's thread touches.
file(GLOB moving CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/engine/comm/*.c)
list(FILTER moving EXCLUDE REGEX "/comm\\.c$")
add_library(rle_threaded STATIC $<TARGET_OBJECTS:rle_base> $<TARGET_OBJECTS:rle_rpc> ${moving})
target_link_libraries(rle_threaded PRIVATE rle_flags)
target_link_libraries(rle_threaded PUBLIC
  $<TARGET_PROPERTY:rlengine_static,INTERFACE_LINK_LIBRARIES>)
add_custom_target(tsan)
foreach(name test_rpc_guard test_rpc_calls test_rpc_batch test_rpc_long test_rpc_link test_rpc_replace
    test_rpc_threads test_rpc_poll test_rpc_copy test_rpc_names test_comm_threads)
  add_executable(${name} ${PROJECT_SOURCE_DIR}/tests/c/${name}.c)
  target_link_libraries(${name} PRIVATE rle_flags rle_threaded PkgConfig::CMOCKA)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  add_dependencies(tsan ${name})
endforeach()
