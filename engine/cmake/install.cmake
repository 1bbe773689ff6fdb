# `cmake --install` places
#   bin/rlengine                        the program
#   lib/lua/5.1/rlengine/core.so        the C module        (RLE_LUA_CPATH)
#   share/lua/5.1/rlengine/*.lua        the Lua files       (RLE_LUA_PATH)
#   lib/rlengine/rlengine_*.so          device plug-ins (beside core.so with RLE_LUA_CPATH)
#   lib/librlengine.a, include/rlengine the engine for C, as `pkg-config rlengine` says
# 5.1 is LuaJIT's; a module for another Lua goes where that one looks.
if(RLE_LUA_CPATH)
  set(lua_cpath ${RLE_LUA_CPATH})
else()
  set(lua_cpath ${CMAKE_INSTALL_LIBDIR}/lua/${RLE_LUA_VERSION})
endif()
if(RLE_LUA_PATH)
  set(lua_path ${RLE_LUA_PATH})
else()
  set(lua_path ${CMAKE_INSTALL_DATADIR}/lua/${RLE_LUA_VERSION})
endif()

install(TARGETS rlengine_module LIBRARY DESTINATION ${lua_cpath}/rlengine)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/lua/rlengine DESTINATION ${lua_path}
  FILES_MATCHING PATTERN "*.lua")
foreach(plugin rlengine_emu rlengine_cuda)
  if(TARGET ${plugin})
    install(TARGETS ${plugin} LIBRARY DESTINATION ${RLE_PLUGIN_DIR})
  endif()
endforeach()
if(RLE_BUILD_CLI)
  install(TARGETS rlengine RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()

if(RLE_INSTALL_C)
  install(TARGETS rlengine_static ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  # Headers include each other as "base/status.h": the folders stay as they are.
  foreach(layer IN LISTS RLE_LAYERS)
    install(DIRECTORY ${PROJECT_SOURCE_DIR}/engine/${layer}
      DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/rlengine FILES_MATCHING PATTERN "*.h"
      PATTERN "*_internal.h" EXCLUDE PATTERN "isa" EXCLUDE PATTERN "cuda" EXCLUDE)
  endforeach()
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/kernels/common
    DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/rlengine FILES_MATCHING PATTERN "*.h")
  # The file says where it lies itself, so that a tree can be moved.
  file(RELATIVE_PATH prefix_from_pc /x/${CMAKE_INSTALL_LIBDIR}/pkgconfig /x)
  string(REGEX REPLACE "/$" "" prefix_from_pc ${prefix_from_pc})
  configure_file(${PROJECT_SOURCE_DIR}/engine/cmake/rlengine.pc.in
    ${PROJECT_BINARY_DIR}/generated/rlengine.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/generated/rlengine.pc
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endif()
