--- batched.lua: observers and a batched function "act" that they call, for tests of rpc.batched.

local rl = require "rlengine"
local rpc = rl.rpc

local batched = {}

--- What each flush since the last declare was given: {rows, callers, counts}.
batched.flushes = {}

--- run(steps, rows, pause): so many calls with rows of 1, 2, 3 ...; returns the sum of what came
-- back. once(options, ...): one call with these arguments. ask: as once, but says how it failed.
batched.OBSERVER = [[
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

--- `act` adds the four numbers of each row up, unless fn is given.
function batched.declare(given, fn)
  batched.flushes = {}
  given.input = given.input or { "obs f32[4]" }
  rpc.register("act", rpc.batched(fn or function(obs, batch)
    table.insert(batched.flushes,
      { rows = batch.rows, callers = batch.callers, counts = batch.counts })
    return obs:sum(-1)
  end, given))
end

--- Start the observers obs_1 ... obs_n; returns their names.
function batched.start(group, n)
  local names = {}
  for i = 1, n do
    names[i] = "obs_" .. i
    group:start(names[i], batched.OBSERVER)
  end
  rpc.wait_for(names)
  return names
end

--- The same call to each; returns the futures.
function batched.all(names, name, ...)
  local futures = {}
  for i, worker in ipairs(names) do futures[i] = rpc.rpc_async(worker, name, ...) end
  return futures
end

return batched
