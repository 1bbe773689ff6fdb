-- Faults: work that takes too long, or is not begun in time.
package.path = "tests/support/?.lua;" .. package.path
local rl = require "rlengine"
local core = require "rlengine.core"
local faults = require "faults"
local figure = require "figure"
local process = require "process"
local rpc = rl.rpc
local fails = faults.fails

local SLOW = [[
local seen, begun = {}, 0
rpc.register("run_episode", function(seconds)
  begun = begun + 1
  local ok, err = pcall(rpc.sleep, seconds)
  seen[#seen + 1] = { ok, err and err.code, rpc.cancelled() }
end)
rpc.register("stubborn", function(file)
  rpc.rpc_async("trainer", "begun")
  while not io.open(file) do end
  return "late"
end)
rpc.register("seen", function() return seen, begun end)
rpc.register("forget", function() seen, begun = {}, 0 end)
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
    local in_time = 0
    for _ = 1, 3 * times do
      local before = faults.clock()
      local f = world:watch(rpc.to("obs_3"):rpc_async { timeout = 0.2 }:run_episode(5))
      local err = fails(f.wait, f)
      local took = faults.clock() - before
      least, most = math.min(least, took), math.max(most, took)
      if err.outcome == "unknown" then
        in_time = in_time + 1
        assert.equal('DEADLINE_EXCEEDED: "run_episode" on "obs_3" took longer than 0.200 s ' ..
          "(outcome: unknown)", tostring(err))
        if in_time == times then break end
      else -- a machine so busy that its handler had not begun by then
        assert.equal('DEADLINE_EXCEEDED: "run_episode" on "obs_3" was not started in time ' ..
          "(outcome: not executed)", tostring(err))
      end
    end
    assert.equal(times, in_time)
    local seen, begun
    assert.is_true(world:eventually(function()
      seen, begun = rpc.rpc_sync("obs_3", "seen")
      return #seen == begun
    end))
    assert.is_true(begun > 0)
    for _, entry in ipairs(seen) do assert.same({ false, "CANCELLED", true }, entry) end
    assert.is_true(least >= 0.2 and most < 5)
    figure("F06", "deadline 0.2 s: the error comes after %.3f to %.3f s, %d of %d", least, most,
      times, times)
  end))

  it("F06: drops and counts a result that comes late", faults.row(function(world)
    world:start("obs_3", SLOW)
    world:join "obs_3"
    local before, begun = rpc.counters().late_results, 0
    rpc.register("begun", function() begun = begun + 1 end)
    local let_go = world.group.folder .. "/go"
    local f = world:watch(rpc.to("obs_3"):rpc_async { timeout = 1 }:stubborn(let_go))
    assert.is_true(world:eventually(function() return begun == 1 end))
    local err = fails(f.wait, f)
    process.write(let_go, "")
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
  end, { seconds = 120 }))

  it("F07: does not run when its time is over before it began", faults.row(function(world)
    world:start("obs_3", SLOW, "max_concurrent = 1")
    world:join "obs_3"
    local times, whole, late = faults.count(1, 10), 0, 0
    for _ = 1, 9 + times do
      local slow = world:watch(rpc.rpc_async("obs_3", "run_episode", 0.8))
      local list, to, told = {}, rpc.to("obs_3"):rpc_async { timeout = 0.5 }, 0
      for i = 1, 1000 do list[i] = to:f() end
      for _, err in ipairs(rpc.wait_all(list, { fail_fast = false })) do
        if err.outcome == "not executed" then
          told = told + 1
          assert.equal('DEADLINE_EXCEEDED: "f" on "obs_3" was not started in time (outcome: not '
            .. "executed)", tostring(err))
        else -- a machine so busy that obs_3 says so too late to be heard
          assert.equal('DEADLINE_EXCEEDED: "f" on "obs_3" took longer than 0.500 s (outcome: '
            .. "unknown)", tostring(err))
        end
      end
      slow:wait()
      assert.equal(0, rpc.rpc_sync("obs_3", "executed"))
      whole, late = whole + (told == 1000 and 1 or 0), late + 1000 - told
      if whole == times then break end
    end
    assert.equal(times, whole, late .. " were told too late")
    figure("F07", "%d times 1,000 calls behind a slow one: 0 ran, all are \"not executed\"%s",
      times, late > 0 and (" (%d were told so too late)"):format(late) or "")
  end))
end)
