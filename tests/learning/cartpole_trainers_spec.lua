-- Two trainers that average their gradients learn, and a run is the same each time.
local process = require "process"

local function run(more)
  local out = process.check { process.program(), "scripts/cartpole_trainers.lua", "--seed=543",
    "--updates=1000", unpack(more) }
  local reward = tonumber(out:match "solved: running reward ([%d.]+)\n")
  assert.is_true(reward ~= nil, out)
  return out
end

describe("scripts/cartpole_trainers.lua", function()
  it("learns with two trainers, the same way twice", function()
    local out = run { "--target=150" }
    assert.equal(out, run { "--target=150" })
  end)

  if os.getenv "RLE_FULL" then
    it("solves CartPole with two trainers and with three", function()
      run { "--target=475" }
      run { "--target=475", "--trainers=3" }
    end)
  end
end)
