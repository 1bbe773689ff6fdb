-- Batched functions: one run for the calls of many workers, when it comes, who is left out.
package.path = "tests/support/?.lua;" .. package.path
local rl = require "rlengine"
local figure = require "figure"
local signal = require "posix.signal"
local workers = require "workers"
local rpc = rl.rpc

local FULL = os.getenv "RLE_FULL" == "1"

local function fails(fn, ...)
  local ok, err = pcall(fn, ...)
  assert.is_false(ok, "it did not fail")
  return err
end

-- run(steps, rows, pause): so many calls with rows of 1, 2, 3 ...; returns the sum of what came
-- back. once(options, ...): one call with these arguments. ask: as once, but says how it failed.
local OBSERVER = [[
rpc.register("run", function(steps, rows, pause)
  local total = 0
  for k = 1, steps do
    local obs = rows and rl.full({ rows, 4 }, k) or rl.full({ 4 }, k)
    local action = rpc.rpc_sync("test", "act", obs)
    if rows then
      assert(#action.shape == 1 and action.shape[1] == rows)
      for _, a in ipairs(action:totable()) do total = total + a end
    else
      assert(type(action) == "number")
      total = total + action
    end
    if pause then rpc.sleep(pause) end
  end
  return total
end)
rpc.register("once", function(given, ...)
  return rpc.to("test"):rpc_sync(given):act(...)
end)
rpc.register("ask", function(given, ...)
  local to = rpc.to("test"):rpc_sync(given)
  local ok, err = pcall(to.act, to, ...)
  if ok then return "ok", err end
  return err.code, err.message, err.outcome
end)
]]

-- What each flush was given: {rows, callers, counts}.
local flushes

-- `act` adds the four numbers of each row up.
local function declare(given, fn)
  flushes = {}
  given.input = given.input or { "obs f32[4]" }
  rpc.register("act", rpc.batched(fn or function(obs, batch)
    flushes[#flushes + 1] = { rows = batch.rows, callers = batch.callers, counts = batch.counts }
    return obs:sum(-1)
  end, given))
end

local function start(group, n, options)
  local names = {}
  for i = 1, n do
    names[i] = "obs_" .. i
    group:start(names[i], OBSERVER, options)
  end
  rpc.wait_for(names)
  return names
end

local function all(names, name, ...)
  local futures = {}
  for i, worker in ipairs(names) do futures[i] = rpc.rpc_async(worker, name, ...) end
  return futures
end

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
      for _, flush in ipairs(flushes) do most = math.max(most, flush.rows) end
    until most >= 9 or tries == 50
    assert.equal(9, most)
    for _, flush in ipairs(flushes) do
      local rows = 0
      for i, count in ipairs(flush.counts) do
        rows = rows + count
        assert.matches("^obs_%d$", flush.callers[i])
      end
      assert.equal(flush.rows, rows)
    end
    local counters = rpc.counters()
    assert.equal(#flushes, counters.batches)
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
    declare { size = 64, delay = 0.4 }
    start(group, 4)
    -- One that called, and whose episode goes on: the others wait for it until the delay is over.
    local episode = rpc.rpc_async("obs_4", "run", 1, nil, 1)
    assert.is_true(workers.eventually(function() return #flushes == 1 end))
    flushes = {}
    local late = rpc.rpc_async("obs_1", "ask", { timeout = 0.1 }, rl.ones(4))
    local gone = rpc.rpc_async("obs_2", "once", nil, rl.ones(3, 4))
    local stays = rpc.rpc_async("obs_3", "once", nil, rl.ones(4) * 2)
    rpc.sleep(0.05)
    gone:cancel() -- and with it what its handler called
    local code, _, outcome = late:wait()
    assert.equal("DEADLINE_EXCEEDED", code)
    assert.equal("not executed", outcome)
    assert.equal(8, stays:wait())
    assert.equal(1, #flushes)
    assert.equal(1, flushes[1].rows)
    assert.same({ "obs_3" }, flushes[1].callers)
    assert.is_true(rpc.counters().expired_unstarted >= 1)
    episode:wait()
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
    for _, flush in ipairs(flushes) do assert.is_true(flush.rows <= 2) end
  end)

  it("takes more rows from one caller than its size", function()
    declare { size = 8, delay = 5 }
    start(group, 1)
    assert.equal(4 * 100, rpc.rpc_sync("obs_1", "run", 1, 100))
    assert.equal(4 * 3 * 6, rpc.rpc_sync("obs_1", "run", 3, 3))
    assert.equal(100, flushes[1].rows)
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
    assert.is_true(workers.eventually(function() return #flushes == 1 end))
    local waits = rpc.rpc_async("obs_1", "once", nil, rl.ones(4))
    assert.is_true(workers.eventually(function() return rpc.counters().calls == 1 end))
    rpc.sleep(0.02)
    assert.equal(1, rpc.counters().calls)
    flushes = {}
    rpc.shutdown { timeout = 2 }
    assert.equal(1, #flushes)
    assert.is_true(waits ~= episode)
    group:finish { blocks = true }
    group = workers.group()
  end)
end)

describe("a batch", function()
  local group
  before_each(function() group = workers.group { call_timeout = 20 } end)
  after_each(function() group:finish { blocks = true } end)

  it("is read into its rows also when the messages are long", function()
    local shape = "u8[84,84,4]"
    declare({ input = { "obs " .. shape, "id i64" }, size = 48, delay = 5 }, function(obs, id)
      local sums = obs:to "f32":reshape(obs.shape[1], -1):mean(-1)
      return sums, id
    end)
    local body = [[
      rpc.register("run", function(steps, rows, base)
        for k = 1, steps do
          local obs = rl.full({ rows, 84, 84, 4 }, base + k, { dtype = "u8" })
          local ids = rl.full({ rows }, base + k, { dtype = "i64" })
          local mean, id = rpc.rpc_sync("test", "act", obs, ids)
          for _, list in ipairs { mean:totable(), id:totable() } do
            assert(#list == rows)
            for _, v in ipairs(list) do assert(v == base + k, v) end
          end
        end
        return steps
      end)
    ]]
    local names = {}
    for i = 1, 3 do
      names[i] = "obs_" .. i
      group:start(names[i], body)
    end
    rpc.wait_for(names)
    local futures = {}
    for i, name in ipairs(names) do futures[i] = rpc.rpc_async(name, "run", 8, 10 + i, 10 * i) end
    assert.same({ 8, 8, 8 }, rpc.wait_all(futures))
    assert.equal(24, rpc.counters().batched_calls)
    -- One that dies while its rows are on their way costs the others nothing.
    local dying = group:start("dying", body)
    rpc.wait_for { "dying" }
    local lost = rpc.rpc_async("dying", "run", 1000, 16, 100)
    for i, name in ipairs(names) do futures[i] = rpc.rpc_async(name, "run", 12, 10 + i, 10 * i) end
    rpc.sleep(0.02)
    dying:kill()
    assert.same({ 12, 12, 12 }, rpc.wait_all(futures))
    assert.equal("UNAVAILABLE", fails(lost.wait, lost).code)
  end)

  it("draws the same for a caller in whatever company it comes", function()
    local function actions(names)
      rl.manual_seed(7)
      declare({ delay = 5 }, function(obs, batch)
        local m = rl.distributions.Categorical { logits = obs }
        return m:sample { keys = batch.keys }
      end)
      return rpc.wait_all(all(names, "run", 10, 8))
    end
    -- The number of a worker's call counts: each is a new one.
    group:start("obs_1", OBSERVER)
    rpc.wait_for { "obs_1" }
    local alone = actions { "obs_1" }
    group:finish { blocks = true }
    group = workers.group { call_timeout = 20 }
    local names = start(group, 3)
    local together = actions { names[3], names[2], names[1] }
    assert.equal(alone[1], together[3])
    assert.is_true(together[1] ~= together[2] or together[2] ~= together[3])
  end)

  it("belongs to its function while that runs", function()
    local kept, view = nil, nil
    declare({ delay = 5 }, function(obs)
      kept, view = kept or obs, view or obs[1]
      return obs:sum(-1)
    end)
    start(group, 1)
    rpc.rpc_sync("obs_1", "run", 5, 2)
    local err = fails(function() return kept + 1 end)
    assert.equal("FAILED_PRECONDITION", err.code)
    assert.matches("rows of a batch that has been answered; keep a copy of it, t:clone%(%)",
      err.message)
    -- A view keeps its rows as they were.
    assert.same({ 1, 1, 1, 1 }, view:totable())
  end)

  it("holds whatever it is given, by whom it is left and how its function ends", function()
    local run = 0
    math.randomseed(7)
    declare({ input = { "obs f32[2,3]", "id u8", "info any" }, size = 16, delay = 1e-3 },
      function(obs, id, info, batch)
        run = run + 1
        assert(obs.shape[1] == batch.rows and id.shape[1] == batch.rows)
        assert(#batch.callers == batch.calls and batch.keys.shape[1] == batch.rows)
        local chance = math.random()
        if chance < 0.05 then error("it did not like them") end
        if chance < 0.1 then rpc.sleep(0.001) end
        if chance > 0.95 then return obs[1] end
        return obs, id, info
      end)
    local body = [[
      local r = math.random
      local dtypes = { "f32", "f64", "i32", "i64", "u8", "bool" }
      local value
      local function tensor()
        local shape = {}
        for i = 1, r(0, 4) do shape[i] = r(0, 3) end
        return rl.zeros(shape, { dtype = dtypes[r(#dtypes)] })
      end
      local function list(depth)
        local t = {}
        if depth > 4 then return t end
        for i = 1, r(0, 4) do t[r() < 0.5 and i or "k" .. i] = value(depth + 1) end
        return t
      end
      local makers = {
        function() end, function() return r() < 0.5 end, function() return r(-300, 300) end,
        function() return r() * 1e20 end, function() return ("x"):rep(r(0, 100)) end,
        function() return 0 / 0 end, list, tensor, tensor,
        function() return rl.zeros(r(1, 2000), 2, 3) end,
      }
      function value(depth) return makers[r(#makers)](depth) end
      local function call(to)
        local rows = r(1, 4)
        local args = { rl.zeros(rows, 2, 3), rl.zeros({ rows }, { dtype = "u8" }), list(1) }
        for k = 1, 3 do
          if r() < 0.15 then args[k] = value(0) end
        end
        return to:act((table.unpack or unpack)(args, 1, r() < 0.95 and 3 or r(0, 5)))
      end
      rpc.register("try", function(seed, count)
        math.randomseed(seed)
        local codes, open = {}, {}
        for _ = 1, count do
          local given = r() < 0.1 and { timeout = r() * 0.004 + 1e-5 } or nil
          open[#open + 1] = call(rpc.to("test"):rpc_async(given))
          if r() < 0.05 then open[#open]:cancel() end
          if #open > r(1, 40) or _ == count then
            for _, future in ipairs(open) do
              local ok, err = pcall(future.wait, future)
              local code = ok and "OK" or err.code
              codes[code] = (codes[code] or 0) + 1
            end
            open = {}
          end
        end
        return codes
      end)
    ]]
    local names, count = { "obs_1", "obs_2", "obs_3" }, FULL and 20000 or 300
    for _, name in ipairs(names) do group:start(name, body) end
    rpc.wait_for(names)
    local futures = {}
    for i, name in ipairs(names) do
      futures[i] = rpc.to(name):rpc_async { timeout = 500 }:try(i, count)
    end
    local allowed = {
      OK = true, INVALID_ARGUMENT = true, UNKNOWN = true, CANCELLED = true,
      DEADLINE_EXCEEDED = true,
    }
    for _, codes in ipairs(rpc.wait_all(futures)) do
      local sum = 0
      for code, n in pairs(codes) do
        assert.is_true(allowed[code], code)
        sum = sum + n
      end
      assert.equal(count, sum)
      assert.is_true(codes.OK > 0 and codes.INVALID_ARGUMENT > 0)
    end
    assert.is_true(run > 0)
    assert.is_true(workers.eventually(function() return rpc.counters().calls == 0 end))
  end)

  it("needs no memory that grows", function()
    declare({ size = 64, delay = 5, input = { "obs f32[4]" } }, function(obs)
      return obs:sum(-1)
    end)
    local names = start(group, 2)
    local device = rl.default_device()
    local rounds, per = 7, FULL and 20000 or 500
    local list = {}
    for i = 1, rounds do
      rpc.wait_all(all(names, "run", per, 16))
      list[i] = workers.held()
      list[i].allocated = rl.memory.allocated(device)
    end
    -- The collector decides how many tensors are kept for reuse, so the first rounds may add.
    local before, now = list[rounds - 2], list[rounds]
    assert.equal(before.allocated, now.allocated)
    assert.equal(before.fds, now.fds)
    assert.equal(before.threads, now.threads)
    assert.is_true(now.blocks - before.blocks < per / 10,
      ("%d blocks, then %d"):format(before.blocks, now.blocks))
    assert.is_true(rpc.counters().batches >= rounds * per)
    local rows = 0 -- the memory of the rows is seen as what it is
    for _, row in ipairs(rl.memory.report(device)) do
      if row.owner == "rpc" then rows = rows + row.bytes end
    end
    assert.is_true(rows >= 64 * 4 * 4, ("%d bytes of rows"):format(rows))
    assert.equal(0, rpc.counters().calls)
  end)
end)

describe("B11: a caller that", function()
  local group
  before_each(function()
    group = workers.group { call_timeout = 60, heartbeat = 5, timeout = 60 }
  end)
  after_each(function() group:finish { blocks = true } end)

  local body = [[
    local steps, goes = 0, true
    rpc.register("run", function()
      local obs = rl.ones(8, 4)
      while goes do
        rpc.rpc_sync("test", "act", obs)
        steps = steps + 1
      end
      return steps
    end)
    rpc.register("steps", function() return steps end)
    rpc.register("halt", function() goes = false end)
  ]]

  -- Steps a second of the first seven, over some time.
  local function rate(names, seconds)
    local function sum()
      local n = 0
      for i = 1, 7 do n = n + rpc.rpc_sync(names[i], "steps") end
      return n
    end
    local a, t = sum(), workers.now()
    rpc.sleep(seconds)
    local b, u = sum(), workers.now()
    return (b - a) / (u - t)
  end

  local function with_eight(what)
    -- Were the eighth waited for again and again, there would be 50 batches a second.
    declare({ size = 64, delay = 0.02 }, function(obs) return obs:sum(-1) end)
    local names, processes = {}, {}
    for i = 1, 8 do
      names[i] = "obs_" .. i
      processes[i] = group:start(names[i], body)
    end
    rpc.wait_for(names)
    local runs = all(names, "run")
    local seconds = FULL and 10 or 0.7
    local before = rate(names, seconds)
    local delays = rpc.counters().flushed_delay
    what(processes[8])
    rpc.sleep(0.1)
    delays = rpc.counters().flushed_delay - delays
    local after = rate(names, seconds)
    return before, after, delays, names, runs, processes
  end

  local function halt(names, runs, n)
    for i = 1, n do rpc.rpc_sync(names[i], "halt") end
    for i = 1, n do assert.is_true(runs[i]:wait() > 0) end
  end

  it("is stopped costs the others one delay", function()
    local before, after, delays, names, runs, processes = with_eight(function(process)
      process:kill(signal.SIGSTOP)
    end)
    assert.is_true(after > before * 0.1, ("%.0f/s, then %.0f/s"):format(before, after))
    figure("B11", "one of eight callers stopped: the others at %.0f %% of their rate (%.0f/s), "
      .. "%d flushes by delay in the 100 ms after", 100 * after / before, after, delays)
    processes[8]:kill(signal.SIGCONT)
    halt(names, runs, 8)
  end)

  it("dies costs the others nothing", function()
    local before, after, _, names, runs = with_eight(function(process)
      process:kill(signal.SIGKILL)
    end)
    assert.is_true(after > before * 0.1, ("%.0f/s, then %.0f/s"):format(before, after))
    figure("B11", "one of eight callers killed: the others at %.0f %% of their rate (%.0f/s)",
      100 * after / before, after)
    halt(names, runs, 7)
    assert.is_true(workers.eventually(function() return rpc.counters().calls == 0 end))
    -- One that comes under its name is in the batches again.
    group:start("obs_8", OBSERVER)
    rpc.wait_for { "obs_8" }
    assert.equal(40, rpc.rpc_sync("obs_8", "run", 4))
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
