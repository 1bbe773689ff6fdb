--- rpc_batch.lua: environment steps a second when a policy in one process acts for observers in
-- others, with calls answered one by one and together, as ratios in one run.
--
--   build/rlengine tests/bench/rpc_batch.lua [observers] [seconds] [rounds]
--
--   seed      the seed's loop: an environment each, two calls for every step, select_action
--             with an observation and report_reward
--   batched   64 environments each, one call for all their steps, rpc.batched
--   rows      the calls of a vector of 64, not batched
-- and for 8 observers with an environment each, one call a step:
--   single    a call at a time through the policy
--   together  rpc.batched, which waits until all have called
--   at once   rpc.batched with when_idle: who is there is answered as soon as it can be
--
-- Everywhere the same policy (4 - 128 - 2, an action drawn from it) and CartPole's own steps.
-- The kinds alternate; the best of the rounds counts. Besides the rate by the clock there is the
-- processor time of the policy's process for each call, which others on the machine disturb less,
-- and which bounds the rate where observers have cores of their own.

local rl = require "rlengine"
local rpc = rl.rpc
local time = require "posix.time"

local TOKEN, ENVS = ("0123456789abcdef"):rep(2), 64

local function now()
  local t = time.clock_gettime(1)
  return t.tv_sec + t.tv_nsec * 1e-9
end

-- ---- what observers run ----

local Observer = rpc.class("Observer", { "seed", "vector", "single" })
function Observer:init(id)
  self.id, self.env = id, rl.env.make "CartPole-v1"
  self.envs = rl.env.vector("CartPole-v1", { num_envs = ENVS, autoreset = "same_step" })
  self.state, self.states = self.env:reset { seed = id }, self.envs:reset { seed = id * 1000 }
end

-- Each runs until the time is over and returns its environment steps.
function Observer:seed(agent, seconds)
  local state, steps, over = self.state, 0, now() + seconds
  while now() < over do
    for _ = 1, 20 do
      local reward, terminated, truncated
      local action = agent:rpc_sync():plain(state)
      state, reward, terminated, truncated = self.env:step(action)
      agent:rpc_sync():report_reward(self.id, reward)
      if terminated or truncated then state = self.env:reset() end
    end
    steps = steps + 20
  end
  self.state = state
  return steps
end

function Observer:single(agent, seconds, name)
  local state, steps, over = self.state, 0, now() + seconds
  while now() < over do
    local to = agent:rpc_sync()
    for _ = 1, 20 do
      local _, terminated, truncated
      state, _, terminated, truncated = self.env:step(to[name](to, state))
      if terminated or truncated then state = self.env:reset() end
    end
    steps = steps + 20
  end
  self.state = state
  return steps
end

function Observer:vector(agent, seconds, name)
  local states, steps, over = self.states, 0, now() + seconds
  while now() < over do
    local to = agent:rpc_sync()
    for _ = 1, 10 do states = self.envs:step(to[name](to, states)) end
    steps = steps + 10 * ENVS
  end
  self.states = states
  return steps
end

if arg[1] == "observer" then
  rpc.init { name = arg[3], connect = arg[2], token = TOKEN }
  rpc.serve()
  os.exit(0)
end

-- ---- the policy ----

local Agent = rpc.class("Agent", { "plain", "rows", "batched", "at_once", "report_reward" })
function Agent:init()
  local nn = rl.nn
  rl.manual_seed(1)
  self.policy = nn.Sequential(nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 2))
  self.rewards = {}
end
function Agent:plain(state) return (self.policy:act(state)):item() end
function Agent:rows(states) return (self.policy:act(states)) end
local function act(self, states, batch)
  return (self.policy:act(states, { keys = batch.keys }))
end
local input = { "state f32[4]" }
Agent.batched = rpc.batched(act, { input = input, size = 1024 })
Agent.at_once = rpc.batched(act, { input = input, size = 1024, when_idle = true })
function Agent:report_reward(id, reward) self.rewards[id] = (self.rewards[id] or 0) + reward end

-- ---- measuring ----

local observers, seconds = tonumber(arg[1]) or 2, tonumber(arg[2]) or 1
local rounds = tonumber(arg[3]) or 3
local program, here = arg[-1] or "build/rlengine", arg[0]
local folder = io.popen("mktemp -d /tmp/rlengine-bench-XXXXXX"):read "*l"
local address = ("unix:%s/t.sock"):format(folder)

rpc.init { name = "bench", listen = address, token = TOKEN }
local names = {}
for i = 1, math.max(observers, 8) do
  names[i] = "obs_" .. i
  os.execute(("%s %s observer %s %s &"):format(program, here, address, names[i]))
end
rpc.wait_for(names)
local refs = {}
for i, name in ipairs(names) do refs[i] = rpc.remote(name, "Observer", i) end
local agent = rpc.rref(Agent())

-- Steps a second of the first n observers.
local function measure(n, method, name)
  local futures, sum, t0 = {}, 0, now()
  for i = 1, n do
    local to = refs[i]:rpc_async { timeout = 60 + seconds }
    futures[i] = to[method](to, agent, seconds, name)
  end
  for _, steps in ipairs(rpc.wait_all(futures)) do sum = sum + steps end
  return sum / (now() - t0)
end

local kinds = {
  { "seed", observers, "seed" },
  { "batched", observers, "vector", "batched" },
  { "rows", observers, "vector", "rows" },
  { "single", 8, "single", "plain" },
  { "together", 8, "single", "batched" },
  { "at once", 8, "single", "at_once" },
}
local best, share, cpu = {}, {}, {}
for _ = 1, rounds do
  for _, kind in ipairs(kinds) do
    local name, before, clock = kind[1], rpc.counters(), os.clock()
    local rate = measure(kind[2], kind[3], kind[4])
    clock = os.clock() - clock
    local after = rpc.counters()
    local us = clock / (after.calls_served - before.calls_served) * 1e6
    cpu[name] = math.min(cpu[name] or math.huge, us)
    if rate > (best[name] or 0) then
      best[name] = rate
      share[name] = (after.batched_calls - before.batched_calls)
        / math.max(after.batches - before.batches, 1)
    end
  end
end
rpc.shutdown()
os.execute("rm -rf " .. folder)

local function show(what, name)
  local calls = share[name] > 0 and ("   %.1f calls a batch"):format(share[name]) or ""
  print(("  %-38s %10.0f /s   %5.1f us of cpu a call%s"):format(what, best[name], cpu[name], calls))
end
print(("environment steps, %d observers"):format(observers))
show("the seed's loop, two calls a step", "seed")
show(ENVS .. " environments each, batched", "batched")
show(ENVS .. " environments each, a call at a time", "rows")
print(("  batched : seed                         %10.1f x   (goal: 20)"):format(
  best.batched / best.seed))
print "calls of 8 observers with an environment each, one a step"
show("a call at a time", "single")
show("batched", "together")
show("batched, when_idle", "at once")
print(("  batched : a call at a time             %10.2f x; %.2f x by processor time"):format(
  math.max(best.together, best["at once"]) / best.single,
  cpu.single / math.min(cpu.together, cpu["at once"])))
