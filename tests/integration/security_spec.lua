-- What others can make a worker do: nothing that was not exported, and no bytecode; and where a
-- worker listens: nowhere that others reach, unless it was said so.
package.path = "tests/support/?.lua;" .. package.path
local rl = require "rlengine"
local fails = require "fails"
local core = require "rlengine.core"
local figure = require "figure"
local launched = require "launched"
local process = require "process"
local workers = require "workers"
local rpc = rl.rpc

local full = os.getenv "RLE_FULL" ~= nil

-- A worker that counts whatever is run in it: what it exports, and what it does not.
local COUNTED = [[
local runs = 0
local function counted(name) return function() runs = runs + 1 print("RAN", name) end end
for _, library in ipairs { os, io, debug, string, table, package, coroutine } do
  for name, value in pairs(library) do
    if type(value) == "function" and name ~= "format" and name ~= "find" and name ~= "gsub"
      and name ~= "running" and name ~= "traceback" and name ~= "getinfo" and name ~= "exit"
      and name ~= "concat" and name ~= "sort" and name ~= "create" and name ~= "resume"
      and name ~= "yield" and name ~= "wrap" and name ~= "status" and name ~= "sub" then
      library[name] = counted(name)
    end
  end
end
secret = counted "secret"
rpc.register("known", counted "known")
rpc.register("runs", function() return runs end)
local Thing = rpc.class("Thing", { "touch" })
Thing.touch, Thing.hidden = counted "touch", counted "hidden"
function Thing:init() end
rpc.register("thing", function() return rpc.rref(Thing()) end)
]]

-- Names like those that exist, and nothing like it: the first ones as they are, then changed.
local function name_maker(seed)
  local known = { "os.execute", "__index", "__gc", "__call", "init", "hidden", "secret", "_G",
    "_G.os.execute", "io.popen", "load", "loadstring", "require", "rlengine.core", "known",
    "runs", "Thing", "touch", "thing", "debug.getregistry", "string.dump", "rpc.register",
    "getmetatable", "__newindex", "rlengine.", "Thing.touch", "thing.hidden", ".", "..", "1" }
  local exported = { known = true, runs = true, Thing = true, touch = true, thing = true }
  local state = seed
  local function random(n)
    state = (state * 16807) % 2147483647
    return state % n
  end
  local i = 0
  return function()
    i = i + 1
    local name = known[i]
    while not name or exported[name] do
      name = known[random(#known) + 1]
      local how = random(5)
      if how == 0 then
        name = name .. string.char(random(255) + 1)
      elseif how == 1 then
        name = name:sub(1, -2)
      elseif how == 2 then
        local at = random(#name) + 1
        name = name:sub(1, at - 1) .. string.char(random(255) + 1) .. name:sub(at + 1)
      elseif how == 3 then
        name = name:upper()
      else
        local bytes = {}
        for k = 1, random(64) + 1 do bytes[k] = string.char(random(255) + 1) end
        name = table.concat(bytes)
      end
      if #name == 0 or name:find "^rlengine%.[a-z]" then name = nil end
    end
    return name
  end
end

describe("F34: what is not exported", function()
  it("cannot be called, by whatever name", function()
    local group = workers.group()
    group:start("trainer", COUNTED)
    assert.is_true(workers.eventually(function() return rpc.worker_info "trainer" ~= nil end))
    for _, name in ipairs { "os.execute", "__index", "init", "", ("n"):rep(65) } do
      assert.equal(('NOT_FOUND: "trainer" exports no "%s"'):format(name),
        tostring(fails(rpc.rpc_sync, "trainer", name)))
    end
    local thing = rpc.rpc_sync("trainer", "thing")
    assert.equal(0, rpc.rpc_sync("trainer", "runs"))
    local next_name, count = name_maker(4711), full and 1000000 or 10000
    local worker, object = rpc.to("trainer"):rpc_async(), thing:rpc_async()
    local refused = 0
    for _ = 1, count / 50 do
      local futures = {}
      for i = 1, 50 do
        local to = i % 2 == 0 and object or worker
        local name = next_name()
        futures[i] = rawget(to, name) == nil and to[name](to) or worker.nothing(worker)
      end
      for _, result in ipairs(rpc.wait_all(futures, { fail_fast = false })) do
        if core.error.is(result) and result.code == "NOT_FOUND" then refused = refused + 1 end
      end
    end
    assert.equal(count, refused)
    assert.equal(0, rpc.rpc_sync("trainer", "runs"))
    -- The counter counts.
    rpc.rpc_sync("trainer", "known")
    assert.equal(1, rpc.rpc_sync("trainer", "runs"))
    figure("F34", "%d of %d made-up names ran anything", 0, count)
    object, thing, worker = nil, nil, nil -- luacheck: ignore
    group:finish()
  end)
end)

describe("F33: another token", function()
  it("is refused, and both sides say so", function()
    local folder = process.folder()
    process.check { "mkdir", "-p", folder .. "/.config/rlengine" }
    process.write(folder .. "/.config/rlengine/token", ("y"):rep(32))
    process.check { "chmod", "600", folder .. "/.config/rlengine/token" }
    local trainer = process.run { "sh", "-c", [[
"$0" -e "$1" >"$3/out" 2>"$3/err" &
while ! grep -q '[0-9]$' "$3/out"; do sleep 0.02; done
ADDRESS=$(cat "$3/out") HOME=$3 XDG_CONFIG_HOME= RLENGINE_TOKEN_FILE= "$0" -e "$2"
echo "ended with $?" >&2
kill $!
wait $! 2>/dev/null]], process.program(), [[
local rpc = require("rlengine").rpc
print(rpc.init { name = "trainer", listen = "127.0.0.1:0", token = ("x"):rep(32) }[1])
io.stdout:flush()
rpc.serve()]], [[
require("rlengine").rpc.init { name = "obs", connect = os.getenv "ADDRESS" }]], folder }
    assert.truthy(trainer.err:find('UNAUTHENTICATED: "trainer" refused the token in '
      .. "~/.config/rlengine/token", 1, true), trainer.err)
    assert.matches("ended with 77", trainer.err)
    assert.matches("refused 127%.0%.0%.1:%d+: wrong token %(1 in the last minute%)",
      process.read(folder .. "/err"))
    process.remove(folder)
  end)
end)

describe("F35: bytecode", function()
  it("is refused from every source", function()
    local folder = process.folder()
    local program = process.program()
    local refusal = "refused: Lua bytecode (only source text is loaded)"
    local tried = 0
    for _, strip in ipairs { true, false } do
      local path = folder .. "/x.luac"
      local code = string.dump(loadstring "print('ran')", strip) -- luacheck: ignore
      process.write(path, code)
      process.write(folder .. "/m.lua", code)
      local ways = {
        { { program, path }, 65 },
        { { program, "-" }, 65, input = code },
        { { program }, 65, input = code },
        { { program, "-e", "" }, 65, env = { LUA_INIT = "@" .. path } },
        { { program, "-l", "m" }, 1, cwd = folder },
        { { program, "-e", ("print(assert(loadfile(%q)))"):format(path) }, 1 },
        { { program, "-e", ("dofile(%q)"):format(path) }, 1 },
        { { program, "-e", ("assert(load(io.open(%q, 'rb'):read '*a'))"):format(path) }, 1 },
        { { program, "-e", ("assert(load(io.open(%q, 'rb'):read '*a', 'x', 'b'))")
          :format(path) }, 1 },
        { { program, "-e", ("local s = io.open(%q, 'rb'):read '*a' "
          .. "assert(load(function() local t = s s = nil return t end))"):format(path) }, 1 },
      }
      for _, way in ipairs(ways) do
        local r = process.run(way[1], { input = way.input, env = way.env, cwd = way.cwd })
        assert.equal(way[2], r.code, table.concat(way[1], " "))
        assert.truthy(r.err:find(refusal, 1, true), r.err)
        assert.is_nil(r.out:find "ran")
        tried = tried + 1
      end
    end
    assert.equal(("rlengine: %s/x.luac: %s\n"):format(folder, refusal),
      process.run({ program, folder .. "/x.luac" }).err)
    figure("F35", "refused %d/%d", tried, tried)
    process.remove(folder)
  end)

  it("stays a string when it is sent, and no function crosses", function()
    local group = workers.group()
    group:start("trainer", [[
rpc.register("run", function(text)
  local fn, why = load(text, "sent")
  return fn and fn() or why
end)]])
    assert.is_true(workers.eventually(function() return rpc.worker_info "trainer" ~= nil end))
    local code = string.dump(function() return "ran" end)
    assert.equal("sent: refused: Lua bytecode (only source text is loaded)",
      rpc.rpc_sync("trainer", "run", code))
    for at = 2, #code, full and 1 or 7 do -- whatever else it is said to be
      local changed = code:sub(1, at - 1) .. string.char((code:byte(at) + 1) % 256)
        .. code:sub(at + 1)
      assert.matches("refused: Lua bytecode", rpc.rpc_sync("trainer", "run", changed))
    end
    assert.equal("INVALID_ARGUMENT", fails(rpc.rpc_sync, "trainer", "run", print).code)
    assert.equal("INVALID_ARGUMENT", fails(rpc.rpc_sync, "trainer", "run",
      setmetatable({}, { __index = print })).code)
    group:finish()
  end)
end)

-- Ports at which the processes of a run listen, without those of loopback.
local function open_ports(pids)
  local inodes = {}
  for _, name in ipairs { "/proc/net/tcp", "/proc/net/tcp6" } do
    local f = io.open(name)
    for line in f and f:lines() or function() end do
      local address, inode =
        line:match "^%s*%d+: (%x+):%x+ %x+:%x+ 0A %S+ %S+ %S+%s+%d+%s+%d+ (%d+)"
      local loopback = address and (address:find "7F$" or address == ("0"):rep(24) .. "01000000")
      if inode and not loopback then inodes["socket:[" .. inode .. "]"] = true end
    end
    if f then f:close() end
  end
  local count = 0
  for _, pid in ipairs(pids) do
    local list = io.popen(("ls -l /proc/%d/fd 2>/dev/null"):format(pid))
    for line in list:lines() do
      if inodes[line:match "%-> (.*)$"] then count = count + 1 end
    end
    list:close()
  end
  return count
end

describe("F36: a network that others can read", function()
  it("is not listened at by mistake", function()
    local options = { name = "a", token = workers.token }
    for _, address in ipairs { "0.0.0.0:29500", "[::]:29500", "[::ffff:10.0.0.1]:29500",
      "192.168.7.7:29500" } do
      options.listen = address
      local err = fails(rpc.init, options)
      assert.equal(("FAILED_PRECONDITION: refusing to listen on %s without tls; use a loopback "
        .. "address, set tls, or set insecure_network=true"):format(address), tostring(err))
      assert.equal(78, err.exit_code)
    end
    -- The test would see it.
    options.listen, options.insecure_network = "0.0.0.0:0", true
    rpc.init(options)
    local unistd = require "posix.unistd"
    assert.equal(1, open_ports { unistd.getpid() })
    rpc.shutdown()
    assert.equal(0, open_ports { unistd.getpid() })
  end)

  it("is not used by rl.launch", function()
    local run = launched.start [[
local rl = require "rlengine"
rl.launch { observers_per_trainer = 2, trainer = function(ctx)
  for _, name in ipairs(ctx.observers) do rl.rpc.rpc_sync(name, "rlengine.alive") end
  print "all there"
  io.stdout:flush()
  rl.rpc.sleep(1)
end }
]]
    assert.is_true(run:says "all there")
    local pids = {}
    for _, each in ipairs(run:processes()) do pids[#pids + 1] = each.pid end
    assert.is_true(#pids >= 4)
    assert.equal(0, open_ports(pids))
    figure("F36", "ports of rl.launch's %d processes that others reach: 0", #pids)
    assert.equal(0, run:wait())
    run:remove()
  end)

  it("is in no script of ours", function()
    for path in io.popen("ls scripts/*.lua"):lines() do
      local text = process.read(path)
      assert.is_nil(text:find "insecure_network", path)
      for address in text:gmatch "[%w.:/%[%]]+:%d%d+" do
        assert.truthy(address:find "127%.0%.0%.1" or address:find "%[::1%]" or
          not address:find "%.%d+%.%d+%.%d", path .. ": " .. address)
      end
    end
  end)
end)

describe("F37, B19: an address that is in use", function()
  it("is said at once, with who has it", function()
    local group = workers.group { listen = { "tcp://127.0.0.1:0", "tcp://[::1]:0" } }
    local unistd = require "posix.unistd"
    for _, address in ipairs(group.addresses) do
      assert.is_nil(address:find ":0$") -- port 0 picked one
      local r
      local began = workers.now()
      r = process.run { process.program(), "-e", ([[require("rlengine").rpc.init { name = "b",
        listen = %q, token = ("x"):rep(32) }]]):format(address) }
      local took = workers.now() - began
      assert.equal(69, r.code)
      assert.truthy(r.err:find(("cannot listen on %s: address already in use by pid %d ("):format(
        address:match "//(.*)", unistd.getpid()), 1, true), r.err)
      assert.is_true(took < 10)
      figure("F37", "a second program ended after %.0f ms, its start included", took * 1000)
      figure("B19", "%s: %s", address, r.err:match "already in use by pid %d+")
    end
    group:finish()
  end)

  it("is taken over when it is the socket of a dead process", function()
    local folder = process.folder()
    local address = "unix:" .. folder .. "/s"
    local script = ([[
rpc = require("rlengine").rpc
rpc.init { name = "a", listen = %q, token = ("x"):rep(32) } ]]):format(address)
    local r = process.run { process.program(), "-e", script
      .. 'require("posix.signal").kill(require("posix.unistd").getpid(), 9)' }
    assert.equal(9, r.signal)
    process.check { "test", "-S", folder .. "/s" }
    local began = workers.now()
    assert.equal(0, process.run({ process.program(), "-e", script }).code)
    figure("F37", "a dead process's socket taken over after %.0f ms, a program's start included",
      (workers.now() - began) * 1000)
    process.remove(folder)
  end)
end)

describe("B20: an IPv6 address", function()
  it("is written in brackets, and one that is not is told so", function()
    local group = workers.group { listen = "[::1]:0" }
    assert.matches("^tcp://%[::1%]:%d+$", group.address)
    local w = group:start("w", 'rpc.register("f", function() return 6 end)')
    assert.is_true(workers.eventually(function() return rpc.worker_info "w" ~= nil end))
    assert.equal(6, rpc.rpc_sync("w", "f"))
    figure("B20", "a worker joined %s and was called", (group.address:gsub("%d+$", "29500")))
    w:kill()
    group:finish()
    assert.matches("an IPv6 address needs brackets; write unix:/path, tcp://host:port or " ..
      "tcp://%[ipv6%]:port", tostring(fails(rpc.init, { name = "a", listen = "::1:29500",
      token = workers.token })))
  end)
end)
