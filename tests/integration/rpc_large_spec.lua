-- Large messages: they pass, in little more memory than they have, with small calls and pings
-- beside them; and workers that do not read.
package.path = "tests/support/?.lua;" .. package.path
local rl = require "rlengine"
local fails = require "fails"
local core = require "rlengine.core"
local process = require "process"
local workers = require "workers"
local figure = require "figure"
local signal = require "posix.signal"
local rpc = rl.rpc

local full = os.getenv "RLE_FULL"
local MB = 1e6
local size = full and 1000 * MB or 100 * MB
-- What is resident beside the message: buffers, and what the allocator of a sanitizer keeps.
local slack = 24 * 2 ^ 20

local PEAK = [[
local function peak()
  local f = io.open "/proc/self/status"
  local kb = f:read "*a":match "VmHWM:%s*(%d+)"
  f:close()
  return tonumber(kb) * 1024
end
local function reset_peak()
  local f = io.open("/proc/self/clear_refs", "w")
  if not f then return false end
  f:write "5\n"
  return f:close()
end
]]
local peak, reset_peak = (loadstring or load)(PEAK .. "return peak, reset_peak")()

-- Under a sanitizer what is freed stays resident for a while.
local sanitized = process.read(process.program()):find("__asan_init", 1, true) ~= nil
local function assert_memory(grown, allowed, what)
  if sanitized then return end
  assert.is_true(grown <= allowed, ("%s: %.1f MB, allowed are %.1f"):format(what, grown / MB,
    allowed / MB))
end

local SINK = PEAK .. [[
local net, weights = {}, nil
rpc.register("reset", function() collectgarbage() collectgarbage() return reset_peak(), peak() end)
rpc.register("peak", peak)
rpc.register("take", function(t) return #t, t[1]:item(), t[-1]:item() end)
rpc.register("give", function(n) return rl.ones(n) end)
rpc.register("nothing", function() end)
rpc.register("follow", function(n)
  net.a = rl.zeros(n)
  weights = rpc.follow("test", "large", net)
end)
rpc.register("update", function()
  weights:update()
  return weights.version, net.a[1]:item(), net.a[-1]:item()
end)
]]

local function percentile(list, p)
  table.sort(list)
  return list[math.max(1, math.ceil(#list * p))]
end

-- Small calls until `over()`: their times in seconds.
local function small_calls(name, over)
  local times = {}
  repeat
    local begin = workers.now()
    rpc.rpc_sync(name, "nothing")
    times[#times + 1] = workers.now() - begin
  until over()
  return times
end

describe("B21: large messages", function()
  local group
  before_each(function()
    group = workers.group { max_message = 2 ^ 31, heartbeat = 0.5, timeout = 20,
      call_timeout = 120 }
  end)
  after_each(function() group:finish { blocks = true } end)

  it("pass, with small calls beside them, in little more memory than they have", function()
    local sink = group:start("sink", SINK, "max_message = 2^31, heartbeat = 0.5, timeout = 20,")
    local n = math.floor(size / 4)
    local tensor = rl.ones(n)
    assert.is_true(reset_peak())
    local before = peak()
    local ok, before_there = rpc.rpc_sync("sink", "reset")
    assert.is_true(ok)
    -- While it is being sent nobody reads it: or it would be there when the call returns.
    sink:kill(signal.SIGSTOP)
    local future = rpc.rpc_async("sink", "take", tensor)
    sink:kill(signal.SIGCONT)
    local begin = workers.now()
    local times = small_calls("sink", function() return future:done() end)
    local seconds = workers.now() - begin
    assert.same({ n, 1, 1 }, { future:wait() })
    assert.is_true(#times > 3)
    local here, there = peak() - before, rpc.rpc_sync("sink", "peak") - before_there
    figure("B21", "%d MB in a call: %.0f MB/s; %d small calls meanwhile, median %.2f ms, longest "
      .. "%.2f ms; sender's peak %+.1f MB, receiver's %+.1f MB", size / MB, size / MB / seconds,
      #times, percentile(times, .5) * 1e3, percentile(times, 1) * 1e3, here / MB, there / MB)
    -- A tensor of another device is in the host's memory as well, at either end.
    local copies = rl.default_device().type == "cpu" and 1 or 2
    assert_memory(here, copies * size + slack, "sender")
    assert_memory(there, copies * size + slack, "receiver")
    assert.is_true(percentile(times, .5) < 5) -- seconds: a guard only
  end)

  it("come back as results", function()
    group:start("sink", SINK, "max_message = 2^31, heartbeat = 0.5, timeout = 20,")
    local n = math.floor(size / 8)
    local future = rpc.rpc_async("sink", "give", n)
    local times = small_calls("sink", function() return future:done() end)
    local tensor = future:wait()
    assert.equal(n, #tensor)
    assert.equal(1, tensor[-1]:item())
    assert.is_true(#times >= 1)
  end)

  it("as weights: one copy at the sender, one block at the receiver", function()
    for i = 1, 2 do
      group:start("sink" .. i, SINK, "max_message = 2^31, heartbeat = 0.5, timeout = 20,")
    end
    local n = math.floor((full and size or size / 2) / 4)
    local net = { a = rl.ones(n) }
    for i = 1, 2 do rpc.rpc_sync("sink" .. i, "follow", n) end
    assert.is_true(reset_peak())
    local before, there = peak(), {}
    for i = 1, 2 do there[i] = select(2, rpc.rpc_sync("sink" .. i, "reset")) end
    local begin = workers.now()
    local weights = rpc.weights("large", net)
    local times = small_calls("sink1", function() return weights:info().waiting == 2 end)
    local seconds = workers.now() - begin
    local here = peak() - before
    for i = 1, 2 do
      assert.same({ 1, 1, 1 }, { rpc.rpc_sync("sink" .. i, "update") })
      there[i] = rpc.rpc_sync("sink" .. i, "peak") - there[i]
      assert_memory(there[i], 2 * 4 * n + slack, "receiver") -- the net itself becomes resident
    end
    figure("B21", "weights of %d MB to 2 observers in %.2f s; %d small calls meanwhile, median "
      .. "%.2f ms, longest %.2f ms; trainer's peak %+.1f MB, observer's %+.1f MB", 4 * n / MB,
      seconds, #times, percentile(times, .5) * 1e3, percentile(times, 1) * 1e3, here / MB,
      there[1] / MB)
    assert_memory(here, 4 * n + slack, "trainer")
  end)

  it("over what the receiver allows are refused before they are sent", function()
    group:start("sink", SINK)
    local err = fails(rpc.rpc_sync, "sink", "take", rl.zeros(17 * 2 ^ 20))
    assert.equal("RESOURCE_EXHAUSTED", err.code)
    assert.matches('over the limit of 67108864 bytes of worker "sink" %(max_message%)',
      err.message)
  end)
end)

describe("workers that do not read", function()
  local group
  after_each(function() group:finish { blocks = true } end)

  it("F12: are dropped with a reason, and cost no more than what may wait", function()
    group = workers.group { timeout = 60, heartbeat = 0.5 }
    local stopped = group:start("stopped", SINK, "max_calls = 5000,")
    group:start("runs", SINK)
    rpc.wait_for { "stopped", "runs" }
    local tensor = rl.zeros(25000)
    for _ = 1, 3 do rpc.rpc_sync("stopped", "take", tensor) end
    local times, failed = {}, nil
    for i = 1, 200 do
      local begin = workers.now()
      rpc.rpc_sync("runs", "nothing")
      times[i] = workers.now() - begin
    end
    local alone = percentile(times, .99)
    times = {}
    collectgarbage()
    local before, most = core.launch.usage().resident, 0
    stopped:kill(signal.SIGSTOP)
    local futures = {}
    for i = 1, 1200 do
      futures[i] = rpc.rpc_async("stopped", "take", tensor)
      if i % 4 == 0 then
        local begin = workers.now()
        rpc.rpc_sync("runs", "nothing")
        times[#times + 1] = workers.now() - begin
        most = math.max(most, core.launch.usage().resident - before)
      end
      if futures[i]:done() then
        failed = i
        break
      end
    end
    assert.is_number(failed)
    local err = fails(futures[1].wait, futures[1])
    assert.equal('RESOURCE_EXHAUSTED: worker "stopped" is not reading: 64 MiB waiting',
      tostring(err))
    for i = 2, failed do pcall(futures[i].wait, futures[i]) end
    figure("F12", "dropped with 64 MiB waiting; the trainer grew by %.1f MiB; a call to another: "
      .. "p99 %.2f ms before, %.2f ms meanwhile", most / 2 ^ 20, alone * 1e3,
      percentile(times, .99) * 1e3)
    if not sanitized then assert.is_true(most < 72 * 2 ^ 20, most / 2 ^ 20) end
    stopped:kill(signal.SIGCONT)
  end)
end)
