--- rl.rewards: returns, normalisation, the running reward, the store.

local rl = require "rlengine"
local rewards = rl.rewards

local function close(expected, actual, tolerance)
  assert.equal(#expected, #actual)
  for i, x in ipairs(expected) do
    assert.is_true(math.abs(x - actual[i]) <= (tolerance or 1e-12),
      ("%d: expected %.17g, got %.17g"):format(i, x, actual[i]))
  end
end

describe("rl.rewards", function()
  it("discounts within an episode", function()
    close({ 2.9701, 1.99, 1 }, rewards.discounted({ 1, 1, 1 }, .99))
    close({ 2.9701, 1.99, 1 }, rewards.discounted({ 1, 1, 1 })) -- gamma's default
    close({ 4, 3, -1 }, rewards.discounted({ 1, 4, -1 }, 1))
    close({ 1, 4, -1 }, rewards.discounted({ 1, 4, -1 }, 0))
    assert.same({}, rewards.discounted({}, .99))
  end)

  it("never lets returns run on from one observer into another", function()
    local store = rewards.new { observers = 2 }
    for _ = 1, 3 do store:report(2, 1) store:report(1, 1) end -- as they arrive: mixed
    local returns = store:returns { gamma = .99 }
    assert.equal(2, #returns)
    close({ 2.9701, 1.99, 1 }, returns[1])
    close({ 2.9701, 1.99, 1 }, returns[2])
    assert.same({ 3, 3 }, store:totals())
  end)

  it("nor from one episode into the next", function()
    local store = rewards.new { observers = 2 }
    for _ = 1, 2 do
      for _ = 1, 3 do store:report(1, 1) end
      store:finish(1)
    end
    store:finish(2) -- reported nothing: nothing to finish
    close({ 2.9701, 1.99, 1, 2.9701, 1.99, 1 }, store:returns { gamma = .99 }[1])
    assert.same({}, store:returns()[2])
    assert.same({ 6, 0 }, store:totals())
  end)

  it("forgets what was learned from", function()
    local store = rewards.new { observers = 1 }
    store:report(1, 5)
    store:clear()
    assert.same({ {} }, store:returns())
    store:report(1, 7)
    assert.same({ { 7 } }, store:returns())
  end)

  it("normalises with the unbiased deviation and float32's eps", function()
    -- mean 2.5, sd of {1, 2, 3, 4} over n - 1: 1.2909944487358056
    local sd = 1.2909944487358056 + 1.1920928955078125e-07
    close({ -1.5 / sd, -.5 / sd, .5 / sd, 1.5 / sd }, rewards.normalise { 1, 2, 3, 4 })
    assert.same({ 0 }, rewards.normalise { 7 })
    assert.same({ 0, 0 }, rewards.normalise { 7, 7 })
    assert.same({}, rewards.normalise {})
    close({ -1 / (math.sqrt(2) + 1), 1 / (math.sqrt(2) + 1) }, rewards.normalise({ 0, 2 }, 1))
  end)

  it("normalises all observers together", function()
    local store = rewards.new { observers = 2 }
    store:report(1, 1) store:report(1, 2) store:report(2, 3) store:report(2, 4)
    local returns = store:returns { gamma = 0, normalise = true }
    local flat = rewards.normalise { 1, 2, 3, 4 }
    close({ flat[1], flat[2] }, returns[1])
    close({ flat[3], flat[4] }, returns[2])
  end)

  it("keeps a running reward", function()
    local running = rewards.running { start = 10 }
    assert.equal(10, running.value)
    assert.is_true(math.abs(running:update(30) - 11) < 1e-12)
    assert.is_true(math.abs(running:update(11) - 11) < 1e-12)
    assert.equal(5, rewards.running { weight = .5 }:update(10))
  end)

  it("refuses what cannot be a report", function()
    local store = rewards.new { observers = 2 }
    local ok, err = pcall(store.report, store, 3, 1)
    assert.is_false(ok)
    assert.equal("NOT_FOUND", err.code)
    assert.equal("rewards: there is no observer 3; they are 1 to 2", err.message)
    ok, err = pcall(store.report, store, 1, "1")
    assert.is_false(ok)
    assert.equal("INVALID_ARGUMENT", err.code)
    ok, err = pcall(rewards.new, { observer = 2 })
    assert.is_false(ok)
    assert.equal('rl.rewards.new: unknown option "observer"; did you mean "observers"?',
      err.message)
    assert.same({ {}, {} }, store:returns())
  end)
end)
