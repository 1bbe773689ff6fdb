--- rpc_clients.lua: one worker that answers and clients that call it for some seconds, each a
-- process of its own; rlengine's side of rpc_vs_torch.py.
--
--   build/rlengine tests/bench/rpc_clients.lua --clients=8 --seconds=3
--
-- Prints calls a second of all clients together: "empty RATE" and "tensor RATE".
local rl = require "rlengine"
local rpc = rl.rpc

local args = rl.args {
  clients = { 1, "client processes" },
  seconds = { 3, "how long each kind of call is made" },
}

local now = require("posix.time").clock_gettime
local function seconds()
  local t = now(1)
  return t.tv_sec + t.tv_nsec * 1e-9
end

rpc.register("empty", function() end)
rpc.register("action", function(_) return 1 end)

--- Call for some seconds; -> how often, and how long it took.
rpc.register("measure", function(name, duration)
  local call, row = rpc.to("agent_0"):rpc_sync(), rl.tensor { 1, 2, 3, 4 }
  local fn = name == "tensor" and function() call:action(row) end or function() call:empty() end
  local count, start = 0, seconds()
  repeat
    for _ = 1, 100 do fn() end
    count = count + 100
  until seconds() - start > duration
  return count, seconds() - start
end)

rl.launch {
  trainers = 1, observers_per_trainer = args.clients,
  trainer = function(ctx)
    for _, name in ipairs { "empty", "tensor" } do
      local futures, rate = {}, 0
      for i, client in ipairs(ctx.observers) do
        futures[i] = rpc.rpc_async(client, "measure", name, args.seconds)
      end
      for _, future in ipairs(futures) do
        local count, took = future:wait()
        rate = rate + count / took
      end
      print(("%s %.0f"):format(name, rate))
    end
  end,
}
