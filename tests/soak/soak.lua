--- Trains for as long as asked while observers are killed, stopped, hang, crash and raise, and
-- says whether anything grew.
--
--   rlengine tests/soak/soak.lua --minutes=10
--
-- A line every ten seconds: what the trainer and the launcher hold. At the end "flat", or what
-- grew, and then exit code 1. Seeds repeat the choices, not their moments.
--
-- Resident memory alone says little of a leak: it follows the largest episodes so far, whose
-- memory is free between them. So what is judged tightly is the rest of it ("held": without
-- what lies free in the C library's heap); docs/memory.md tells what else may grow at first.
local rl = require "rlengine"
local rpc = rl.rpc
local core = require "rlengine.core"
local signal = require "posix.signal"

local args = rl.args {
  minutes = { 10, "how long" },
  observers = { 4, "observer processes" },
  every = { 5, "seconds from one fault to the next, about" },
  seed = { 1, "of the faults" },
  timeout = { 15, "seconds an episode may take" },
  report = { 10, "seconds from one line to the next" },
}

local function now()
  local t = require("posix.time").clock_gettime(1)
  return t.tv_sec + t.tv_nsec * 1e-9
end

-- ---- observers --------------------------------------------------------------

local Observer = rpc.class("Observer", { "run_episode", "fail_once" })
function Observer:init(id)
  self.id, self.env = id, rl.env.make "CartPole-v1"
  self.env:reset { seed = id }
end
function Observer:fail_once(how) self.how = how end

local failures = {
  throw = function() error("pole fell off") end,
  exit = function() os.exit(3) end,
  hang = function() while true do end end,
  crash = function() require("ffi").cast("int *", 0)[0] = 1 end,
}
function Observer:run_episode(agent)
  local state, total = self.env:reset(), 0
  repeat
    if self.how then
      local how = self.how
      self.how = nil
      failures[how]()
    end
    local action = agent:rpc_sync():select_action(self.id, state)
    local reward, terminated, truncated
    state, reward, terminated, truncated = self.env:step(action)
    agent:rpc_sync():report_reward(self.id, reward)
    total = total + reward
  until terminated or truncated
  return total
end

-- ---- the trainer ------------------------------------------------------------

local Agent = rpc.class("Agent", { "select_action", "report_reward" })
function Agent:init(ctx)
  rl.manual_seed(args.seed)
  self.policy = rl.nn.Sequential(rl.nn.Linear(4, 64), rl.nn.ReLU(), rl.nn.Linear(64, 2),
    rl.nn.Softmax(-1))
  self.optimizer = rl.optim.Adam(self.policy:parameters(), { lr = 1e-3 })
  self.rewards = rl.rewards.new { observers = #ctx.observers }
  self.observers, self.saved = {}, {}
  for i, name in ipairs(ctx.observers) do
    self.observers[i], self.saved[i] = rpc.remote(name, "Observer", i), {}
  end
end
function Agent:select_action(id, state)
  local m = rl.distributions.Categorical { probs = self.policy(state) }
  local action = m:sample()
  table.insert(self.saved[id], m:log_prob(action))
  return action:item()
end
function Agent:report_reward(id, reward) self.rewards:report(id, reward) end
function Agent:drop(id)
  self.rewards:drop(id)
  self.saved[id] = {}
end
function Agent:learn()
  local log_probs, weights = {}, {}
  for id, returns in ipairs(self.rewards:returns { gamma = 0.99, normalise = true }) do
    for t, value in ipairs(returns) do
      log_probs[#log_probs + 1], weights[#weights + 1] = self.saved[id][t], value
    end
    self.saved[id] = {}
  end
  local loss = -(rl.stack(log_probs) * rl.tensor(weights)):sum()
  self.optimizer:zero_grad()
  loss:backward()
  self.optimizer:step()
  self.rewards:clear()
end

-- ---- faults -----------------------------------------------------------------

local counts = {}

local function pid_of(name)
  local worker = rpc.worker_info(name)
  return worker and worker.connected and worker.pid
end

local function harm(agent, ctx)
  local i = math.random(#ctx.observers)
  local name, pid = ctx.observers[i], pid_of(ctx.observers[i])
  local kinds = { "kill", "stop", "throw", "exit", "hang", "crash" }
  local kind = kinds[math.random(#kinds)]
  if not pid then return end
  counts[kind] = (counts[kind] or 0) + 1
  if kind == "kill" then
    signal.kill(pid, signal.SIGKILL)
  elseif kind == "stop" then
    signal.kill(pid, signal.SIGSTOP)
    rpc.sleep(0.2 + 6 * math.random())
    if pid_of(name) == pid or not pid_of(name) then signal.kill(pid, signal.SIGCONT) end
  else
    pcall(function() agent.observers[i]:rpc_sync { timeout = 2 }:fail_once(kind) end)
  end
end

-- ---- what is held -----------------------------------------------------------

local function process_of(pid)
  local dirent = require "posix.dirent"
  local f = io.open(("/proc/%s/statm"):format(pid))
  local pages = f and f:read "*a":match "^%d+ (%d+)"
  if f then f:close() end
  return tonumber(pages or 0) * 4096, #dirent.dir(("/proc/%s/fd"):format(pid))
end

-- Bytes that lie free in the heap of the C library; nil where it does not tell.
local free_in_heap
do
  local ffi = require "ffi"
  ffi.cdef [[
    struct soak_heap { size_t arena, ordblks, smblks, hblks, hblkhd, usmblks, fsmblks, uordblks,
      fordblks, keepcost; };
    struct soak_heap mallinfo2(void);
  ]]
  local known, mallinfo = pcall(function() return ffi.C.mallinfo2 end)
  free_in_heap = known and function() return tonumber(mallinfo().fordblks) end
end

local KEYS = { "rss", "held", "lua", "cached", "descriptors", "launcher_rss",
  "launcher_descriptors", "device", "blocks", "references", "futures" }
-- What may be more at the end than after the first part: bytes, or how many. For a quarter of an
-- hour caches fill and code is compiled that seldom runs, so a short run is allowed more.
local short = args.minutes < 30
local TOLERANCE = { rss = (short and 4 or 3) * 2 ^ 20, held = (short and 1536 or 640) * 1024,
  lua = 384 * 1024, cached = 384 * 1024, descriptors = 2, launcher_rss = 512 * 1024,
  launcher_descriptors = 3, device = 16 * 1024, blocks = 200, references = 4, futures = 8 }

local function sample()
  collectgarbage()
  collectgarbage()
  local s = {}
  local _, blocks, lines = core.host_memory()
  s.rss, s.descriptors = process_of "self"
  s.launcher_rss, s.launcher_descriptors = process_of(require("posix.unistd").getppid())
  s.held = s.rss - (free_in_heap and free_in_heap() or 0)
  s.lua = collectgarbage "count" * 1024
  s.device, s.cached, s.blocks = rl.memory.allocated(), rl.memory.reserved(), blocks - lines
  s.references, s.futures = #rpc.refs(), rpc.counters().futures
  return s
end

-- The middle one of what was seen from sample `from` to sample `to`.
local function middle(samples, key, from, to)
  local list = {}
  for i = from, to do list[#list + 1] = samples[i][key] end
  table.sort(list)
  return list[math.floor((#list + 1) / 2)]
end

local function verdict(samples)
  local n = #samples
  if n < 10 then return "too few samples to say anything", true end
  local grew = {}
  for _, key in ipairs(KEYS) do
    local before = middle(samples, key, math.floor(n / 5) + 1, math.floor(2 * n / 5))
    local after = middle(samples, key, math.floor(4 * n / 5) + 1, n)
    if after - before > TOLERANCE[key] then
      grew[#grew + 1] = ("%s from %d to %d"):format(key, before, after)
    end
  end
  if #grew > 0 then return "grew: " .. table.concat(grew, ", "), false end
  return "flat", true
end

-- Looking is no part of what is looked at: the compiler has no share in it.
for _, f in ipairs { process_of, sample, middle, verdict } do require("jit").off(f, true) end

local function trainer(ctx)
  math.randomseed(args.seed)
  local agent = Agent(ctx)
  local began, samples, steps, dropped = now(), {}, 0, 0
  local ends, next_report, over = began + args.minutes * 60, began, false
  local loop = rl.episode.new {
    observers = agent.observers, with = { rpc.rref(agent) }, timeout = args.timeout, patience = 1,
    drop = function(_, i) agent:drop(i) dropped = dropped + 1 end,
    finish = function(_, totals)
      for _, total in ipairs(totals) do steps = steps + total end
      agent:learn()
    end,
    report = function() end,
  }
  local chaos = require("rlengine.rpc.futures").spawn(function()
    while not over do
      rpc.sleep(args.every * (0.5 + math.random()))
      if not over then harm(agent, ctx) end
    end
  end)
  print("seconds  episodes    steps  dropped    MiB   held  Lua KiB  fds  launcher MiB  fds"
    .. "  device KiB  cached  blocks  references  futures")
  while now() < ends do
    pcall(loop.run, loop) -- it raises when all that play raise at once; here that is wanted
    if now() >= next_report then
      next_report = next_report + args.report
      local s = sample()
      samples[#samples + 1] = s
      print(("%7.0f  %8d  %7d  %7d  %5.1f  %5.1f  %7.0f  %3d  %12.1f  %3d  %10.1f  %6.0f  %6d"
        .. "  %10d  %7d"):format(now() - began, loop.number, steps, dropped, s.rss / 2 ^ 20,
        s.held / 2 ^ 20, s.lua / 2 ^ 10, s.descriptors, s.launcher_rss / 2 ^ 20,
        s.launcher_descriptors, s.device / 2 ^ 10, s.cached / 2 ^ 10, s.blocks, s.references,
        s.futures))
      io.stdout:flush()
    end
  end
  over = true
  chaos:wait()
  local list = {}
  for kind, count in pairs(counts) do list[#list + 1] = ("%d %s"):format(count, kind) end
  table.sort(list)
  print(("faults: %s"):format(table.concat(list, ", ")))
  local said, good = verdict(samples)
  print(said)
  io.stdout:flush()
  if not good then os.exit(1, true) end
end

rl.launch {
  observers_per_trainer = args.observers, args = args, trainer = trainer,
  rpc = { heartbeat = 0.5, timeout = 3 },
  restarts = { max = 1000, within = 60, backoff = 0.1 },
}
