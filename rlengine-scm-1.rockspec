rockspec_format = "3.0"
package = "rlengine"
version = "scm-1"
source = { url = "git+file://." }
description = {
  summary = "A reinforcement-learning engine in C, scripted in Lua",
  detailed = [[
    Tensors, autograd, networks, environments and remote calls in C, with the experiment in
    Lua. This rock is the module `rlengine`, for LuaJIT (or PUC Lua 5.1 to 5.4). The program
    of the same name, with an interactive prompt, is built by CMake: see the README.
  ]],
  license = "MIT",
}
dependencies = { "lua >= 5.1, < 5.5" }
external_dependencies = {
  LIBEVENT = { header = "event2/event.h" },
  CRYPTO = { header = "openssl/evp.h" },
  SSL = { header = "openssl/ssl.h" },
}
build = {
  type = "cmake",
  variables = {
    -- Headers of the Lua that LuaRocks is for. Those of Lua 5.1 mean LuaJIT where it is
    -- installed: same place for modules, same version number.
    RLE_LUAROCKS_INCLUDE_DIR = "$(LUA_INCDIR)",
    RLE_LUA_CPATH = "$(LIBDIR)",
    RLE_LUA_PATH = "$(LUADIR)",
    RLE_BUILD_CLI = "OFF",
    RLE_BUILD_TESTS = "OFF",
    RLE_INSTALL_C = "OFF",
    CMAKE_BUILD_TYPE = "Release",
  },
}
test = { type = "busted" }
