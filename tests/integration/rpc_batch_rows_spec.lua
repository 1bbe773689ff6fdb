-- Batched functions: where the rows are, what they cost, and callers that die or hang.
package.path = "tests/support/?.lua;" .. package.path
local batched = require "batched"
local rl = require "rlengine"
local fails = require "fails"
local figure = require "figure"
local signal = require "posix.signal"
local workers = require "workers"
local rpc = rl.rpc

local FULL = os.getenv "RLE_FULL" == "1"
local OBSERVER, declare, start, all = batched.OBSERVER, batched.declare, batched.start, batched.all

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
    local kept, view, info = nil, nil, nil
    declare({ delay = 5 }, function(obs, batch)
      kept, view, info = kept or obs, view or obs[1], info or batch
      -- What it is told of its batch it may also ask for in a coroutine of its own.
      assert(coroutine.wrap(function() return batch.callers[1] end)() == "obs_1")
      return obs:sum(-1)
    end)
    start(group, 1)
    rpc.rpc_sync("obs_1", "run", 5, 2)
    local err = fails(function() return kept + 1 end)
    assert.equal("FAILED_PRECONDITION", err.code)
    assert.matches("rows of a batch that has been answered; keep a copy of it, t:clone%(%)",
      err.message)
    assert.same({ 2, "obs_1" }, { info.rows, info.callers[1] })
    assert.is_nil(info.keys)
    -- A view keeps its rows as they were.
    assert.same({ 1, 1, 1, 1 }, view:totable())
  end)

  it("keeps the rows of who calls while its function waits in a coroutine of its own", function()
    local third
    declare({ size = 2, delay = 5 }, function(obs)
      if obs:totable()[1][1] == 1 then
        third = rpc.rpc_async("obs_3", "once", nil, rl.full({ 4 }, 30))
        coroutine.wrap(function() -- until its call has come
          repeat rpc.sleep(0.005) until rpc.counters().calls == 3
        end)()
      end
      return obs:sum(-1)
    end)
    -- Somebody who is waited for, and does not call again.
    group:start("obs_4", [[
      rpc.on_join(function() rpc.rpc_sync("test", "act", rl.full({ 4 }, 7)) end)
    ]])
    start(group, 3)
    repeat rpc.sleep(0.005) until rpc.counters().batched_calls == 1
    local first = rpc.rpc_async("obs_1", "once", nil, rl.full({ 4 }, 1))
    repeat rpc.sleep(0.005) until rpc.counters().calls == 1
    -- It finds no room, so the first is answered, which takes until the third has called.
    local second = rpc.rpc_async("obs_2", "once", nil, rl.full({ 2, 4 }, 2))
    assert.equal(4, first:wait())
    assert.same({ 8, 8 }, second:wait():totable())
    assert.equal(120, third:wait())
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
