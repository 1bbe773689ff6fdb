-- Faults of scripts: environments that raise, calls where nobody can wait, finalizers that raise,
-- futures nobody looks at, references that are left when everything ends.
package.path = "tests/support/?.lua;" .. package.path
local rl = require "rlengine"
local core = require "rlengine.core"
local faults = require "faults"
local figure = require "figure"
local process = require "process"
local workers = require "workers"
local rpc = rl.rpc
local fails = faults.fails

-- As many tensors at once as the engine keeps the structures of for later.
local WARM = [[
local list = {}
for i = 1, 5000 do list[i] = rl.zeros(1) end
]]

-- What both sides can be asked: bytes and blocks of the engine, memory of the device.
local HELD = [[
local core = require "rlengine.core"
rpc.register("warm", function() ]] .. WARM .. [[ end)
rpc.register("held", function()
  collectgarbage() collectgarbage()
  local bytes, blocks, lines = core.host_memory()
  return blocks - lines, rl.memory.allocated(), bytes
end)
]]

local function held()
  collectgarbage()
  collectgarbage()
  local _, blocks, lines = core.host_memory()
  return blocks - lines, rl.memory.allocated()
end

describe("an environment that raises", function()
  it("F29: fails its call, with its own words and the way there; the next episode runs",
    faults.row(function(world)
    local path = world.group.folder .. "/env.lua"
    -- The line of the error is the 42nd.
    process.write(path, ("\n"):rep(40) .. [[return function(n)
  if n == 7 then error("pole fell off") end
  return 1
end
]])
    world:start("obs_3", HELD .. ([[
      local step = dofile(%q)
      local Observer = rpc.class("Observer", { "run_episode" })
      function Observer:init(agent) self.agent, self.throws = agent, false end
      function Observer:run_episode(throws)
        local total, t = 0, rl.zeros(64)
        for n = 1, 10 do
          total = total + step(throws and n or 1)
          self.agent:rpc_sync():report(t)
        end
        return total
      end]]):format(path))
    local Agent = rpc.class("Agent", { "report" })
    local reports = 0
    function Agent.report() reports = reports + 1 end
    local observer = rpc.remote("obs_3", "Observer", rpc.rref(Agent()))
    local times = faults.count(100, 1000)
    local function throw(n)
      for _ = 1, n do
        local err = fails(function() observer:rpc_sync():run_episode(true) end)
        assert.equal(('UNKNOWN: "run_episode" on "obs_3" failed: %s:42: pole fell off')
          :format(path), tostring(err))
        assert.equal("obs_3", err.worker)
        assert.equal("run_episode", err.method)
        assert.is_nil(err.outcome)
        assert.matches("env.lua:42: in function 'step'", err.traceback)
        assert.matches("script_spec.lua:%d+", err.traceback)
        assert.equal(10, observer:rpc_sync():run_episode(false))
      end
    end
    throw(20)
    rpc.rpc_sync("obs_3", "warm")
    assert(loadstring("local rl = ... " .. WARM))(rl)
    rpc.rpc_sync("obs_3", "held")
    local blocks, device = held()
    local far_blocks, far_device, far_bytes = rpc.rpc_sync("obs_3", "held")
    throw(times)
    local now, now_device = held()
    assert.is_true(now <= blocks + 4, now .. " blocks, " .. blocks .. " before")
    assert.equal(device, now_device)
    local far_now, far_now_device, far_now_bytes = rpc.rpc_sync("obs_3", "held")
    assert.is_true(far_now <= far_blocks + 4, far_now .. " blocks there, " .. far_blocks)
    assert.equal(far_device, far_now_device)
    assert.equal(0, world:count "lost")
    assert.equal((20 + times) * 16, reports)
    figure("F29", "%d throws: 0 disconnects, %d bytes more there, the next episode ran each time",
      times, math.max(0, far_now_bytes - far_bytes))
    observer:release()
  end))
end)

describe("a call where nobody can wait", function()
  it("F41: says so, every time; a worker may call itself", faults.row(function(world)
    world:start("w", faults.SERVE .. [[
local function gc(fn)
  do
    local u = newproxy(true)
    getmetatable(u).__gc = fn
  end
  collectgarbage() collectgarbage()
end
local function said(ok, err) return ok, tostring(err) end
rpc.register("finalizer", function()
  local result
  gc(function() result = { said(pcall(rpc.rpc_sync, "trainer", "f")) } end)
  return result[1], result[2]
end)
rpc.register("waiting", function()
  local f = rpc.rpc_async("trainer", "f")
  local result
  gc(function() result = { said(pcall(f.wait, f)) } end)
  f:wait()
  return result[1], result[2]
end)
rpc.register("sort", function()
  return said(pcall(table.sort, { 3, 1, 2 }, function(a, b)
    return rpc.rpc_sync("trainer", "f") and a < b
  end))
end)
rpc.register("gsub", function()
  local function call(c) return rpc.rpc_sync("trainer", "f", c) end
  return said(pcall(string.gsub, "abc", ".", call))
end)
rpc.register("own", function(n)
  if n == 0 then return 0 end
  return 1 + rpc.rpc_sync(NAME, "own", n - 1)
end)
]])
    rpc.register("f", function(c) return c or true end)
    local times = faults.count(20, 1000)
    for _ = 1, times do
      for name, expected in pairs {
        finalizer = "FAILED_PRECONDITION: rpc_sync inside a finalizer",
        sort = "FAILED_PRECONDITION: rpc_sync inside a function that a C function calls "
          .. "(table.sort, string.gsub, an iterator): the handler cannot be suspended there",
        gsub = "FAILED_PRECONDITION: rpc_sync inside a function that a C function calls "
          .. "(table.sort, string.gsub, an iterator): the handler cannot be suspended there",
      } do
        local ok, text = rpc.rpc_sync("w", name)
        assert.is_false(ok)
        assert.equal(expected, text)
      end
      local ok, text = rpc.rpc_sync("w", "waiting")
      if not ok then assert.equal("FAILED_PRECONDITION: wait inside a finalizer", text) end
      assert.equal(8, rpc.rpc_sync("w", "own", 8)) -- there
      -- In the script itself a callback may wait, and a worker may call itself.
      local function own(c) return rpc.rpc_sync("trainer", "f", c) end
      local function far(c) return rpc.rpc_sync("w", "echo", c) end
      assert.equal("abc", (("abc"):gsub(".", own)))
      assert.equal("xyz", (("xyz"):gsub(".", far)))
      assert.equal(5, rpc.rpc_async("trainer", "f", 5):wait())
    end
    figure("F41", "%d of %d refused in finalizers, comparators and callbacks of handlers; calls to "
      .. "oneself run", 3 * times, 3 * times)
  end))
end)

describe("what is left over", function()
  local function timed(script, more)
    local folder = process.folder()
    process.write(folder .. "/script.lua", script)
    local r = process.run({ process.program(), folder .. "/script.lua" }, more)
    process.remove(folder)
    return r
  end

  it("F43: references in both directions, in cycles, and open calls do not keep anybody",
    function()
    local slowest = 0
    for _ = 1, faults.count(3, 50) do
      local r = timed [[
        local rl = require "rlengine"
        local rpc = rl.rpc
        local function now()
          local t = require("posix.time").clock_gettime(1)
          return t.tv_sec + t.tv_nsec * 1e-9
        end
        local Node = rpc.class("Node", { "link", "slow", "node" })
        function Node:init() self.links, self.tensor = {}, rl.zeros(1000) end
        function Node:link(other) self.links[#self.links + 1] = other end
        function Node:slow(other) self.other = other rpc.sleep(60) end
        function Node:node() self.mine = Node() return rpc.rref(self.mine) end
        rl.launch {
          observers_per_trainer = 2,
          trainer = function(ctx)
            local mine = rpc.rref(Node())
            mine:local_value():link(mine)
            local nodes = {}
            for i, name in ipairs(ctx.observers) do
              nodes[i] = rpc.remote(name, "Node")
              nodes[i]:rpc_sync():link(mine)
              mine:local_value():link(nodes[i])
              local inner = nodes[i]:rpc_sync():node()
              inner:rpc_sync():link(nodes[i])
              mine:local_value():link(inner)
            end
            nodes[1]:rpc_sync():link(nodes[2])
            nodes[2]:rpc_sync():link(nodes[1])
            KEPT = { mine, nodes, nodes[1]:rpc_async():slow(nodes[2]) }
            print(now())
          end,
        }
        print(now())
      ]]
      assert.equal("", r.err)
      assert.equal(0, r.code)
      local from, to = r.out:match "^(%S+)\n(%S+)\n$"
      slowest = math.max(slowest, to - from)
    end
    assert.is_true(slowest < 5, slowest .. " s")
    figure("F43", "with references in cycles over three workers and a call open: all had ended at "
      .. "most %.2f s after the script, with exit code 0", slowest)
  end)

  it("F45: a finalizer that raises, and a coroutine that dies with a future, harm nobody else",
    faults.row(function(world)
    world:start("w", faults.SERVE)
    local w = world:run(([[
local rpc = require("rlengine").rpc
rpc.init{ name = "train", connect = %q, token = %q }
local function calls()
  for i = 1, 50 do assert(rpc.rpc_sync("trainer", "echo", i) == i) end
end
-- Finalizers that raise, while calls are made.
for _ = 1, 20 do
  getmetatable(newproxy(true)).__gc = function() error("finalizer") end
  pcall(collectgarbage)
  pcall(calls)
  calls()
end
-- A coroutine that dies and leaves a future behind that has failed.
local function leave()
  local co = coroutine.create(function()
    local future = rpc.rpc_async("trainer", "boom")
    rpc.sleep(0.05)
    error("the coroutine dies" .. tostring(future):sub(1, 0))
  end)
  assert(not coroutine.resume(co))
  -- And one that the scheduler runs, whose error nobody asks for.
  rpc.rpc_async("trainer", "echo", 1):next(function() error("nobody looks") end)
end
coroutine.wrap(leave)()
for _ = 1, 1000 do
  rpc.sleep(0.005)
  collectgarbage()
  if rpc.counters().futures <= 1 then break end
end
-- Finalizers that make calls, while results are read.
local left, rows = 20000, {}
local function again()
  getmetatable(newproxy(true)).__gc = function()
    if left == 0 then return end
    left = left - 1
    rpc.rpc_async("trainer", "echo", left)
    again()
  end
end
for _ = 1, 200 do again() end
for i = 1, 2000 do rows[i] = { tostring(i), i } end
while left > 0 do
  local got = rpc.rpc_sync("trainer", "echo", rows)
  assert(#got == 2000 and got[2000][2] == 2000)
  assert(not pcall(rpc.rpc_sync, "trainer", "boom"))
end
for _ = 1, 1000 do
  rpc.sleep(0.005)
  collectgarbage()
  if rpc.counters().futures <= 1 then break end
end
calls()
print(rpc.counters().futures) -- the last coroutine that failed may not be collected yet
rpc.shutdown()
]]):format(world.group.address, workers.token), "train")
    rpc.register("echo", function(...) return ... end)
    rpc.register("boom", function() error("pole fell off", 0) end)
    world:join "w"
    assert.is_true(workers.eventually(function() return w:poll() end, 20))
    local said = w:output()
    assert.equal(0, w:join(), said)
    local _, boom = said:gsub('unhandled error in a future made at [^\n]*script1.lua:16: UNKNOWN: '
      .. '"boom" on "trainer" failed: pole fell off\n', "")
    assert.equal(1, boom, said)
    local _, nobody = said:gsub("unhandled error in a future made at [^\n]*script1.lua:22: "
      .. "[^\n]*script1.lua:22: nobody looks\n", "")
    assert.equal(1, nobody, said)
    local _, all = said:gsub("unhandled error", "")
    assert.equal(2, all, said)
    assert.matches("\n[01]\n$", said)
    figure("F45", "said once, with the line that made the future; 2000 calls around it, 0 errors")
  end))
end)
