-- Faults: work that takes too long, or is not begun in time.
package.path = "tests/support/?.lua;" .. package.path
local rl = require "rlengine"
local core = require "rlengine.core"
local faults = require "faults"
local figure = require "figure"
local rpc = rl.rpc
local fails = faults.fails

local SLOW = [[
local seen = {}
rpc.register("run_episode", function(seconds)
  local ok, err = pcall(rpc.sleep, seconds)
  seen[#seen + 1] = { ok, err and err.code, rpc.cancelled() }
end)
rpc.register("stubborn", function(seconds)
  local t = require("posix.time")
  local function now() local v = t.clock_gettime(1) return v.tv_sec + v.tv_nsec * 1e-9 end
  local ends = now() + seconds
  while now() < ends do end
  return "late"
end)
rpc.register("seen", function() local list = seen seen = {} return list end)
rpc.register("forget", function() seen = {} end)
local executed = 0
rpc.register("f", function() executed = executed + 1 end)
rpc.register("executed", function() return executed end)
rpc.register("bytes", function()
  collectgarbage() collectgarbage()
  return (require "rlengine.core".host_memory())
end)
]]

describe("a call with a deadline", function()
  it("F06: fails when its time is over, and the handler learns of it", faults.row(function(world)
    world:start("obs_3", SLOW)
    world:join "obs_3"
    local least, most, times = math.huge, 0, faults.count(5, 50)
    for _ = 1, times do
      local before = faults.clock()
      local f = world:watch(rpc.to("obs_3"):rpc_async { timeout = 0.2 }:run_episode(5))
      local err = fails(f.wait, f)
      local took = faults.clock() - before
      least, most = math.min(least, took), math.max(most, took)
      assert.equal('DEADLINE_EXCEEDED: "run_episode" on "obs_3" took longer than 0.200 s ' ..
        "(outcome: unknown)", tostring(err))
      assert.equal("unknown", err.outcome)
    end
    local seen = {}
    assert.is_true(world:eventually(function()
      for _, entry in ipairs(rpc.rpc_sync("obs_3", "seen")) do seen[#seen + 1] = entry end
      return #seen == times
    end))
    for _, entry in ipairs(seen) do assert.same({ false, "CANCELLED", true }, entry) end
    assert.is_true(least >= 0.2 and most < 5)
    figure("F06", "deadline 0.2 s: the error comes after %.3f to %.3f s, %d of %d", least, most,
      times, times)
  end))

  it("F06: drops and counts a result that comes late", faults.row(function(world)
    world:start("obs_3", SLOW)
    world:join "obs_3"
    local before = rpc.counters().late_results
    local err = fails(function()
      rpc.to("obs_3"):rpc_sync { timeout = 0.1 }:stubborn(0.4)
    end)
    assert.equal("DEADLINE_EXCEEDED", err.code)
    assert.equal(0, rpc.rpc_sync("obs_3", "executed")) -- answers, and so comes after the late one
    assert.equal(before + 1, rpc.counters().late_results)
  end))

  it("F06: leaves nothing behind, however many there are", faults.row(function(world)
    world:start("obs_3", SLOW)
    world:join "obs_3"
    local function round(count)
      local to = rpc.to("obs_3"):rpc_async { timeout = 0.02 }
      for _ = 1, count / 50 do
        local list = {}
        for i = 1, 50 do list[i] = to:run_episode(5) end
        for _, err in ipairs(rpc.wait_all(list, { fail_fast = false })) do
          assert.equal("DEADLINE_EXCEEDED", err.code)
        end
      end
      world:eventually(function()
        collectgarbage()
        return rpc.counters().futures == 0
      end)
      rpc.rpc_sync("obs_3", "forget")
      world:eventually(function()
        return rpc.rpc_sync("obs_3", "bytes") == rpc.rpc_sync("obs_3", "bytes")
      end)
      collectgarbage()
      collectgarbage()
      return (core.host_memory()), rpc.rpc_sync("obs_3", "bytes")
    end
    -- What grows with the calls grows in every round; buffers that are kept do not.
    local count = faults.count(2000, 100000)
    local here, there = round(500)
    local least_here, least_there = math.huge, math.huge
    for _ = 1, 4 do
      local now_here, now_there = round(count / 4)
      least_here = math.min(least_here, now_here - here)
      least_there = math.min(least_there, now_there - there)
      here, there = now_here, now_there
    end
    assert.is_true(least_here <= 0, least_here)
    assert.is_true(least_there <= 0, least_there)
    figure("F06", "%d calls that ran out of time left %d bytes with the caller, %d with the callee",
      count, math.max(0, least_here), math.max(0, least_there))
  end, { seconds = 60 }))

  it("F07: does not run when its time is over before it began", faults.row(function(world)
    world:start("obs_3", SLOW, "max_concurrent = 1")
    world:join "obs_3"
    local slow = world:watch(rpc.rpc_async("obs_3", "run_episode", 1.5))
    local list, to = {}, rpc.to("obs_3"):rpc_async { timeout = 0.5 }
    for i = 1, 1000 do list[i] = to:f() end
    for _, err in ipairs(rpc.wait_all(list, { fail_fast = false })) do
      assert.equal('DEADLINE_EXCEEDED: "f" on "obs_3" was not started in time (outcome: not ' ..
        "executed)", tostring(err))
      assert.equal("not executed", err.outcome)
    end
    slow:wait()
    assert.equal(0, rpc.rpc_sync("obs_3", "executed"))
    figure("F07", "1,000 calls behind a slow one: 0 ran, all are \"not executed\"")
  end))
end)
