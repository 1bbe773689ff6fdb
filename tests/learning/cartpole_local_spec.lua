-- CartPole is solved by observers that hold the policy: running reward 475 within 3,000 episodes
-- and a minute. One seed; RLE_FULL=1 runs the seeds 1 to 5.

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
end)
