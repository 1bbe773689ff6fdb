--- rl.episode and rl.cleanup: the steps of the loop, the policies.

local rl = require "rlengine"

-- An observer as the loop sees it: rpc_async returns something with the methods.
local function observer(name, log)
  return { rpc_async = function(_, given)
    return { run_episode = function(_, ...)
      log[#log + 1] = { name, given and given.timeout, ... }
      return name .. "'s future"
    end, warm_up = function() return "warm" end }
  end }
end

describe("rl.episode", function()
  it("starts all, waits, finishes, cleans up and reports, in this order", function()
    local log, order = {}, {}
    local function step(name) return function(_, value) order[#order + 1] = { name, value } end end
    local loop = rl.episode.new {
      observers = { observer("a", log), observer("b", log) }, with = { "agent", 7 }, timeout = 5,
      wait = function(_, futures) order[#order + 1] = { "wait", #futures } return { 10, 20 } end,
      finish = step "finish", report = step "report",
      cleanup = function(stats) order[#order + 1] = { "cleanup", stats.episode } end,
    }
    assert.same({ 10, 20 }, loop:run())
    assert.same({ { "a", 5, "agent", 7 }, { "b", 5, "agent", 7 } }, log)
    assert.same({ { "wait", 2 }, { "finish", { 10, 20 } }, { "cleanup", 1 },
      { "report", { 10, 20 } } }, order)
    loop:run()
    assert.equal(2, loop.number)
  end)

  it("lets a script replace a step later", function()
    local loop = rl.episode.new { observers = { observer("a", {}) }, method = "warm_up",
      report = function() end }
    function loop:wait(futures) return futures end
    assert.same({ "warm" }, loop:run())
  end)

  it("does not finish what failed", function()
    local finished
    local loop = rl.episode.new { wait = function() error("lost") end,
      finish = function() finished = true end }
    assert.is_false(pcall(loop.run, loop))
    assert.is_nil(finished)
  end)

  it("forgets what comes late of an observer that does not play", function()
    local rewards = rl.rewards.new { observers = 2 }
    local loop = rl.episode.new {
      observers = { observer("a", {}), observer("b", {}) },
      drop = function(_, i) return rewards:drop(i) end,
    }
    loop.crew.wait_for_one = function() end
    -- Observer 1 has let its deadline pass and was dropped; nobody knows yet whether it hangs.
    loop.dropped[1], loop.playing = true, {}
    rewards:report(1, 1.0)
    rewards:report(2, 1.0)
    local wait_all = rl.rpc.wait_all
    rl.rpc.wait_all = function() return {} end -- this process is no worker
    local ok, err = pcall(loop.wait, loop, {})
    rl.rpc.wait_all = wait_all
    assert.is_true(ok, err)
    assert.same({ 0, 1 }, rewards:totals())
  end)

  it("refuses options it does not know", function()
    local ok, err = pcall(rl.episode.new, { observer = {} })
    assert.is_false(ok)
    assert.equal('rl.episode.new: unknown option "observer"; did you mean "observers"?',
      err.message)
    ok, err = pcall(rl.episode.new, { patience = -1 })
    assert.is_false(ok)
    assert.equal("rl.episode.new: patience must be a number of seconds from 0, got -1", err.message)
  end)
end)

describe("rl.cleanup", function()
  local cleanup = rl.cleanup

  it("may be any function of the script's", function()
    local seen
    local policy = cleanup.policy(function(stats) seen = stats.episode return 100 end)
    assert.equal(100, policy:run { episode = 3 })
    assert.equal(3, seen)
    assert.equal(100, policy { episode = 4 }) -- called like a function
    assert.equal(2, policy.runs)
    assert.equal(200, policy.freed)
    assert.equal(policy, cleanup.policy(policy))
  end)

  it("may never happen", function()
    for _, policy in ipairs { cleanup.never(), cleanup.policy(nil) } do
      assert.equal(0, policy:run {})
      assert.equal(0, policy.runs)
    end
  end)

  it("collects and gives the cache back at the end of an episode", function()
    local policy = cleanup.per_episode { every = 2 }
    local garbage = rl.zeros(1000, 1000)
    local held = rl.memory.allocated()
    assert.is_true(held >= 4e6)
    garbage = nil -- luacheck: ignore
    assert.equal(0, policy:run { episode = 1 })
    assert.equal(held, rl.memory.allocated())
    assert.is_true(policy:run { episode = 2 } >= 4e6)
    assert.is_true(rl.memory.allocated() <= held - 4e6)
    assert.equal(1, policy.runs)
    assert.equal(("cleanup per episode (1 runs, %d bytes freed)"):format(policy.freed),
      tostring(policy))
  end)

  it("collects or empties the cache alone when told so", function()
    local held = rl.zeros(1000, 1000)
    local before = rl.memory.reserved()
    held:free()
    assert.equal(0, cleanup.per_episode { empty_cache = false }:run {})
    assert.equal(before, rl.memory.reserved())
    local alive = rl.memory.allocated()
    local garbage = rl.zeros(10) -- luacheck: ignore
    garbage = nil -- luacheck: ignore
    assert.is_true(cleanup.per_episode { collect = false }:run {} >= 4e6)
    assert.is_true(rl.memory.allocated() > alive)
  end)

  it("acts under pressure and leaves the rest alone", function()
    collectgarbage()
    collectgarbage()
    rl.memory.empty_cache()
    local above = rl.memory.reserved() + 3 * 2 ^ 20
    local policy = cleanup.on_pressure { above = above }
    policy:run {}
    assert.equal(0, policy.runs)
    rl.zeros(1000, 1000):free()
    assert.is_true(policy:run {} >= 4e6)
    assert.equal(1, policy.runs)
    policy:run { reserved = above + 1 }
    assert.equal(2, policy.runs)
  end)

  it("refuses to run after what is no episode", function()
    local policies = { cleanup.per_episode(), cleanup.on_pressure { above = 1 }, cleanup.never(),
      cleanup.policy(error) }
    for _, policy in ipairs(policies) do
      for message, stats in pairs {
        ["cleanup:run: episode must be a number, got string"] = { episode = "x" },
        ["cleanup:run: reserved must be a number, got boolean"] = { reserved = true },
        ["cleanup:run: expected a table such as {episode = 12}, got number"] = 12,
      } do
        local ok, err = pcall(policy.run, policy, stats)
        assert.is_false(ok)
        assert.equal("INVALID_ARGUMENT", err.code)
        assert.equal(message, err.message)
      end
      assert.equal(0, policy.runs)
    end
  end)

  it("refuses what is no policy", function()
    for _, wrong in ipairs { 5, "often", {} } do
      local ok, err = pcall(cleanup.policy, wrong)
      assert.is_false(ok)
      assert.equal("INVALID_ARGUMENT", err.code)
    end
    assert.is_false(pcall(cleanup.on_pressure, {}))
    assert.is_false(pcall(cleanup.on_pressure, { above = "5 apples" }))
    assert.is_false(pcall(cleanup.per_episode, { empty_cash = true }))
    for _, every in ipairs { 0, -1, 1.5 } do
      local ok, err = pcall(cleanup.per_episode, { every = every })
      assert.is_false(ok)
      assert.matches("every must be a whole number from 1, got ", err.message)
    end
  end)
end)
