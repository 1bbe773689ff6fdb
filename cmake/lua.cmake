# The Lua side: the C module `rlengine/core.so`, the Lua files, and the program.
file(GLOB lua_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/engine/lua/*.c)
if(RLE_LUA_INCLUDE_DIR)
  set(lua_include ${RLE_LUA_INCLUDE_DIR})
else()
  set(lua_include ${LUAJIT_INCLUDE_DIRS})
endif()
add_library(rle_lua OBJECT ${lua_sources})
target_link_libraries(rle_lua PRIVATE rle_flags)
target_include_directories(rle_lua SYSTEM PRIVATE ${lua_include})
if(RLE_SANITIZE)
  # LuaJIT's errors unwind past the sanitizer's stack hooks.
  if(CMAKE_C_COMPILER_ID MATCHES "Clang")
    set(RLE_NO_ASAN_STACK "SHELL:-mllvm -asan-stack=0")
  else()
    set(RLE_NO_ASAN_STACK --param=asan-stack=0)
  endif()
  target_compile_options(rle_lua PRIVATE ${RLE_NO_ASAN_STACK})
endif()

# The module does not link Lua: the host program has it.
add_library(rlengine_module MODULE $<TARGET_OBJECTS:rle_lua>)
target_link_libraries(rlengine_module PRIVATE rlengine_static)
set_target_properties(rlengine_module PROPERTIES PREFIX "" OUTPUT_NAME core
  LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib/rlengine)
