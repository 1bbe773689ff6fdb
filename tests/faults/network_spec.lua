-- Faults of the network itself: a link that goes down, delay, loss. In a network namespace,
-- where there are the rights for one; silence_spec.lua has the same without any.
package.path = "tests/support/?.lua;" .. package.path
local faults = require "faults"
local figure = require "figure"
local netns = require "netns"
local workers = require "workers"

-- Both ends. Each line they print has the time in front.
local TRAINER = [[
local rpc = require("rlengine").rpc
local t = require "posix.time"
local function say(...)
  local now = t.clock_gettime(t.CLOCK_REALTIME)
  print(("%%d.%%06d"):format(now.tv_sec, now.tv_nsec / 1000), ...)
  io.stdout:flush()
end
local x = 1
rpc.register("next", function(i) x = (x * 16807 + i) %% 2147483647 return x end)
local address = rpc.init { name = "trainer", listen = "tcp://127.0.0.1:0", token = %q,
  heartbeat = 0.3, timeout = 1 }
say("listening", address[1])
rpc.wait_for { "obs_3" }
local function fds() return #require("posix.dirent").dir "/proc/self/fd" end
local before = fds()
say("joined")
say("future", pcall(rpc.rpc_sync, "obs_3", %q, %d))
rpc.sleep(%g)
say("descriptors", before - fds())
rpc.shutdown { timeout = 0.1 }
]]

local OBSERVER = [[
local rpc = require("rlengine").rpc
rpc.register("sleep", function() print "asked" io.stdout:flush() rpc.sleep(60) end)
rpc.register("learn", function(n)
  local x
  for i = 1, n do x = rpc.rpc_sync("trainer", "next", i) end
  return x
end)
rpc.init { name = "obs_3", connect = %q, token = %q, heartbeat = 0.3, timeout = %g,
  reconnect_for = 0 }
pcall(rpc.serve)
]]

local function start(world, net, method, argument, rest)
  local folder = world.group.folder
  local program = net:wrapper(folder .. "/in-net")
  local process = require "process"
  process.write(folder .. "/t.lua", TRAINER:format(workers.token, method, argument, rest))
  local trainer = world:worker(world.group:run(folder .. "/t.lua", "trainer_net", nil, program))
  local _, line = trainer:said("listening", 10)
  process.write(folder .. "/o.lua", OBSERVER:format(line:match "tcp://%S+", workers.token, 1))
  local obs = world:worker(world.group:run(folder .. "/o.lua", "obs_net", nil, program))
  trainer:said("joined", 10)
  return trainer, obs
end

describe("a network", function()
  local net, why
  before_each(function() net, why = netns.new() end)
  after_each(function()
    if net then net:finish() end
  end)

  it("F10: whose link goes down is noticed at both ends", function()
    if not net then pending(why) return end
    faults.row(function(world)
      local trainer, obs = start(world, net, "sleep", 0, 1)
      obs:said("asked", 10)
      local down = faults.clock()
      net:check "ip link set lo down"
      local at = trainer:said("future", 10)
      trainer:said 'UNAVAILABLE: worker "obs_3" did not answer for'
      trainer:said 'worker "obs_3" lost: did not answer for'
      local there = obs:said 'worker "trainer" lost: did not answer for'
      trainer:said("descriptors\t1", 10) -- of the connection
      assert.is_true(at - down >= 0.65 and at - down < 5, at - down)
      assert.is_true(there - down >= 0.65 and there - down < 5, there - down)
      assert.is_true(world:eventually(function() return trainer:poll() and obs:poll() end))
      figure("F10", "link down: noticed after %.2f s here, %.2f s there (timeout 1 s, ping after "
        .. "0.3 s)", at - down, there - down)
    end)()
  end)

  it("F13: with delay, loss and packets out of order loses nobody", function()
    if not net then pending(why) return end
    local netem = net:sh "tc qdisc add dev lo root netem delay 50ms 20ms loss 1% reorder 5%"
    if netem.code ~= 0 then
      pending("needs tc with netem, which this kernel or machine lacks: " ..
        netem.err:gsub("%s+$", ""))
      return
    end
    faults.row(function(world)
      local n = faults.count(20, 6000) -- the latter takes ten minutes
      local trainer, obs = start(world, net, "learn", n, 0)
      local began = faults.clock()
      local at, line = trainer:said("future", faults.count(30, 1500))
      local x = 1
      for i = 1, n do x = (x * 16807 + i) % 2147483647 end
      assert.matches("future\ttrue\t" .. ("%d"):format(x), line)
      assert.is_nil(trainer:output():find "lost")
      assert.is_true(world:eventually(function() return trainer:poll() and obs:poll() end))
      figure("F13", "netem delay 50±20 ms, loss 1 %%, reorder 5 %%, for %.0f s: no disconnect, the "
        .. "same trace", at - began)
    end, { seconds = 120 })()
  end)
end)
