--- rpc_lua.lua: remote calls from Lua, as ratios against a bare libevent echo in C (bench_rpc)
-- on the same cores, and the seed's loop: two observers, one trainer, two calls a step.
--
--   build/rlengine tests/bench/rpc_lua.lua [rounds]
--
-- The best of several rounds counts; echo and calls alternate. Besides the rate by the clock
-- there is the processor time of all processes, which others on the machine disturb less.

local rl = require "rlengine"
local rpc = rl.rpc
local time = require "posix.time"

local TOKEN = ("0123456789abcdef"):rep(2)

local function now()
  local t = time.clock_gettime(1)
  return t.tv_sec + t.tv_nsec * 1e-9
end

-- ---- what the other processes run ----

local Agent = rpc.class("Agent", { "select_action", "report_reward" })
function Agent:init(policy) self.policy, self.calls, self.rewards = policy, 0, { 0, 0 } end

-- About 5 us of work where the seed runs its policy.
local function five_microseconds()
  local x = 0
  for i = 1, 1500 do x = x + i % 7 end
  return x
end

function Agent:select_action(_, _)
  self.calls = self.calls + 1
  if self.policy then five_microseconds() end
  return 1
end

function Agent:report_reward(id, reward)
  self.calls = self.calls + 1
  self.rewards[id] = self.rewards[id] + reward
end

local Observer = rpc.class("Observer", { "run_episode" })
function Observer:init(id) self.id = id end
function Observer:run_episode(agent, steps)
  local state = rl.tensor { 0.1, 0.2, 0.3, 0.4 }
  for _ = 1, steps do
    agent:rpc_sync():select_action(self.id, state)
    agent:rpc_sync():report_reward(self.id, 1)
  end
  return steps
end

if arg[1] == "server" then
  rpc.register("empty", function() end)
  rpc.register("action", function() return 1 end)
  rpc.register("tensor", function(t) return t end)
  rpc.init { name = "server", connect = arg[2], token = TOKEN }
  rpc.serve()
  os.exit(0)
elseif arg[1] == "observer" then
  rpc.init { name = arg[3], connect = arg[2], token = TOKEN }
  rpc.serve()
  os.exit(0)
end

-- ---- measuring ----

local rounds = tonumber(arg[1]) or 5
local program = arg[-1] or "build/rlengine"
local folder = io.popen("mktemp -d /tmp/rlengine-bench-XXXXXX"):read "*l"
local address = ("unix:%s/t.sock"):format(folder)
local last_core = tonumber(io.popen("nproc"):read "*l") - 1
local here = arg[0]

local function start(core, role, name)
  os.execute(("%s %s %s %s %s %s &"):format(core and "taskset -c " .. core or "", program, here,
    role, address, name))
end

-- Seconds of processor time of some processes so far.
local function cpu(pids)
  local sum = 0
  for _, pid in ipairs(pids) do
    local f = io.open(("/proc/%d/schedstat"):format(pid))
    sum = sum + f:read "*n" * 1e-9
    f:close()
  end
  return sum
end

local function echo(cores)
  local pipe = io.popen(("build/bench/bench_rpc echo %d"):format(cores))
  local rate, us = pipe:read("*a"):match "echo (%d+) ([%d.]+)"
  pipe:close()
  return tonumber(rate), tonumber(us)
end

-- Calls a second, microseconds of processor time a call.
local function measure(calls, pids, fn)
  local c0, t0 = cpu(pids), now()
  fn(calls)
  local t1, c1 = now(), cpu(pids)
  return calls / (t1 - t0), (c1 - c0) / calls * 1e6
end

local best = {}
local function keep(name, rate, us)
  local b = best[name] or { 0, math.huge }
  best[name] = { math.max(b[1], rate), math.min(b[2], us) }
end

local pid = require("posix.unistd").getpid()

local function calls(cores)
  os.execute(("taskset -pc %d %d >/dev/null"):format(last_core, pid))
  rpc.init { name = "bench", listen = address, token = TOKEN }
  start(cores == 2 and 0 or last_core, "server", "")
  rpc.wait_for { "server" }
  local to, row = rpc.to("server"):rpc_sync(), rl.tensor { 1, 2, 3, 4 }
  local both = { pid, rpc.worker_info("server").pid }
  for _ = 1, rounds do
    keep(cores .. "echo", echo(cores))
    keep(cores .. "empty", measure(20000, both, function(n)
      for _ = 1, n do to:empty() end
    end))
    keep(cores .. "tensor", measure(20000, both, function(n)
      for _ = 1, n do to:action(row) end
    end))
    keep(cores .. "back", measure(20000, both, function(n)
      for _ = 1, n do to:tensor(row) end
    end))
  end
  rpc.shutdown()
end

calls(2)
calls(1)

-- The seed's loop, on all cores.
os.execute(("taskset -pc 0-%d %d >/dev/null"):format(last_core, pid))
rpc.init { name = "bench", listen = address, token = TOKEN }
start(nil, "observer", "obs_1")
start(nil, "observer", "obs_2")
rpc.wait_for { "obs_1", "obs_2" }
local observers = { rpc.remote("obs_1", "Observer", 1), rpc.remote("obs_2", "Observer", 2) }
local function loop(agent, steps)
  local futures = {}
  for i = 1, 2 do
    futures[i] = observers[i]:rpc_async():run_episode(rpc.rref(agent), steps)
  end
  rpc.wait_all(futures)
end
local plain, busy = Agent(false), Agent(true)
local all = { pid, rpc.worker_info("obs_1").pid, rpc.worker_info("obs_2").pid }
for _ = 1, rounds do
  keep("loop", measure(20000, all, function() loop(plain, 5000) end))
  keep("seed", measure(20000, all, function() loop(busy, 5000) end))
end
local t0 = os.clock()
for _ = 1, 20000 do five_microseconds() end
local work = (os.clock() - t0) / 20000 * 1e6
rpc.shutdown()
os.execute("rm -rf " .. folder)

local function show(what, cores, name)
  local b, e = best[cores .. name], best[cores .. "echo"]
  print(("  %-32s %8.0f /s, %5.2f us of cpu; %3.0f %% and %3.0f %% of the echo"):format(what, b[1],
    b[2], 100 * b[1] / e[1], 100 * e[2] / b[2]))
end
for cores = 2, 1, -1 do
  print(cores == 2 and "two cores" or "one core")
  show("bare echo in C", cores, "echo")
  show("empty call", cores, "empty")
  show("f32[4] there, a number back", cores, "tensor")
  show("f32[4] there and back", cores, "back")
end
print(("seed's loop, 2 observers, no policy  %8.0f calls/s, %5.2f us of cpu a call")
  :format(best.loop[1], best.loop[2]))
print(("with %.1f us of policy for each action %6.0f calls/s, %5.2f us of cpu a call")
  :format(work, best.seed[1], best.seed[2]))
