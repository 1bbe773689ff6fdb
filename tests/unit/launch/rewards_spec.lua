--- rl.rewards: returns, normalisation, the running reward, the store.

package.path = "tests/support/?.lua;" .. package.path
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

  -- r, v: [5, 2]; the first column ends an episode with its second step, the second with its
  -- fourth. What is expected was computed by PyTorch in float64.
  local r = { { 1, -2 }, { .5, 3 }, { 0, 1.5 }, { 2, -1 }, { 1, .25 } }
  local v = { { .3, -.1 }, { .7, .2 }, { -.4, 1.1 }, { .6, 0 }, { .9, -.8 } }
  local done = { { false, false }, { true, false }, { false, false }, { false, true },
    { false, false } }
  local last = { .25, -.5 }

  local function near(expected, t, tolerance)
    local actual = t:totable()
    for step, row in ipairs(expected) do close(row, actual[step], tolerance) end
  end

  it("discounts tensors, column by column", function()
    local expected = { { 1.485, 1.408677 }, { .5, 3.5141 }, { 3.10906825, .53 },
      { 3.205225, -1 }, { 1.2425, -.235 } }
    for _, dtype in ipairs { "f32", "f64" } do
      local returns = rewards.discounted(rl.tensor(r, { dtype = dtype }), { gamma = .97,
        dones = rl.tensor(done), last = rl.tensor(last, { dtype = dtype }) })
      assert.equal(dtype, returns.dtype)
      near(expected, returns, dtype == "f32" and 1e-6 or 1e-14)
    end
    -- A column alone, a number for what comes last, defaults, and lists with the same options.
    local column, ends = {}, {}
    for t = 1, 5 do column[t], ends[t] = r[t][2], done[t][2] end
    local options = { gamma = .97, dones = ends, last = -.5 }
    local want = rewards.discounted(column, options)
    close({ 1.408677, 3.5141, .53, -1, -.235 }, want, 1e-14)
    options.dones = rl.tensor(ends)
    close(want, rewards.discounted(rl.tensor(column, { dtype = "f64" }), options):totable(), 1e-14)
    close({ 2.9701, 1.99, 1 }, rewards.discounted(rl.ones(3, { dtype = "f64" })):totable())
    close({ 3, 2, 1 }, rewards.discounted(rl.ones(3), 1):totable())
    -- Any strides.
    local turned = rl.tensor(r, { dtype = "f64" }):t():contiguous():t()
    near(expected, rewards.discounted(turned, { gamma = .97, dones = rl.tensor(done),
      last = rl.tensor(last, { dtype = "f64" }) }), 1e-14)
  end)

  it("estimates generalized advantages", function()
    local f64 = { dtype = "f64" }
    local values = rl.tensor(v, f64):requires_grad_()
    local given = { rewards = rl.tensor(r, f64), values = values, dones = rl.tensor(done),
      last = rl.tensor(last, f64), gamma = .97, lambda = .9 }
    local advantages, returns = rewards.gae(given)
    local expected = { { 1.2044, 1.309403983 }, { -.2, 3.454071 }, { 3.2273581825, -.473 },
      { 2.5720025, -1 }, { .3425, .565 } }
    near(expected, advantages, 1e-14)
    assert.is_false(advantages.requires_grad)
    assert.is_false(returns.requires_grad)
    near((advantages + rl.tensor(v, f64)):totable(), returns, 0)
    -- lambda 1 is returns minus values; lambda 0 one step's error.
    given.lambda = 1
    near((rewards.discounted(given.rewards, { gamma = .97, dones = given.dones,
      last = given.last }) - values:detach()):totable(), (rewards.gae(given)), 1e-13)
    given.lambda, given.dones, given.last = 0, nil, nil
    advantages = rewards.gae(given):totable()
    assert.is_true(math.abs(advantages[1][1] - (1 + .97 * .7 - .3)) < 1e-14)
    assert.is_true(math.abs(advantages[5][1] - (1 - .9)) < 1e-14)
  end)

  it("is on the device of the rewards, the same bits", function()
    local ok, emu = pcall(rl.device, "emu")
    if not ok then return end
    local function all(device)
      local function at(x) return rl.tensor(x, { device = device }) end
      local a, b = rewards.gae { rewards = at(r), values = at(v), dones = at(done),
        last = at(last) }
      assert.equal(tostring(device), tostring(a.device))
      return { a:totable(), b:totable(), rewards.discounted(at(r), .9):totable() }
    end
    assert.same(all(rl.device "cpu"), all(emu))
  end)

  it("says what is wrong with tensors", function()
    local function refuses(message, f, ...)
      local ok, err = pcall(f, ...)
      assert.is_false(ok)
      assert.equal("INVALID_ARGUMENT", err.code)
      assert.equal(message, err.message)
    end
    local x = rl.tensor(r)
    refuses("discounted: rewards must be floats of shape [T] or [T, N], got i64[2]",
      rewards.discounted, rl.tensor({ 1, 2 }, { dtype = "i64" }))
    refuses("discounted: gamma must be in 0..1, got 1.5", rewards.discounted, x, 1.5)
    refuses("discounted: dones must be bool and have the shape of rewards, f32[5,2]; got f32[5,2]",
      rewards.discounted, x, { dones = x })
    refuses("discounted: last must have one value for each column of rewards, f32[5,2], in its " ..
      "dtype; got f32[3]", rewards.discounted, x, { last = rl.zeros(3) })
    refuses('rl.rewards.discounted: unknown option "done"; did you mean "dones"?',
      rewards.discounted, x, { done = x })
    refuses("gae: values must be f32 and have the shape of rewards, f32[5,2]; got f32[5]",
      rewards.gae, { rewards = x, values = rl.zeros(5) })
    refuses('rl.rewards.gae: option "values" must be a tensor, got nil', rewards.gae,
      { rewards = x })
    refuses("gae: lambda must be in 0..1, got -1", rewards.gae,
      { rewards = x, values = x, lambda = -1 })
    for _, wrong in ipairs { "abc", 3, true } do
      refuses("rl.rewards.discounted: expected a list of rewards or a tensor, got " .. type(wrong),
        rewards.discounted, wrong)
    end
    refuses('rl.rewards.discounted: option "dones" must be a bool tensor, as rewards are one, '
      .. "got table", rewards.discounted, x, { dones = { true } })
    refuses('rl.rewards.discounted: option "dones" must be a list, as rewards are one, '
      .. "got userdata", rewards.discounted, { 1 }, { dones = rl.tensor { true } })
    refuses('rl.rewards.gae: option "last" must be a number or a tensor, got string', rewards.gae,
      { rewards = x, values = x, last = "0" })
  end)

  it("counts a report with a key once", function()
    local store = rewards.new { observers = 2 }
    local function key(episode, step, incarnation)
      return { episode = episode, step = step, incarnation = incarnation }
    end
    assert.is_true(store:report(1, 1, key(1, 1)))
    assert.is_true(store:report(1, 3, key(1, 3))) -- the second is on its way
    assert.is_false(store:report(1, 1, key(1, 1)))
    assert.is_true(store:report(1, 2, key(1, 2)))
    assert.is_true(store:report(2, 9, key(1, 1))) -- another observer
    assert.is_true(store:report(1, 5, key(2, 1))) -- another episode
    assert.is_true(store:report(1, 7, key(2, 1, "later"))) -- another life
    assert.is_false(store:report(1, 7, key(2, 1, "later")))
    assert.same({ 18, 9 }, store:totals())
    close({ 1 + 2 + 3, 2 + 3, 3, 5, 7 }, store:returns { gamma = 1 }[1])
    store:report(1, 100) -- without one it is an episode of its own
    assert.same({ 118, 9 }, store:totals())
  end)

  it("knows reports that were there before it was cleared", function()
    local store = rewards.new()
    for step = 1, 10 do
      if step ~= 4 then store:report(1, 1, { episode = 7, step = step }) end
    end
    store:clear() -- in the middle of the episode
    assert.same({ 0 }, store:totals())
    assert.is_false(store:report(1, 1, { episode = 7, step = 10 }))
    assert.is_false(store:report(1, 1, { episode = 7, step = 1 }))
    assert.is_false(store:report(1, 1, { episode = 6, step = 99 })) -- one that was over
    assert.is_true(store:report(1, 1, { episode = 7, step = 4 })) -- it had got lost
    assert.is_true(store:report(1, 1, { episode = 7, step = 11 }))
    store:clear()
    assert.is_false(store:report(1, 1, { episode = 7, step = 4 }))
    assert.is_true(store:report(1, 1, { episode = 7, step = 12 }))
    assert.is_true(store:report(1, 1, { episode = 8, step = 1 }))
    assert.is_true(store:report(1, 1, { episode = 1, step = 1, incarnation = "next" }))
    store:clear()
    store:clear() -- nothing was reported meanwhile
    assert.is_false(store:report(1, 1, { episode = 1, step = 1, incarnation = "next" }))
    assert.same({ 0 }, store:totals())
  end)

  it("drops the episode in which an observer was lost", function()
    local store = rewards.new()
    assert.equal(0, store:drop(1))
    for _ = 1, 3 do store:report(1, 1) end
    store:finish(1)
    assert.equal(0, store:drop(1))
    for _ = 1, 4 do store:report(1, 1) end
    assert.equal(4, store:drop(1))
    assert.same({ 3 }, store:totals())
    for step = 1, 5 do store:report(1, 1, { episode = 1, step = step, incarnation = "old" }) end
    assert.equal(5, store:drop(1))
    assert.is_false(store:report(1, 1, { episode = 1, step = 5, incarnation = "old" }))
    assert.is_true(store:report(1, 1, { episode = 1, step = 1, incarnation = "new" }))
    assert.same({ 4 }, store:totals())
  end)

  it("refuses keys that are none", function()
    local store = rewards.new()
    local function message(key)
      local ok, err = pcall(store.report, store, 1, 1, key)
      assert.is_false(ok)
      return err.message
    end
    assert.equal("rewards: the key's step must be a whole number, got nil", message { episode = 1 })
    assert.equal("rewards: the key's episode must be a whole number, got 1.5",
      message { episode = 1.5, step = 1 })
    assert.matches('unknown option "stpe"', message { episode = 1, stpe = 1 })
  end)

  -- A line that loses, repeats and reorders, at whose other end everything is reported again
  -- until it is acknowledged; now and then the store is cleared, or the process starts again.
  it("F39: counts each step once, whatever becomes of its reports", function()
    local figure = require "figure"
    local cases, seed = os.getenv "RLE_FULL" and 100000 or 10000, 20
    local function random(n)
      seed = (seed * 16807) % 2147483647
      return seed % n + 1
    end
    local reports, applied = 0, 0
    for case = 1, cases do
      local store, taken, sent = rewards.new(), 0, 0
      local episode = random(5)
      local counted = {} -- what was acknowledged, by key
      for life = 1, random(2) do
        local incarnation = "life " .. life
        for _ = 1, random(3) do
          local waiting = {} -- steps not known to have arrived
          for step = 1, random(6) do waiting[step] = step end
          sent = sent + #waiting
          while #waiting > 0 do
            local at = random(#waiting)
            local step, fate = waiting[at], random(4)
            local copies = fate == 1 and 0 or fate == 2 and 2 or 1 -- the request is lost, doubled
            for _ = 1, copies do
              reports = reports + 1
              local key = { incarnation = incarnation, episode = episode, step = step }
              if store:report(1, 2 ^ (step - 1), key) then
                local name = incarnation .. ":" .. episode .. ":" .. step
                assert(not counted[name], name .. " was counted twice")
                counted[name] = true
                applied = applied + 1
              end
            end
            if copies > 0 and fate ~= 3 then table.remove(waiting, at) end -- 3: the reply is lost
            if random(25) == 1 then
              for _, n in ipairs(store.episodes[1]) do taken = taken + #n end
              store:clear()
            end
          end
          episode = episode + 1
        end
        episode = random(5)
      end
      for _, n in ipairs(store.episodes[1]) do taken = taken + #n end
      assert(taken == sent, ("case %d: %d of %d steps"):format(case, taken, sent))
    end
    figure("F39", "%d steps, %d reports in %d cases: each step once", applied, reports, cases)
  end)

end)
