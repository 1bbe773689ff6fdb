# The Lua side: lua/rlengine/*.lua embedded as data, the C module, and the program.
# Filled by engine/lua (one lua_<layer>.c per layer) and engine/cli.
file(GLOB lua_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/engine/lua/*.c)
if(NOT lua_sources)
  return()
endif()
