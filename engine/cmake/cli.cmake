# The program `rlengine`: the engine, LuaJIT, and every Lua file as text inside it.
#
# The Lua files become part of the program through an assembler's .incbin, named in a
# generated C file; a changed file is assembled again, a new or removed one is noticed by
# the glob.
if(RLE_LUA_INCLUDE_DIR)
  message(FATAL_ERROR "RLE_LUA_INCLUDE_DIR builds the module for another Lua than the "
    "program's LuaJIT: add -DRLE_BUILD_CLI=OFF")
endif()

file(GLOB_RECURSE module_lua CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/lua/rlengine/*.lua)
list(FILTER module_lua EXCLUDE REGEX "/rlengine/meta/") # editor annotations, never loaded
file(GLOB cli_lua CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/engine/cli/*.lua)

set(embedded_text "")
set(embedded_table "")
set(embedded_index 0)
foreach(path IN LISTS module_lua cli_lua)
  file(RELATIVE_PATH name ${PROJECT_SOURCE_DIR}/lua ${path})
  string(REPLACE "../engine/cli/" "rlengine/cli/" name ${name})
  string(APPEND embedded_text "RLE_EMBED(${embedded_index}, \"${path}\")\n")
  string(APPEND embedded_table
    "    {\"${name}\", embedded_${embedded_index}, embedded_end_${embedded_index}},\n")
  math(EXPR embedded_index "${embedded_index} + 1")
endforeach()
set(embedded_c ${PROJECT_BINARY_DIR}/generated/embedded_lua.c)
configure_file(${PROJECT_SOURCE_DIR}/engine/cmake/embedded_lua.c.in ${embedded_c} @ONLY)
set_source_files_properties(${embedded_c} PROPERTIES OBJECT_DEPENDS "${module_lua};${cli_lua}")

file(GLOB cli_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/engine/cli/*.c)
add_executable(rlengine ${cli_sources} ${embedded_c} $<TARGET_OBJECTS:rle_lua>)
target_compile_definitions(rlengine PRIVATE RLE_VERSION="${PROJECT_VERSION}")
target_include_directories(rlengine SYSTEM PRIVATE ${LUAJIT_INCLUDE_DIRS})
target_link_libraries(rlengine PRIVATE rle_flags rlengine_static
  PkgConfig::LUAJIT PkgConfig::LIBEDIT)
if(RLE_SANITIZE)
  target_compile_options(rlengine PRIVATE ${RLE_NO_ASAN_STACK})
endif()
