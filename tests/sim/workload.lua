--- A trainer and its observers call each other in every way there is, while a simulation breaks
-- what it can, and check what must hold whatever breaks:
--   * each future is over once, in time, with a result or a failure of the right kind;
--   * no call is executed twice; one whose result came was executed; one whose failure says
--     "not executed" was not, and never will be;
--   * in the end nothing is left of calls and references.
--
--    rlengine --sim=17 --sim-faults=cut=2,kill=5 tests/sim/workload.lua [--calls=60] [--stops=1]
local rl = require "rlengine"
local sim = require "rlengine.sim"
local rpc = rl.rpc

local args = rl.args {
  calls = { 60, "calls of the trainer" },
  observers = { 3, "observers" },
  stops = { 0, "1: processes may stand still, so nothing has to be over in time" },
}

local function random(n) return math.floor(sim.random(n)) end
local function chance(of_100) return random(100) < of_100 end

local function violated(what, ...) error("broken: " .. what:format(...), 0) end

-- Kinds of failure that may come of broken lines and ended time.
local allowed = {
  UNAVAILABLE = true, DEADLINE_EXCEEDED = true, CANCELLED = true, NOT_FOUND = true,
  FAILED_PRECONDITION = true,
}

-- ---- what observers do ----

local Thing = rpc.class("Thing", { "add", "pass" })
function Thing:init(value) self.value = value end
function Thing:add(n)
  self.value = self.value + n
  return self.value
end
-- Calls an object of perhaps a third worker.
function Thing:pass(other, n) return other:rpc_sync { timeout = 3 }:add(n) end

rpc.register("step", function(agent, id, text)
  if chance(30) then rpc.sleep(random(300) / 1000) end
  agent:rpc_sync():note(id, #text)
  if chance(10) then error { code = "ABORTED", message = "on purpose" } end
  return id, #text
end)
-- Compiled code keeps the functions it has called, and with them what those belong to.
local function collect()
  if jit then jit.flush() end
  collectgarbage()
  collectgarbage()
end
rpc.register("collect", collect)
rpc.register("big", function(tensor) return tensor * 2 end)
rpc.register("deep", function(agent, depth)
  return agent:rpc_sync():deeper(depth)
end)

-- ---- the trainer ----

local Agent = rpc.class("Agent", { "note", "deeper" })
function Agent:init(ctx)
  self.noted, self.denied, self.observers, self.things = {}, {}, ctx.observers, {}
end
function Agent:note(id, size)
  self.noted[id] = (self.noted[id] or 0) + 1
  if self.noted[id] > 1 then violated("call %d was executed %d times", id, self.noted[id]) end
  if self.denied[id] then
    violated("call %d was executed after it had failed as not executed", id)
  end
  self.size = size
end
function Agent:deeper(depth)
  if depth == 0 then return 0 end
  local name = self.observers[random(#self.observers) + 1]
  return 1 + rpc.to(name):rpc_sync():deep(rpc.rref(self), depth - 1)
end

local agent, seen

-- What became of a call: `id` when it was a step.
local function judge(what, id, ok, result)
  seen.over = seen.over + 1
  if ok then
    seen.done = seen.done + 1
    if id and agent.noted[id] ~= 1 then violated("call %d came back but was not executed", id) end
    return
  end
  local err = result
  if type(err) ~= "table" and type(err) ~= "userdata" then violated("%s failed with %s", what,
    tostring(err)) end
  if tostring(err):find("broken: ", 1, true) then error(err, 0) end
  if tostring(err):find("on purpose", 1, true) then return end
  -- A reference to an object that could not be made cannot be handed on.
  if what == "pass" and tostring(err):find("could not be made", 1, true) then return end
  if not allowed[err.code] then violated("%s failed as it must not: %s", what, tostring(err)) end
  if err.outcome == "not executed" and id and not err.via then
    if agent.noted[id] then violated("call %d was executed: %s", id, tostring(err)) end
    agent.denied[id] = true
  end
end

-- Wait for a future, which has to be over when its time is.
local function finish(entry)
  local pending, ends = not entry.future:done(), math.max(entry.ends, os.clock())
  local ok, result = pcall(entry.future.wait, entry.future)
  local late = os.clock() - ends
  if args.stops == 0 and pending and late > 0.5 then
    violated("%s was over %.3f s after its time", entry.what, late)
  end
  if not entry.future:done() then violated("%s is not over", entry.what) end
  judge(entry.what, entry.id, ok, result)
end

local ids = 0
local makers = {
  function(to, timeout)
    ids = ids + 1
    local text = ("x"):rep(chance(10) and random(200000) or random(100))
    return { id = ids, what = "step", future = to:rpc_async { timeout = timeout }:step(
      rpc.rref(agent), ids, text) }
  end,
  function(to, timeout)
    return { what = "big", future = to:rpc_async { timeout = timeout }:big(
      rl.zeros(random(300) + 1, random(300) + 1)) }
  end,
  function(to, timeout)
    return { what = "deep", future = to:rpc_async { timeout = timeout }:deep(rpc.rref(agent),
      random(4)) }
  end,
  function(_, timeout, name)
    local thing = rpc.remote(name, "Thing", 1)
    if chance(50) then agent.things[random(3) + 1] = thing end
    return { what = "add", future = thing:rpc_async { timeout = timeout }:add(1) }
  end,
  function(_, timeout)
    local a, b = agent.things[1], agent.things[2]
    if not (a and b) then return end
    -- Handing a reference on takes calls of its own, which fail where it is called.
    local ok, future = pcall(function()
      return a:rpc_async { timeout = timeout }:pass(b, 1)
    end)
    if not ok then
      judge("pass", nil, false, future)
      return
    end
    return { what = "pass", future = future }
  end,
}

local function call(name)
  local timeout = chance(50) and 10 or (random(500) + 1) / 1000
  local ends = os.clock() + timeout
  local entry = makers[random(#makers) + 1](rpc.to(name), timeout, name)
  if not entry then return end
  entry.ends = math.max(ends, os.clock())
  if chance(10) then entry.future:cancel() end
  return entry
end

local function all_calls()
  local open, made = {}, 0
  while made < args.calls do
    made = made + 1
    if chance(20) then rpc.sleep(random(400) / 1000) end
    local entry = call(agent.observers[random(#agent.observers) + 1])
    if entry then open[#open + 1] = entry end
    while #open > random(8) do finish(table.remove(open, random(#open) + 1)) end
  end
  for _, entry in ipairs(open) do finish(entry) end
end

-- Calls and references, a while after the last one was used.
local function nothing_left()
  local function left()
    collect()
    local c = rpc.counters()
    local held = 0
    for _, entry in ipairs(rpc.refs()) do
      if entry.holder ~= "" then held = held + 1 end
    end
    return c.futures + c.calls + held, c.futures, c.calls, held
  end
  local ends = os.clock() + 900
  while left() > 0 and os.clock() < ends do
    for _, name in ipairs(agent.observers) do
      pcall(function() rpc.to(name):rpc_sync { timeout = 2 }:collect() end)
    end
    rpc.sleep(1)
  end
  local any, futures, calls, held = left()
  if any > 0 then
    print(rpc.dump())
    violated("%d futures, %d calls and %d references are left", futures, calls, held)
  end
end

rl.launch {
  trainers = 1, observers_per_trainer = args.observers, args = args, prefix = true,
  restarts = { max = 1000, within = 60, backoff = 0.05 },
  rpc = { heartbeat = 0.3, timeout = 1 },
  trainer = function(ctx)
    seen = { over = 0, done = 0 }
    agent = Agent(ctx)
    all_calls()
    agent.things = {}
    nothing_left()
    print(("%d calls over, %d of them well"):format(seen.over, seen.done))
  end,
}
