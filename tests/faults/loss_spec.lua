-- Faults: an observer's process is gone, or its connection is, at any moment.
package.path = "tests/support/?.lua;" .. package.path
local rl = require "rlengine"
local faults = require "faults"
local figure = require "figure"
local rpc = rl.rpc
local fails = faults.fails

describe("an observer that is killed", function()
  it("F02: fails its call at once and is named in the log", faults.row(function(world)
    local most = 0
    local times = faults.count(5, 100)
    for _ = 1, times do
      local obs = world:start("obs_3", faults.SERVE)
      world:join "obs_3"
      local f = world:watch(rpc.rpc_async("obs_3", "sleep", 60))
      rpc.rpc_sync("obs_3", "echo", 1) -- the other has begun
      local killed = obs:kill()
      local err = fails(f.wait, f)
      most = math.max(most, faults.clock() - killed)
      assert.equal('UNAVAILABLE: worker "obs_3" disconnected while "sleep" was running ' ..
        "(outcome: unknown)", tostring(err))
      assert.equal("unknown", err.outcome)
      obs:join()
    end
    world:events('worker "obs_3" lost: end of stream; 1 call failed', times)
    assert.is_true(most < 5)
    figure("F02", "error at most %.1f ms after the kill, %d of %d", most * 1e3, times, times)
  end))
end)
