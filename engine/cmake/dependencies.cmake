# Finds what the engine is built on. A missing library stops the configuration with the
# name of the Debian package that brings it.
find_package(PkgConfig)
if(NOT PKG_CONFIG_FOUND)
  message(FATAL_ERROR "pkg-config was not found. Debian and Ubuntu: apt install pkg-config")
endif()
find_package(Threads REQUIRED)

# rle_require(PREFIX "what it is" debian-package pkg-config-module...)
function(rle_require prefix what debian)
  pkg_check_modules(${prefix} IMPORTED_TARGET ${ARGN})
  if(NOT ${prefix}_FOUND)
    string(JOIN ", " modules ${ARGN})
    message(FATAL_ERROR "${what} was not found by pkg-config (${modules}). "
      "Debian and Ubuntu: apt install ${debian}")
  endif()
endfunction()

rle_require(LIBEVENT "libevent" libevent-dev "libevent_core>=2.1.12" libevent_pthreads)
rle_require(OPENSSL "OpenSSL" libssl-dev "libssl>=1.1.1" libcrypto)
if(RLE_LUAROCKS_INCLUDE_DIR AND NOT RLE_LUA_INCLUDE_DIR)
  # LuaRocks of Lua 5.1 serves LuaJIT too, but gives PUC's headers.
  pkg_check_modules(LUAJIT IMPORTED_TARGET QUIET luajit)
  file(STRINGS ${RLE_LUAROCKS_INCLUDE_DIR}/lua.h luarocks_is_51
    REGEX "define[ \t]+LUA_VERSION_NUM[ \t]+501")
  if(NOT luarocks_is_51 OR NOT LUAJIT_FOUND)
    set(RLE_LUA_INCLUDE_DIR ${RLE_LUAROCKS_INCLUDE_DIR})
  endif()
endif()
if(NOT RLE_LUA_INCLUDE_DIR OR RLE_BUILD_CLI)
  rle_require(LUAJIT "LuaJIT" libluajit-5.1-dev luajit)
endif()
if(RLE_BUILD_CLI)
  rle_require(LIBEDIT "libedit" libedit-dev libedit)
endif()
