-- CartPole is solved by observers that hold the policy: running reward 475 within 3,000 episodes
-- and a minute. One seed; RLE_FULL=1 runs the seeds 1 to 5.

package.path = "tests/support/?.lua;" .. package.path
local launched = require "launched"
local process = require "process"

describe("scripts/cartpole_local.lua", function()
  for seed = 1, 5 do
    if seed == 5 or os.getenv "RLE_FULL" then
      it("solves CartPole with seed " .. seed, function()
        local out = process.check { process.program(), "scripts/cartpole_local.lua",
          "--seed=" .. seed }
        local reward = tonumber(out:match "solved: running reward ([%d.]+)\n")
        assert.is_true(reward and reward >= 475, out)
        local episodes = tonumber(out:match "episode : (%d+), mem_used: [%d.]+Mb\n$")
        assert.is_true(episodes and episodes <= 3000, out)
      end)
    end
  end

  it("plays on when an observer is killed, which comes back with the newest weights", function()
    local run = launched.start(process.read "scripts/cartpole_local.lua",
      { args = { "--seed=5", "--episodes=400", "--target=600" } })
    assert.is_true(run:says("episode    60", 60))
    run:signal("KILL", run:process "obs_1_for_0")
    assert.is_true(run:says('observer "obs_1_for_0" is back; 2 of 2 play', 60), run:err())
    assert.equal(0, run:wait(120), run:err())
    assert.matches("episode : 400, mem_used", run:out())
    run:remove()
  end)
end)
