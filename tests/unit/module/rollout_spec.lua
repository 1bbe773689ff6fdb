-- rl.rollout: what an observer has seen, as pieces.
package.path = "tests/support/?.lua;" .. package.path
local rl = require "rlengine"
local fails = require "fails"

-- An environment that counts: observation {t}, over after `n` steps.
local function play(rollout, n, first)
  rollout:start(rl.tensor { first or 0 })
  local pieces = {}
  for t = 1, n do
    if rollout:add { action = t, log_prob = rl.tensor(-t / 10), reward = t / 2,
      terminated = t == n, truncated = false, value = 10 * t,
      observation = rl.tensor { (first or 0) + t } } then
      pieces[#pieces + 1] = rollout:take()
    end
  end
  return pieces
end

describe("rl.rollout", function()
  it("makes a piece of an episode", function()
    local rollout = rl.rollout.new()
    assert.is_nil(rollout:take())
    local pieces = play(rollout, 5)
    assert.equal(1, #pieces)
    local piece = pieces[1]
    assert.equal(5, piece.steps)
    assert.same({ 5, 1 }, piece.observations.shape)
    assert.same({ 0, 1, 2, 3, 4 }, piece.observations:reshape(5):totable())
    assert.same({ 1, 2, 3, 4, 5 }, piece.actions:totable())
    assert.same({ .5, 1, 1.5, 2, 2.5 }, piece.rewards:totable())
    assert.same({ 10, 20, 30, 40, 50 }, piece.value:totable())
    assert.same({ false, false, false, false, true }, piece.terminated:totable())
    assert.equal(5, piece.last:item())
    assert.is_nil(piece.version)
    assert.equal(2, play(rollout, 2)[1].steps)
  end)

  it("of a fixed length goes on over the ends of episodes", function()
    local rollout = rl.rollout.new { length = 4 }
    local pieces = play(rollout, 6)
    assert.equal(1, #pieces)
    assert.same({ 0, 1, 2, 3 }, pieces[1].observations:reshape(4):totable())
    assert.equal(4, pieces[1].last:item())
    pieces = play(rollout, 3, 100)
    assert.equal(1, #pieces)
    assert.same({ 4, 5, 100, 101 }, pieces[1].observations:reshape(4):totable())
    assert.same({ false, true, false, false }, pieces[1].terminated:totable())
    local rest = rollout:take()
    assert.equal(1, rest.steps)
    assert.equal(102, rest.observations:item())
    assert.equal(103, rest.last:item())
  end)

  it("holds what was, not what becomes of it", function()
    local rollout, state = rl.rollout.new(), rl.tensor { 1 }
    local w = rl.tensor({ 2 }, { requires_grad = true })
    rollout:start(state)
    state:fill_(7)
    rollout:add { log_prob = (w * 3)[1], observation = state, truncated = true }
    local piece = rollout:take()
    assert.equal(1, piece.observations:item())
    assert.is_false(piece.log_probs.requires_grad)
  end)

  it("takes steps of several environments at once", function()
    local rollout = rl.rollout.new { length = 2 }
    rollout:start(rl.zeros(3, 4))
    local step = { reward = rl.ones(3), terminated = rl.tensor({ true, false, true }),
      observation = rl.ones(3, 4) }
    assert.is_false(rollout:add(step))
    assert.is_true(rollout:add(step))
    local piece = rollout:take()
    assert.same({ 2, 3, 4 }, piece.observations.shape)
    assert.same({ 2, 3 }, piece.rewards.shape)
    assert.same({ 3, 4 }, piece.last.shape)
    assert.is_false(rollout:add(step)) -- it goes on
  end)

  it("changes its weights between pieces only, and says which they were", function()
    local newest = 1
    local weights = { version = 0, busy = {} }
    function weights:update()
      if next(self.busy) then return false end
      self.version = newest
      return true
    end
    local function step(over)
      return { reward = 1, terminated = over, observation = rl.tensor { 1 } }
    end
    local one = rl.rollout.new { weights = weights }
    local two = rl.rollout.new { weights = weights }
    one:start(rl.tensor { 0 })
    newest = 2
    one:add(step(false))
    two:start(rl.tensor { 0 }) -- while one is in an episode
    assert.equal(1, weights.version)
    two:add(step(true))
    assert.equal(1, two:take().version)
    one:add(step(true))
    assert.equal(1, one:take().version)
    assert.is_nil(next(weights.busy))
    assert.equal(2, play(one, 3)[1].version)
    one:start(rl.tensor { 0 })
    one:clear()
    assert.is_nil(next(weights.busy))
    -- In the middle of an episode too, when the length says so.
    local three = rl.rollout.new { weights = weights, length = 2 }
    three:start(rl.tensor { 0 })
    local versions = {}
    for t = 1, 6 do
      newest = newest + 1
      if three:add { reward = t, observation = rl.tensor { t } } then
        versions[#versions + 1] = three:take().version
      end
    end
    assert.same({ 2, 4, 6 }, versions)
    -- Reporting a piece brings the version that was learnt from it: the next one acts with it.
    local four = rl.rollout.new { weights = weights, length = 2 }
    three:clear()
    local state
    versions, state = {}, four:start(rl.tensor { 0 })
    for t = 1, 6 do
      state = rl.tensor { t }
      if four:add { reward = t, observation = state } then
        local piece = four:take()
        versions[#versions + 1] = piece.version
        assert.equal(t, piece.last:item())
        newest = newest + 1
        assert.equal(state, four:start(state))
        assert.equal(newest, weights.version)
      end
    end
    assert.same({ newest - 3, newest - 2, newest - 1 }, versions)
    -- Not in the middle of a piece.
    four:add { reward = 1, observation = state }
    newest = newest + 1
    four:start(state)
    assert.equal(newest - 1, weights.version)
  end)

  it("forgets an episode that was broken off", function()
    local rollout = rl.rollout.new {}
    rollout:start(rl.zeros(1))
    rollout:add { reward = 1, terminated = false, observation = rl.zeros(1) }
    -- An error ended run_episode here; this is the next one.
    rollout:start(rl.zeros(1))
    assert.is_true(rollout:add { reward = 5, terminated = true, observation = rl.zeros(1) })
    local piece = rollout:take()
    assert.equal(1, piece.steps)
    assert.equal(5, piece.rewards[1]:item())
  end)

  it("refuses weights that are none", function()
    assert.equal("rl.rollout.new: weights are what rpc.follow returns",
      fails(rl.rollout.new, { weights = {} }).message)
  end)

  it("says what is wrong with a step", function()
    local rollout = rl.rollout.new { length = 2 }
    local function add(step) return fails(rollout.add, rollout, step).message end
    assert.matches("start%(observation%)", add { observation = rl.zeros(1) })
    rollout:start(rl.zeros(1))
    assert.matches("with the observation", add { reward = 1 })
    assert.matches('no field "version"', add { version = 1, observation = rl.zeros(1) })
    rollout:add { reward = 1, observation = rl.zeros(1) }
    assert.matches('step 2 has no "reward"', add { observation = rl.zeros(1) })
    assert.matches('step 2 has a "value"', add { reward = 1, value = 2,
      observation = rl.zeros(1) })
    rollout:add { reward = 1, observation = rl.zeros(1) }
    assert.matches("take%(%) it", add { reward = 1, observation = rl.zeros(1) })
    assert.matches("length", fails(rl.rollout.new, { length = 1.5 }).message)
    assert.equal("INVALID_ARGUMENT", fails(rl.rollout.new, { weight = 1 }).code)
  end)
end)
