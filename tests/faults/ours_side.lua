-- A worker of tests/faults/beside_torch.py; torch_side.py is the other side.
--   rlengine ours_side.lua ROLE NAME INDEX WORLD ADDRESS SECONDS
-- The token is $TOKEN. Prints lines "EVENT time text"; what they are is told there.

local rpc = require("rlengine").rpc
local time = require "posix.time"

local role, name, world, address = arg[1], arg[2], math.abs(tonumber(arg[4])), arg[5]
local seconds = tonumber(arg[6])
local CALL_TIMEOUT = 20

local function now()
  local t = time.clock_gettime(time.CLOCK_REALTIME)
  return t.tv_sec + t.tv_nsec * 1e-9
end

local function say(event, ...)
  local parts = { ... }
  for i = 1, #parts do parts[i] = tostring(parts[i]) end
  print(("%s %.6f %s"):format(event, now(), table.concat(parts, " ")))
  io.stdout:flush()
end

rpc.register("run_episode", function(span)
  rpc.sleep(span)
  return 1
end)
rpc.register("slow", function(span)
  say "BEGUN"
  local ok, err = pcall(rpc.sleep, span)
  say("FINISHED", ok and "the handler ran to its end" or "the handler is told: " .. tostring(err))
end)
rpc.register("nested", function(depth, other, me)
  if depth == 0 then return 0 end
  return 1 + rpc.rpc_sync(other, "nested", depth - 1, me, other)
end)

local function join()
  local options = {
    name = name, token = os.getenv "TOKEN", heartbeat = 0.3, timeout = 1, insecure_network = true,
    connect_timeout = 60,
  }
  options[role == "trainer" and "listen" or "connect"] = address
  say "STARTING"
  local ok, err = pcall(rpc.init, options)
  if not ok then
    say("REFUSED", err)
    os.exit(1)
  end
  say "JOINED"
end

local scenarios = {}

function scenarios.rounds(observers)
  local ends, number, away = now() + seconds, 0, {}
  while now() < ends do
    local futures, asked = {}, 0
    for _, each in ipairs(observers) do
      if not away[each] then
        futures[each] = rpc.to(each):rpc_async { timeout = CALL_TIMEOUT }:run_episode(0.2)
        asked = asked + 1
      end
    end
    for i = #observers, 1, -1 do -- the one it happens to is heard first
      local each = observers[i]
      local ok, err = true, nil
      if futures[each] then ok, err = pcall(futures[each].wait, futures[each]) end
      if not ok then
        say("ERROR", each, err)
        away[each] = true
      end
    end
    for _, each in ipairs(observers) do
      if away[each] and rpc.worker_info(each).connected then
        away[each] = nil
        say("BACK", each)
      end
    end
    number = number + 1
    say("ROUND", number, asked)
    if asked == 0 then rpc.sleep(0.2) end
  end
end

function scenarios.deadline(observers)
  local to = rpc.to(observers[#observers]):rpc_sync { timeout = 0.2 }
  local ok, err = pcall(to.slow, to, 5)
  if not ok then say("ERROR", observers[#observers], err) end
  rpc.sleep(6)
end

function scenarios.nested(observers)
  local futures, to = {}, rpc.to(observers[1]):rpc_async { timeout = seconds }
  for i = 1, 1000 do futures[i] = to:nested(8, "trainer", observers[1]) end
  local done, failure = 0, ""
  for _, each in ipairs(rpc.wait_all(futures, { fail_fast = false })) do
    if each == 8 then done = done + 1 else failure = each end
  end
  say("NESTED", done, failure)
end

join()
if role == "trainer" then
  local observers = {}
  for i = 1, world - 1 do observers[i] = "obs_" .. i end
  rpc.wait_for(observers, { timeout = 60 })
  for _, each in ipairs(observers) do rpc.rpc_sync(each, "run_episode", 0) end
  say "READY"
  scenarios[os.getenv "SCENARIO" or "rounds"](observers)
  say "END"
  rpc.shutdown { timeout = 0.1 }
elseif role == "intruder" then
  local ok, err = pcall(rpc.rpc_sync, "trainer", "os.getpid")
  say(ok and "RAN" or "REFUSED", err)
else
  pcall(rpc.serve)
end
