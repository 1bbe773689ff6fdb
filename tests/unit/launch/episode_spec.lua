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
    assert.same({ { "wait", 2 }, { "finish", { 10, 20 } }, { "cleanup", 1 }, { "report", { 10, 20 } } },
      order)
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

  it("refuses options it does not know", function()
    local ok, err = pcall(rl.episode.new, { observer = {} })
    assert.is_false(ok)
    assert.equal('rl.episode.new: unknown option "observer"; did you mean "observers"?', err.message)
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

  it("reads sizes", function()
    assert.equal(64 * 2 ^ 20, cleanup.bytes "64MiB")
    assert.equal(1.5 * 2 ^ 30, cleanup.bytes "1.5 GiB")
    assert.equal(1e7, cleanup.bytes "10MB")
    assert.equal(12, cleanup.bytes "12")
    assert.equal(0, cleanup.bytes(0))
    for _, wrong in ipairs { "many", "1.2.3MiB", "5 apples", -1, true } do
      local ok, err = pcall(cleanup.bytes, wrong)
      assert.is_false(ok)
      assert.equal("INVALID_ARGUMENT", err.code)
    end
  end)

  it("refuses what is no policy", function()
    for _, wrong in ipairs { 5, "often", {} } do
      local ok, err = pcall(cleanup.policy, wrong)
      assert.is_false(ok)
      assert.equal("INVALID_ARGUMENT", err.code)
    end
    assert.is_false(pcall(cleanup.on_pressure, {}))
    assert.is_false(pcall(cleanup.per_episode, { empty_cash = true }))
  end)
end)
