# The Lua side: engine/lua as the C module `rlengine/core.so`, for the Lua whose headers it
# is compiled with. The module does not link Lua: the host program has it.
file(GLOB lua_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/engine/lua/*.c)

if(RLE_SANITIZE)
  # LuaJIT's errors unwind past the sanitizer's stack hooks.
  if(CMAKE_C_COMPILER_ID MATCHES "Clang")
    set(RLE_NO_ASAN_STACK "SHELL:-mllvm -asan-stack=0")
  else()
    set(RLE_NO_ASAN_STACK --param=asan-stack=0)
  endif()
endif()

# Object library `objects` and module `module` in <build>/<folder>/rlengine/core.so.
function(rle_lua_module objects module folder include_dirs)
  add_library(${objects} OBJECT ${lua_sources})
  target_link_libraries(${objects} PRIVATE rle_flags)
  target_include_directories(${objects} SYSTEM PRIVATE ${include_dirs})
  target_compile_options(${objects} PRIVATE ${RLE_NO_ASAN_STACK})
  add_library(${module} MODULE $<TARGET_OBJECTS:${objects}>)
  target_link_libraries(${module} PRIVATE rlengine_static)
  set_target_properties(${module} PROPERTIES PREFIX "" OUTPUT_NAME core
    LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/${folder}/rlengine)
endfunction()

if(RLE_LUA_INCLUDE_DIR)
  set(lua_include ${RLE_LUA_INCLUDE_DIR})
else()
  set(lua_include ${LUAJIT_INCLUDE_DIRS})
endif()
rle_lua_module(rle_lua rlengine_module lib "${lua_include}")

# Lua's own version decides where a module is looked for.
find_file(lua_h lua.h PATHS ${lua_include} NO_DEFAULT_PATH NO_CACHE)
if(NOT lua_h)
  message(FATAL_ERROR "no lua.h in ${lua_include} (RLE_LUA_INCLUDE_DIR)")
endif()
file(STRINGS ${lua_h} lua_version_lines REGEX "LUA_VERSION_(NUM|MAJOR_N|MINOR_N)[ \t]+[0-9]+")
string(REGEX MATCH "LUA_VERSION_NUM[ \t]+5([0-9])([0-9])" lua_version "${lua_version_lines}")
if(CMAKE_MATCH_2)
  set(RLE_LUA_VERSION 5.${CMAKE_MATCH_2})
else()
  message(FATAL_ERROR "${lua_h} says no version of Lua 5.1 to 5.4")
endif()
