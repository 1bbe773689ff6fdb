-- Batched functions: one run for the calls of many workers, when it comes, who is left out.
package.path = "tests/support/?.lua;" .. package.path
local batched = require "batched"
local rl = require "rlengine"
local fails = require "fails"
local figure = require "figure"
local workers = require "workers"
local rpc = rl.rpc

local FULL = os.getenv "RLE_FULL" == "1"
local OBSERVER, declare, start, all = batched.OBSERVER, batched.declare, batched.start, batched.all

describe("a batched function", function()
  local group
  before_each(function() group = workers.group { call_timeout = 20 } end)
  after_each(function() group:finish { blocks = true } end)

  it("gets the rows of all, and everybody gets the results of theirs", function()
    declare { size = 64, delay = 5 }
    local names = start(group, 3)
    assert.same({ 60, 60, 60 }, rpc.wait_all(all(names, "run", 5)))
    local tries, most = 0, 0
    repeat -- until all three are in one
      tries = tries + 1
      assert.same({ 180, 180, 180 }, rpc.wait_all(all(names, "run", 5, 3)))
      for _, flush in ipairs(batched.flushes) do most = math.max(most, flush.rows) end
    until most >= 9 or tries == 50
    assert.equal(9, most)
    for _, flush in ipairs(batched.flushes) do
      local rows = 0
      for i, count in ipairs(flush.counts) do
        rows = rows + count
        assert.matches("^obs_%d$", flush.callers[i])
      end
      assert.equal(flush.rows, rows)
    end
    local counters = rpc.counters()
    assert.equal(#batched.flushes, counters.batches)
    assert.equal(15 + 15 * tries, counters.batched_calls)
    assert.equal(15 + 45 * tries, counters.batched_rows)
  end)

  it("returns tensors, lists and nil, and takes numbers and any values", function()
    local obs_input = { name = "obs", dtype = "f32", shape = { 2 } }
    declare({ input = { obs_input, "id i64", "info any" }, delay = 5 },
      function(obs, id, info, batch)
        assert(obs.shape[1] == batch.rows and id.dtype == "i64" and #info == batch.calls)
        local said = {}
        for i, value in ipairs(info) do said[i] = { value.x, batch.callers[i] } end
        return obs, nil, id, said
      end)
    start(group, 1)
    local function once(...) return rpc.rpc_sync("obs_1", "once", nil, ...) end
    local obs, none, id, said = once(rl.tensor { 1, 2 }, 7, { x = "y" })
    assert.same({ 1, 2 }, obs:totable())
    assert.is_nil(none)
    assert.equal(7, id)
    assert.same({ "y", "obs_1" }, said)
    obs, none, id = once(rl.tensor { { 1, 2 }, { 3, 4 } }, rl.tensor({ 5, 6 }, { dtype = "i64" }),
      { x = 1 })
    assert.same({ { 1, 2 }, { 3, 4 } }, obs:totable())
    assert.is_nil(none)
    assert.same({ 5, 6 }, id:totable())
    local function ask(...)
      local code, message = rpc.rpc_sync("obs_1", "ask", nil, ...)
      assert.equal("INVALID_ARGUMENT", code)
      return message
    end
    assert.equal('"act" takes 3 arguments, "obs_1" gave 1', ask(rl.zeros(2)))
    assert.equal('id of "obs_1" is 0.5, act wants i64[]', ask(rl.zeros(2), 0.5, {}))
    assert.equal('id of "obs_1" has 1 row, its obs 2', ask(rl.zeros(2, 2), 1, {}))
    assert.matches("info has a tensor in it", ask(rl.zeros(2), 1, { rl.zeros(1) }))
    assert.equal('obs of "obs_1" is a string, act wants f32[2]', ask("x", 1, {}))
  end)

  it("is a method where a class has it, for each object apart", function()
    local Agent = rpc.class("BatchedAgent" .. math.random(1e9), { "act", "plain" })
    function Agent:init(add) self.add = add end
    Agent.act = rpc.batched(function(self, obs) return obs:sum(-1) + self.add end,
      { input = { "obs f32[4]" }, delay = 5 })
    function Agent:plain() return self.add end
    group:start("obs_1", [[
      rpc.register("use", function(a, b)
        local x, y = a:rpc_sync():act(rl.ones(4)), b:rpc_sync():act(rl.ones(2, 4)):totable()
        return x, y[1], y[2], a:rpc_sync():plain()
      end)
    ]])
    local a, b = Agent(10), Agent(20)
    local x, y, z, add = rpc.rpc_sync("obs_1", "use", rpc.rref(a), rpc.rref(b))
    assert.same({ 14, 24, 24, 10 }, { x, y, z, add })
    -- Called here it is a batch of its own.
    assert.equal(14, a:act(rl.ones(4)))
    assert.same({ 24, 24 }, b:act(rl.ones(2, 4)):totable())
    assert.equal(14, rpc.rref(a):rpc_sync():act(rl.ones(4)))
    assert.equal("INVALID_ARGUMENT", fails(a.act, a, rl.ones(5)).code)
  end)

  it("is for those it is declared for", function()
    rpc.register("act", rpc.batched(function(obs) return obs:sum(-1) end,
      { input = { "obs f32[4]" } }), { from = "obs_*" })
    start(group, 1)
    group:start("other", OBSERVER)
    rpc.wait_for { "other" }
    assert.equal(4, rpc.rpc_sync("obs_1", "once", nil, rl.ones(4)))
    assert.equal("PERMISSION_DENIED", (rpc.rpc_sync("other", "ask", nil, rl.ones(4))))
    -- Declared anew it is what was declared last.
    declare({ input = { "obs f32[2]" } }, function(obs) return obs:sum(-1) * 100 end)
    assert.equal(200, rpc.rpc_sync("obs_1", "once", nil, rl.ones(2)))
    rpc.register("act", function(obs) return obs.shape[1] end)
    assert.equal(7, rpc.rpc_sync("other", "once", nil, rl.ones(7)))
  end)

  it("runs when it is full, when all are there, after a delay, when nothing else is to do",
    function()
      local names = start(group, 3)
      local function flushed(given)
        local before = rpc.counters()
        declare(given)
        -- All are expected after their first calls; nobody has an open call as they call.
        rpc.wait_all(all(names, "run", 10, 2))
        local after, out = rpc.counters(), {}
        for _, reason in ipairs { "full", "delay", "all", "idle" } do
          out[reason] = after["flushed_" .. reason] - before["flushed_" .. reason]
        end
        return out
      end
      local full = flushed { size = 2, delay = 5 }
      assert.is_true(full.full >= 25 and full.delay == 0)
      local together = flushed { size = 64, delay = 5 }
      assert.is_true(together.all > 0 and together.full == 0 and together.delay == 0)
      local idle = flushed { size = 64, delay = 5, when_idle = true }
      assert.is_true(idle.idle + idle.all > 0 and idle.full == 0 and idle.delay == 0)
      local now = flushed { size = 64, delay = 0 }
      assert.is_true(now.delay + now.all > 0 and now.full == 0)
      -- Two are in lock-step; the third, which they wait for, computes between its calls.
      local before = rpc.counters().flushed_delay
      declare { size = 64, delay = 0.01 }
      local slow = rpc.rpc_async(names[3], "run", 5, 2, 0.05)
      rpc.wait_all(all({ names[1], names[2] }, "run", 30, 2, 0.003))
      slow:wait()
      assert.is_true(rpc.counters().flushed_delay > before)
    end)

  it("F28: refuses a wrong shape or dtype for that call alone", function()
    local seen = 0
    declare({ size = 64, delay = 0.3, name = "policy" }, function(obs)
      seen = seen + obs.shape[1]
      return obs:sum(-1)
    end)
    start(group, 3)
    local good = { rpc.rpc_async("obs_1", "once", nil, rl.ones(4)),
      rpc.rpc_async("obs_2", "once", nil, rl.ones(4) * 2) }
    local function ask(obs)
      local code, message, outcome = rpc.rpc_sync("obs_3", "ask", nil, obs)
      assert.equal("INVALID_ARGUMENT", code)
      assert.equal("not executed", outcome)
      return message
    end
    local n = FULL and 1000 or 20
    for _ = 1, n do
      assert.equal('obs of "obs_3" is f32[5], policy wants f32[4]', ask(rl.ones(5)))
      assert.equal('obs of "obs_3" is f64[4], policy wants f32[4]',
        ask(rl.ones(4, { dtype = "f64" })))
    end
    assert.equal('obs of "obs_3" is f32[2,3,4], policy wants f32[4]', ask(rl.ones(2, 3, 4)))
    assert.equal('obs of "obs_3" is f32[0,4], policy wants f32[4]', ask(rl.ones(0, 4)))
    assert.same({ 4, 8 }, rpc.wait_all(good))
    assert.equal(2, seen)
    assert.equal(12, rpc.rpc_sync("obs_3", "once", nil, rl.ones(4) * 3))
    figure("F28", "%d of %d wrong observations refused, their callers alone", 2 * n + 2, 2 * n + 2)
  end)

  it("that raises fails each of its calls", function()
    local names = start(group, 3)
    declare({ delay = 5 }, function() error("no policy") end)
    for _ = 1, 5 do
      for _, future in ipairs(all(names, "ask", nil, rl.ones(4))) do
        local code, message = future:wait()
        assert.equal("UNKNOWN", code)
        assert.matches('^"act" on "test" failed: .*rpc_batch_spec.lua:%d+: no policy$', message)
      end
    end
    local function reason(fn)
      declare({ delay = 5 }, fn)
      local code, message = rpc.rpc_sync("obs_1", "ask", nil, rl.ones(5, 4))
      assert.equal("UNKNOWN", code)
      return message
    end
    assert.equal('"act" on "test" failed: result 1 has 3 rows (f32[3,2]), the batch has 5',
      reason(function() return rl.zeros(3, 2) end))
    assert.equal('"act" on "test" failed: result 2 is a list of 2 values, the batch has 1 call',
      reason(function(obs) return obs, { 1, 2 } end))
    assert.matches("result 1 is a number; a batched function returns tensors",
      reason(function() return 1 end))
    assert.matches("result 1 is f32%[%], without a dimension",
      reason(function(obs) return obs:sum() end))
    declare { delay = 5 }
    assert.equal(4, rpc.rpc_sync("obs_1", "once", nil, rl.ones(4)))
    assert.equal(0, rpc.counters().calls)
  end)

  it("does not run for those who cancel or whose time is over", function()
    declare { size = 64, delay = 60 }
    start(group, 3)
    -- One that called, and whose episode goes on: the others wait for it until that is over.
    local over = false
    rpc.register("over", function() repeat rpc.sleep(0.005) until over end)
    group:start("obs_4", [[
      rpc.register("play", function()
        rpc.rpc_sync("test", "act", rl.ones(4))
        rpc.rpc_sync("test", "over")
      end)
    ]])
    rpc.wait_for { "obs_4" }
    local episode = rpc.rpc_async("obs_4", "play")
    local function served(n)
      assert.is_true(workers.eventually(function() return rpc.counters().calls == n end))
    end
    assert.is_true(workers.eventually(function() return #batched.flushes == 1 end))
    served(1)
    batched.flushes = {}
    local gone = rpc.rpc_async("obs_2", "once", nil, rl.ones(3, 4))
    local stays = rpc.rpc_async("obs_3", "once", nil, rl.ones(4) * 2)
    served(3)
    gone:cancel() -- and with it what its handler called
    served(2)
    local said
    for _ = 1, 20 do -- on a machine that is very busy it may be said too late to be heard
      local late = rpc.rpc_async("obs_1", "ask", { timeout = 0.1 }, rl.ones(4))
      local code, _, outcome = late:wait()
      assert.equal("DEADLINE_EXCEEDED", code)
      said = outcome
      if said == "not executed" then break end
    end
    assert.equal("not executed", said)
    served(2)
    over = true
    episode:wait()
    assert.equal(8, stays:wait()) -- at once: nobody else plays
    assert.equal(1, #batched.flushes)
    assert.equal(1, batched.flushes[1].rows)
    assert.same({ "obs_3" }, batched.flushes[1].callers)
    assert.is_true(rpc.counters().expired_unstarted >= 1)
  end)

  it("may wait, and call those who call it; the next batch is filled meanwhile", function()
    group:start("far", [[
      rpc.register("double", function(x) rpc.sleep(0.02) return x * 2 end)
      rpc.register("back", function(x) return rpc.rpc_sync("test", "act", x) end)
    ]])
    local names = start(group, 3)
    rpc.wait_for { "far" }
    local running, most = 0, 0
    declare({ size = 2, delay = 5 }, function(obs)
      running = running + 1
      most = math.max(most, running)
      local doubled = rpc.rpc_sync("far", "double", obs)
      -- The rows are this batch's still, whatever came meanwhile.
      assert(doubled:eq(obs * 2):all():item())
      running = running - 1
      return doubled:sum(-1)
    end)
    assert.same({ 240, 240, 240 }, rpc.wait_all(all(names, "run", 5, 2)))
    assert.is_true(most >= 2)
    -- One that is called by what it calls.
    declare({ size = 64, delay = 0 }, function(obs)
      local again = obs[1][1]:item() > 0 and rpc.rpc_sync("far", "back", obs - 1) or obs:sum(-1)
      return again
    end)
    local value = rpc.rpc_sync("obs_1", "once", nil, rl.full({ 2, 4 }, 3))
    assert.same({ 0, 0 }, value:totable())
  end)

  it("stays within the bound on concurrent calls, and goes on", function()
    group:finish { blocks = true }
    group = workers.group { max_concurrent = 2, call_timeout = 20 }
    declare { size = 1000, delay = 5 }
    local names = start(group, 4)
    assert.same({ 220, 220, 220, 220 }, rpc.wait_all(all(names, "run", 10)))
    for _, flush in ipairs(batched.flushes) do assert.is_true(flush.rows <= 2) end
  end)

  it("takes more rows from one caller than its size", function()
    declare { size = 8, delay = 5 }
    start(group, 1)
    assert.equal(4 * 100, rpc.rpc_sync("obs_1", "run", 1, 100))
    assert.equal(4 * 3 * 6, rpc.rpc_sync("obs_1", "run", 3, 3))
    assert.equal(100, batched.flushes[1].rows)
    assert.equal(4 * 6, rpc.rpc_sync("obs_1", "run", 3))
    -- What was needed for one such call is not kept.
    assert.equal(4 * 10000, rpc.rpc_sync("obs_1", "run", 1, 10000))
    local rows = 0
    for _, row in ipairs(rl.memory.report(rl.default_device())) do
      if row.owner == "rpc" then rows = rows + row.bytes end
    end
    assert.is_true(rows < 10000 * 16, ("%d bytes of rows"):format(rows))
  end)

  it("leaves nobody waiting when episodes end at different times", function()
    declare { size = 1000, delay = 30 }
    local names = start(group, 3)
    local futures = {}
    for round = 1, 3 do
      for i, name in ipairs(names) do futures[i] = rpc.rpc_async(name, "run", 20 * i + round) end
      for _, total in ipairs(rpc.wait_all(futures, { timeout = 10 })) do
        assert.is_true(total > 0)
      end
    end
    assert.equal(0, rpc.counters().flushed_delay)
  end)

  it("stops with its worker: what waits is answered", function()
    declare { size = 64, delay = 30 }
    start(group, 2)
    local episode = rpc.rpc_async("obs_2", "run", 1, nil, 20)
    assert.is_true(workers.eventually(function() return #batched.flushes == 1 end))
    local waits = rpc.rpc_async("obs_1", "once", nil, rl.ones(4))
    assert.is_true(workers.eventually(function() return rpc.counters().calls == 1 end))
    rpc.sleep(0.02)
    assert.equal(1, rpc.counters().calls)
    batched.flushes = {}
    rpc.shutdown { timeout = 2 }
    assert.equal(1, #batched.flushes)
    assert.is_true(waits ~= episode)
    group:finish { blocks = true }
    group = workers.group()
  end)
end)

describe("rpc.batched", function()
  it("says what it cannot take", function()
    local function message(fn, given)
      local err = fails(rpc.batched, fn, given)
      assert.equal("INVALID_ARGUMENT", err.code)
      return err.message
    end
    assert.matches("wants a function, got nil", message(nil, { input = { "f32[4]" } }))
    assert.matches("needs the option input", message(print))
    assert.matches("needs the option input", message(print, { input = {} }))
    assert.matches('unknown option "inputs"; did you mean "input"%?',
      message(print, { inputs = {} }))
    assert.matches('input 1, "obs f33%[4%]"', message(print, { input = { "obs f33[4]" } }))
    assert.matches("input 2 must be a text", message(print, { input = { "f32", 1 } }))
    assert.matches('input 1: unknown option "size"', message(print, { input = { { size = 1 } } }))
    assert.matches("sizes, from 1 on", message(print, { input = { "f32[0]" } }))
    assert.matches("size must be a whole number", message(print, { input = { "f32" }, size = 0.5 }))
    assert.matches("delay must be", message(print, { input = { "f32" }, delay = -1 }))
    assert.equal("function", type(rpc.batched(print, { input = { "f32" } })))
  end)
end)
