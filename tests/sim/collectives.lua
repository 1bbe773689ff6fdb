--- Three trainers compute together while a simulation breaks their connections, and check what
-- must hold whatever breaks:
--   * each collective is over in its time, with a result or a failure of the right kind;
--   * a result is the right one, and a failure leaves its tensor as it was: no rank ever mistakes
--     one collective for another;
--   * they find together again when nothing breaks any more, and nothing is left.
--
--    rlengine --sim=17 --sim-faults=cut=2,slow=5 tests/sim/collectives.lua [--count=60]
local rl = require "rlengine"
local core = require "rlengine.core"
local sim = require "rlengine.sim"

local args = rl.args { count = { 60, "collectives" } }

local function random(n) return math.floor(sim.random(n)) end
local function violated(what, ...) error("broken: " .. what:format(...), 0) end

local SIZES = { 1, 7, 1000, 20000, 300000 }
local TRAINERS = 3

-- The k-th collective, the same at every rank: what it does to a tensor of x = rank + k.
local kinds = {
  function(group, x, k, given)
    group:all_reduce(x, given)
    return 3 * k + 3
  end,
  function(group, x, k, given)
    given.op = "mean"
    group:all_reduce(x, given)
    return k + 1
  end,
  function(group, x, k, given)
    given.from = k % TRAINERS
    group:broadcast(x, given)
    return k + k % TRAINERS
  end,
  function(group, x, k, given)
    given.to = k % TRAINERS
    group:reduce(x, given)
    return group.rank == given.to and 3 * k + 3 or k + group.rank
  end,
  function(group, x, k, given)
    local all = group:all_gather(x, given)
    for r = 1, TRAINERS do
      if all[r][1]:item() ~= k + r - 1 or all[r][-1]:item() ~= k + r - 1 then
        violated("collective %d gathered %s", k, tostring(all))
      end
    end
    return k + group.rank
  end,
}

local function one(group, k, seen, calm)
  local timeout = calm and 30 or (k % 4 == 0 and 0.2 or 5)
  local x = rl.full({ SIZES[k % #SIZES + 1] }, group.rank + k)
  local kind = kinds[(k * 7) % 11 % #kinds + 1]
  local ends = os.clock() + timeout
  local ok, result = pcall(kind, group, x, k, { name = "number " .. k, timeout = timeout })
  local left = tostring(result):find("has left", 1, true)
  if os.clock() - ends > 0.5 then violated("collective %d took %.3f s too long", k,
    os.clock() - ends) end
  if not ok then
    if type(result) ~= "table" or (result.code ~= "UNAVAILABLE"
      and result.code ~= "DEADLINE_EXCEEDED") then
      violated("collective %d: %s", k, tostring(result))
    end
    result = group.rank + k
  end
  if x[1]:item() ~= result or x[-1]:item() ~= result then
    violated("collective %d at rank %d: %s, not %g", k, group.rank, tostring(x), result)
  end
  seen[ok and "well" or "failed"] = seen[ok and "well" or "failed"] + 1
  if not ok then rl.rpc.sleep((random(50) + 1) / 1000) end
  return ok, left
end

-- Compiled code keeps what it used last. Bytes of an answer may still wait for a slow line.
local function nothing_left()
  for try = 1, 120 do
    if jit then jit.flush() end
    collectgarbage()
    collectgarbage()
    local works, futures = core.comm.works(), rl.rpc.counters().futures
    if works + futures == 0 then return end
    if try == 120 then
      print(rl.rpc.dump())
      violated("%d collectives and %d futures are left", works, futures)
    end
    rl.rpc.sleep(0.5)
  end
end

-- Somebody has not been connected for two minutes: its process is over, and the cut of a
-- connection has taken its goodbye.
local since = {}
local function gone(group)
  for _, name in ipairs(group.names) do
    if name == core.rpc.name() or core.rpc.connected(name) then
      since[name] = nil
    else
      since[name] = since[name] or os.clock()
      if os.clock() - since[name] > 120 then return true end
    end
  end
  return false
end

rl.launch {
  trainers = TRAINERS, observers_per_trainer = 0, args = args, prefix = true,
  rpc = { heartbeat = 0.3, timeout = 1, reconnect_for = 3600 },
  trainer = function()
    local group = rl.comm.group { connect_timeout = 60 }
    local seen = { well = 0, failed = 0 }
    for k = 1, args.count do
      if random(3) == 0 then rl.rpc.sleep(random(200) / 1000) end
      one(group, k, seen)
    end
    local ends, k, row = os.clock() + 600, args.count, 0
    -- Until three in a row are well; the last answer of all may be lost, then the others go first.
    repeat
      local ok, left = one(group, k + 1, seen, true)
      k, row = k + 1, ok and row + 1 or 0
      if os.clock() > ends then violated("they do not find together again") end
    until row == 3 or left or gone(group)
    nothing_left()
    print(("%d well, %d failed"):format(seen.well, seen.failed))
    rl.rpc.sleep(1) -- so that the others come to the same end
  end,
}
