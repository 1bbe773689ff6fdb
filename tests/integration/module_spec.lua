--- What is built and installed: the install tree, the C library, the rock, the module for
-- other Luas, and what the configuration says when something is missing.

local process = require "process"

local program = process.program()
local build = program:match "^(.*)/[^/]+$"
local cache = process.read(build .. "/CMakeCache.txt")
local instrumented = cache:find("RLE_SANITIZE:BOOL=ON", 1, true)
local source = cache:match "CMAKE_HOME_DIRECTORY:INTERNAL=([^\n]+)"

local function lines(text)
  local list = {}
  for line in text:gmatch "[^\n]+" do list[#list + 1] = line end
  return list
end

--- Run Lua code in `interpreter` with the module found in the given folders only.
local function run_lua(interpreter, cpath, path, code)
  return process.check({ interpreter, "-e", code }, {
    cwd = "/",
    env = {
      LUA_CPATH = cpath .. "/?.so",
      LUA_PATH = path .. "/?.lua;" .. path .. "/?/init.lua",
      LUA_CPATH_5_4 = false, LUA_PATH_5_4 = false, LUA_INIT = false,
    },
  })
end

--- A use of the module that every Lua must manage.
local smoke = [[
  local rl = require "rlengine"
  local core = require "rlengine.core"
  local ok, e = pcall(core.error.new, { code = "NO_SUCH_CODE" })
  assert(not ok and e.code == "INVALID_ARGUMENT" and e.where, tostring(e))
  assert(tostring(e):find("NO_SUCH_CODE", 1, true))
  print(rl._VERSION, _VERSION)
  local t = rl.randn(2, 3, { dtype = "f64" })
  assert(#t == 2 and t.shape[2] == 3 and t.dtype == "f64")
  local sum = (t * 2 + 1):sum():item()
  assert(math.abs(sum - (t:sum():item() * 2 + 6)) < 1e-9)
  local w = rl.ones(3):requires_grad_()
  t:to("f32"):matmul(w):sum():backward()
  assert(w.grad.shape[1] == 3)
  local net = rl.nn.Sequential(rl.nn.Linear(4, 8), rl.nn.Tanh(), rl.nn.Linear(8, 2))
  local optimizer = rl.optim.Adam(net:parameters(), { lr = 1e-2 })
  local env = rl.env.make "CartPole-v1"
  local state = env:reset { seed = 1 }
  local policy = rl.distributions.Categorical { logits = net(state) }
  local action = policy:sample()
  local loss = -policy:log_prob(action)
  loss:backward()
  optimizer:step()
  local _, reward = env:step(action:item())
  assert(reward == 1 and rl.memory.allocated() > 0)
  assert(tostring(rl.memory.allocated()):match "^%d+$", "bytes are whole numbers")
  for key, n in pairs(rl.memory.stats()) do assert(tostring(n):match "^%d+$", key) end
  assert(rl.rpc.class and rl.launch and rl.args and rl.rewards and rl.episode and rl.cleanup)
]]

--- Checks that the engine which runs this finds the device plug-ins that were built with it.
local function finds_plugins(built_cuda)
  local function built(name)
    return process.run({ "test", "-e", build .. "/lib/rlengine/" .. name }).code == 0
  end
  return ([[
    local rl = require "rlengine"
    local function try(name)
      local found, why = pcall(rl.device, name)
      return found and tostring(why) or why.message
    end
    if %s then assert(try "emu" == "emu:0", try "emu") end
    if %s then assert(not try "cuda":find("built without", 1, true), try "cuda") end
  ]]):format(built "rlengine_emu.so", built_cuda and built "rlengine_cuda.so")
end

describe("the build", function()
  local folder

  before_each(function() folder = process.folder() end)
  after_each(function() process.remove(folder) end)

  local function only_uninstrumented()
    if instrumented then pending("an instrumented module loads into no other program") end
    return not instrumented
  end

  describe("installed", function()
    local prefix

    before_each(function()
      prefix = folder .. "/prefix"
      process.check { "cmake", "--install", build, "--prefix", prefix }
    end)

    it("has a program that stands alone", function()
      local r = process.run({ prefix .. "/bin/rlengine", "-e", smoke .. finds_plugins(true) },
        { cwd = "/", env = { LUA_PATH = "/nowhere/?.lua", LUA_CPATH = "/nowhere/?.so" } })
      assert.equal("", r.err)
      assert.equal(0, r.code)
    end)

    it("has the module where LuaJIT looks", function()
      if not only_uninstrumented() then return end
      local out = run_lua("luajit", prefix .. "/lib/lua/5.1", prefix .. "/share/lua/5.1",
        smoke .. finds_plugins(true))
      assert.truthy(out:match "^%d+%.%d+%.%d+\tLua 5%.1\n$")
      local there = process.check { "sh", "-c",
        "cd " .. prefix .. "/share/lua/5.1 && find . -type f | sort" }
      local here = process.check { "sh", "-c",
        "cd " .. source .. "/lua && find . -type f -name '*.lua' | sort" }
      assert.equal(here, there)
    end)

    it("has a C library, found by pkg-config", function()
      local env = { PKG_CONFIG_PATH = prefix .. "/lib/pkgconfig" }
      local flags = process.check({ "pkg-config", "--cflags", "--libs", "rlengine" }, { env = env })
      process.write(folder .. "/use.c", [[
        #include <stdio.h>
        #include "base/mem.h"
        #include "env/env.h"
        int main(void)
        {
            void *p = rle_malloc(10);
            rle_fail(RLE_NOT_FOUND, "%d bytes", (int)(rle_mem_bytes() >= 10));
            rle_free(p);
            printf("%s: %s\n", rle_status_name(RLE_NOT_FOUND), rle_message());
            return (int)rle_mem_blocks();
        }]])
      local sanitize = instrumented and " -fsanitize=address,undefined" or ""
      process.check { "sh", "-c", ("cc -std=c11 -Wall -Werror%s -o %s/use %s/use.c %s")
        :format(sanitize, folder, folder, flags:gsub("\n", " ")) }
      assert.equal("NOT_FOUND: 1 bytes\n", process.check { folder .. "/use" })
    end)

    it("has headers that compile by themselves, and no internal ones", function()
      local root = prefix .. "/include/rlengine"
      local headers = lines(process.check { "find", root, "-name", "*.h" })
      assert.truthy(#headers > 5)
      for _, header in ipairs(headers) do
        assert.is_nil(header:find("_internal", 1, true))
        process.check { "cc", "-std=gnu11", "-fsyntax-only", "-Wall", "-Wextra", "-Werror",
          "-I" .. root, "-include", header, "-x", "c", "/dev/null" }
      end
    end)
  end)

  it("puts the module where it is told", function()
    local copy = folder .. "/build"
    process.check({ "cmake", "-S", source, "-B", copy, "-G", "Ninja", "-DRLE_BUILD_TESTS=OFF",
      "-DRLE_LUA_CPATH=/opt/c", "-DRLE_LUA_PATH=/opt/lua", "-DRLE_INSTALL_C=OFF" })
    local script = process.read(copy .. "/cmake_install.cmake")
    assert.truthy(script:find("/opt/c/rlengine/core.so", 1, true))
    assert.truthy(script:find('DESTINATION "/opt/lua"', 1, true))
    assert.is_nil(script:find("librlengine.a", 1, true))
  end)

  it("makes a rock that luajit can require", function()
    if not only_uninstrumented() then return end
    if process.run({ "sh", "-c", "command -v luarocks" }).code ~= 0 then
      pending "luarocks is not installed"
      return
    end
    local copy, tree = folder .. "/source", folder .. "/tree"
    process.check { "sh", "-c", ("mkdir %s && cd %s && tar cf - --exclude='./build*' " ..
      "--exclude=./.git --exclude=./.venv . | tar xf - -C %s"):format(copy, source, copy) }
    process.check({ "luarocks", "make", "--deps-mode", "none", "--tree", tree },
      { cwd = copy, env = { MAKEFLAGS = "-j2", RLE_CUDA = "OFF" } })
    local cpath, path = tree .. "/lib/lua/5.1", tree .. "/share/lua/5.1"
    run_lua("luajit", cpath, path, smoke .. finds_plugins(false))
    local code = 'local rl = require "rlengine"; print(rl.randn(2,2))'
    local out = run_lua("luajit", cpath, path, code)
    assert.truthy(out:match "^tensor%(%[%[.+f32%[2,2%], cpu%)\n$", out)
  end)

  for _, version in ipairs { "5.1", "5.4" } do
    it("makes a module for PUC Lua " .. version, function()
      if not only_uninstrumented() then return end
      local cpath = ("%s/lua%s"):format(build, version)
      if process.run({ "test", "-e", cpath .. "/rlengine/core.so" }).code ~= 0 then
        pending("liblua" .. version .. "-dev is not installed")
        return
      end
      local out = run_lua("lua" .. version, cpath, source .. "/lua", smoke .. finds_plugins(true))
      assert.truthy(out:find("Lua " .. version, 1, true))
    end)
  end

  describe("configured", function()
    local function configure(packages, ...)
      -- Only the named packages are there, whatever the machine has.
      local there = folder .. "/pkgconfig"
      process.run { "rm", "-rf", there, folder .. "/build" }
      process.check { "mkdir", there }
      for _, name in ipairs(packages) do
        local dir = process.check { "pkg-config", "--variable=pcfiledir", name }
        process.check { "cp", ("%s/%s.pc"):format(dir:gsub("\n", ""), name), there }
      end
      return process.run({ "cmake", "-S", source, "-B", folder .. "/build", "-G", "Ninja", ... },
        { env = { PKG_CONFIG_LIBDIR = there, PKG_CONFIG_PATH = false, RLE_CUDA = "OFF",
          RLE_EMU = "OFF" } })
    end

    local all = { "libevent", "libevent_core", "libevent_pthreads", "libssl", "libcrypto",
      "luajit", "libedit", "libbsd-overlay", "libbsd", "ncurses", "tinfo" }

    it("names the Debian package of what is missing", function()
      local packages = { libevent_core = "libevent-dev", libcrypto = "libssl-dev",
        libssl = "libssl-dev", luajit = "libluajit-5.1-dev", libedit = "libedit-dev" }
      for missing, debian in pairs(packages) do
        local rest = {}
        for _, name in ipairs(all) do
          local present = process.run({ "pkg-config", "--exists", name }).code == 0
          if name ~= missing and present then rest[#rest + 1] = name end
        end
        local r = configure(rest)
        assert.equal(1, r.code, missing)
        assert.truthy(r.err:gsub("%s+", " "):find("apt install " .. debian, 1, true), r.err)
      end
    end)

    it("asks for LuaJIT and libedit only where they are needed", function()
      local include = "/usr/include/lua5.4"
      if process.run({ "test", "-e", include .. "/lua.h" }).code ~= 0 then
        pending "liblua5.4-dev is not installed"
        return
      end
      local r = configure({ "libevent", "libevent_core", "libevent_pthreads", "libssl",
        "libcrypto" },
        "-DRLE_LUA_INCLUDE_DIR=" .. include, "-DRLE_BUILD_CLI=OFF", "-DRLE_BUILD_TESTS=OFF",
        "-DCMAKE_BUILD_TYPE=Debug")
      assert.equal(0, r.code, r.err)
      process.check { "cmake", "--build", folder .. "/build" }
      process.check { "cmake", "--install", folder .. "/build", "--prefix", folder .. "/prefix" }
      run_lua("lua5.4", folder .. "/prefix/lib/lua/5.4", folder .. "/prefix/share/lua/5.4", smoke)
      assert.equal(1, configure(all, "-DRLE_LUA_INCLUDE_DIR=" .. include).code)
    end)

    it("is a release unless told otherwise", function()
      local text = "CMAKE_BUILD_TYPE:STRING=Release"
      process.check({ "cmake", "-S", source, "-B", folder .. "/build", "-G", "Ninja",
        "-DCMAKE_BUILD_TYPE=" })
      assert.truthy(process.read(folder .. "/build/CMakeCache.txt"):find(text, 1, true))
    end)
  end)
end)
