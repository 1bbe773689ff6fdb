--- How device memory runs out, and why here it does not: a story in three parts, told as it
-- happens. On a device of 64 MiB it runs seed_program.lua as it stands, with one observer and
-- with 64; then a script that holds on to everything, which is warned, refused, and goes on.
-- Every promise is checked: the first that is broken ends the run with an error.
--
--   rlengine scripts/oom_story.lua --device=emu
local rl = require "rlengine"
local rpc = rl.rpc

local args = rl.args {
  device = { "emu", "cpu, emu, cuda or cuda:1" },
  episodes = { 2000, "episodes of each of the first two parts" },
  observers = { 64, "observers of the second part" },
  limit = { "64MiB", "memory of the device" },
  part = { 0, "run only part 1, 2 or 3" },
}
local program, story = arg[-1], arg[0]
local folder = story:match "^(.*[/\\])" or ""

-- The emulated device is as large as it is told to be; others have a limit.
local emulated = args.device:match "^emu" ~= nil
local function limit(device)
  if not emulated then rl.memory.limit(device, args.limit) end
end

if args.part == 0 then
  local emu = emulated and ('RLENGINE_EMU="%s memory=%s" '):format(os.getenv "RLENGINE_EMU" or "",
    args.limit) or ""
  for part = 1, 3 do
    local status = os.execute(("%s'%s' '%s' --part=%d --device=%s --episodes=%d --observers=%d "
      .. "--limit=%s"):format(emu, program, story, part, args.device, args.episodes,
      args.observers, args.limit))
    if status ~= 0 and status ~= true then os.exit(1) end
  end
  os.exit(0)
end

local function say(text, ...) print((text:format(...))) end
local size = rl.memory.format
local function promise(holds, text, ...)
  if not holds then error("broken promise: " .. text:format(...), 0) end
end

-- ---- parts 1 and 2: the seed's program, watched from outside ----

local shown = { [1] = true, [2] = true, [10] = true, [100] = true, [1000] = true }

--- The engine's figures and, but on the CPU, the driver's own: what is in use on the device, on a
-- GPU by other processes too.
local function figures(device)
  local stats = rl.memory.stats(device)
  if args.device ~= "cpu" then stats.used = rl.memory.report(device).used end
  return stats
end

--- Run seed_program.lua with so many observers. After each line that it prints the figures of
-- the device are noted; -> (in the trainer) by the second episode and by the last.
local function seed_program(rounds, observers, finish)
  local launch, say_line = rl.launch, print
  arg = { [0] = arg[0], "--device=" .. args.device, -- luacheck: ignore
    "--episodes=" .. rounds, "--observers=" .. observers }
  function rl.launch(given)
    local trainer = given.trainer
    function given.trainer(ctx)
      local device, episode, second = rl.device(args.device, ctx.rank), 0, nil
      limit(device)
      function print(line) -- luacheck: ignore
        episode = episode + 1
        if not shown[episode] and episode ~= rounds then return end
        local stats = figures(device)
        if episode == 2 then second = stats end
        say_line(("%s   (%d bytes allocated, %d reserved%s)"):format(line, stats.allocated,
          stats.reserved, stats.used and (", %d in use on the device"):format(stats.used) or ""))
      end
      trainer(ctx)
      print = say_line -- luacheck: ignore
      finish(device, second, figures(device))
    end
    launch(given)
  end
  dofile(folder .. "seed_program.lua")
  rl.launch = launch
end

--- Nothing that is held grew from the second episode to the last. What a device keeps in store
-- follows the most that was ever live at once, that is the longest episode so far, so it may
-- only grow with that. (The CPU takes memory block by block: there it is not compared.)
local SEGMENT = 2 * 2 ^ 20
local function flat(second, last)
  for _, key in ipairs { "allocated", "blocks", "tensors", "nodes" } do
    promise(second[key] == last[key], "%s: %d after episode 2, %d at the end", key, second[key],
      last[key])
  end
  if args.device == "cpu" then return end
  promise(not emulated or last.used - second.used == last.reserved - second.reserved,
    "the driver says %d after episode 2, %d at the end", second.used, last.used)
  local longer = last.peak - second.peak
  promise(last.reserved - second.reserved <= (longer > 0 and 2 * longer + SEGMENT or 0),
    "reserved: %d after episode 2, %d at the end, though the peak went from %d to %d only",
    second.reserved, last.reserved, second.peak, last.peak)
  promise(longer > 0 or second.from_driver == last.from_driver,
    "the driver was asked for memory %d times by episode 2, %d at the end", second.from_driver,
    last.from_driver)
end

local parts = {}

-- How often the driver was asked for memory.
local function asked(second, last)
  if args.device == "cpu" then return "" end
  return (",\nand the driver was asked for memory %d times in all, %s"):format(last.from_driver,
    last.from_driver == second.from_driver and "none after that"
      or "the last when an episode was longer than any before")
end

parts[1] = function() seed_program(args.episodes, 1, function(device, second, last)
  flat(second, last)
  say("1 observer, %d episodes on %s: the second and the last hold the same %d bytes%s.\n"
    .. "In the program this one comes from, every new thread of the RPC left 8 MiB behind.\n",
    args.episodes, device, last.allocated, asked(second, last))
end) end

-- As many episodes, played by many observers at once.
local rounds = math.max(3, math.ceil(args.episodes / args.observers))
parts[2] = function() seed_program(rounds, args.observers, function(_, second, last)
  flat(second, last)
  say("%d observers, %d episodes: flat as well, at %d bytes%s. Calls have no threads\n"
    .. "and no workspaces of their own: what is held does not depend on how many ask. What was\n"
    .. "taken for it and is kept for the next does, %s: the graphs of %d episodes were alive\n"
    .. "at once, %s of small results at most, each in a block of its own.\n",
    args.observers, rounds * args.observers, last.allocated, asked(second, last),
    size(last.reserved), args.observers, size(last.peak))
end) end

if args.part < 3 then return parts[args.part]() end

-- ---- part 3: a script that holds on to everything ----

local Observer = rpc.class("Observer", { "run_episode" })
function Observer:init(id)
  self.id, self.env = id, rl.env.make("CartPole-v1", { max_episode_steps = 30 })
  self.env:reset { seed = id }
end
function Observer:run_episode(agent)
  local state, total = self.env:reset(), 0
  repeat
    local action = agent:rpc_sync():select_action(self.id, state)
    local reward, terminated, truncated
    state, reward, terminated, truncated = self.env:step(action)
    agent:rpc_sync():report_reward(self.id, reward)
    total = total + reward
  until terminated or truncated
  return total
end

local Agent = rpc.class("Agent", { "select_action", "report_reward" })
function Agent:init(ctx)
  rl.manual_seed(543)
  self.device = rl.device(args.device, ctx.rank)
  self.policy = rl.nn.Sequential(rl.nn.Linear(4, 512), rl.nn.Dropout(0.6), rl.nn.ReLU(),
    rl.nn.Linear(512, 2), rl.nn.Softmax(-1)):to(self.device)
  self.optimizer = rl.optim.Adam(self.policy:parameters(), { lr = 1e-2 })
  self.rewards = rl.rewards.new { observers = #ctx.observers }
  self.saved_log_probs, self.observers = {}, {}
  for i, name in ipairs(ctx.observers) do
    self.saved_log_probs[i], self.observers[i] = {}, rpc.remote(name, "Observer", i)
  end
end
function Agent:select_action(id, state)
  local m = rl.distributions.Categorical { probs = self.policy(state:to(self.device)) }
  local action = m:sample()
  table.insert(self.saved_log_probs[id], m:log_prob(action))
  return action:item()
end
function Agent:report_reward(id, reward) self.rewards:report(id, reward) end
function Agent:run_episode()
  local futures = {}
  for i, observer in ipairs(self.observers) do
    futures[i] = observer:rpc_async():run_episode(rpc.rref(self))
  end
  local totals = rpc.wait_all(futures, { fail_fast = false })
  for _, total in ipairs(totals) do
    if type(total) ~= "number" then error(total, 0) end
  end
  return totals
end
function Agent:drop()
  for id in ipairs(self.observers) do self.saved_log_probs[id] = {} end
  self.rewards:clear()
end
function Agent:learn()
  local log_probs, weights = {}, {}
  for id, returns in ipairs(self.rewards:returns { gamma = 0.99, normalise = true }) do
    for t, value in ipairs(returns) do
      log_probs[#log_probs + 1], weights[#weights + 1] = self.saved_log_probs[id][t], value
    end
  end
  local loss = -(rl.stack(log_probs) * rl.tensor(weights, { device = self.device })):sum()
  self.optimizer:zero_grad()
  loss:backward()
  self.optimizer:step()
  self:drop()
end

--- The lines of a report up to its table.
local function head(report) return "  " .. report:match("^(.-)\nmemory of "):gsub("\n", "\n  ") end

local function hoard(ctx)
  local agent, warned, number = Agent(ctx), nil, 0
  limit(agent.device)
  say "A script that keeps every log-prob, to learn from all of them later, is told so by\n"
  local watch = rl.memory.watch {
    device = agent.device, tolerance = "4KiB",
    log = function(message)
      if not warned then print("  " .. message .. "\n") end
      warned = warned or { episode = number, message = message }
    end,
  }
  local ok, err
  repeat
    ok, err = pcall(function()
      number = number + 1
      agent:run_episode()
      watch()
    end)
    if number == 3 then
      promise(warned, "no warning in three episodes")
      promise(warned.message:match "graph made at .*oom_story%.lua:%d+",
        "the warning does not name the line: %s", warned.message)
    end
  until not ok
  say("It goes on as if nothing had been said. Episode %d does not fit any more. The trainer has\n"
    .. "no memory for an observer's call, whose error ends the observer's episode and comes\n"
    .. "back:\n", number)
  promise(rawget(err, "code") == "RESOURCE_EXHAUSTED", "another error: %s", tostring(err))
  promise(err.worker == ctx.name, "the error names worker %s", tostring(err.worker))
  promise(err.message:match "most held by .*oom_story%.lua:%d+", "no line in: %s", err.message)
  promise(err.report:find "grew most since episode 2", "no growth in: %s", err.report)
  say("  %s\n  first failed on worker %s, went through %s. Its report begins:\n\n%s\n",
    tostring(err), err.worker, table.concat(err.via, ", "), head(err.report))

  agent:drop()
  err = nil
  local after_drop
  for episode = 1, 12 do
    agent:run_episode()
    agent:learn()
    collectgarbage()
    collectgarbage()
    if episode == 2 then after_drop = rl.memory.stats(agent.device) end
  end
  local last = rl.memory.stats(agent.device)
  promise(last.allocated == after_drop.allocated and err == nil,
    "learning holds %d bytes after 2 episodes and %d after 12", after_drop.allocated,
    last.allocated)
  say("Caught, and what it had kept is dropped: %s of %s are in use. Training went on for\n"
    .. "12 episodes, one update each, and holds what it held after the second: %d bytes.\n",
    size(last.allocated), size(rl.memory.parse(args.limit)), last.allocated)
  print(rl.memory.report(agent.device))
end

rl.launch { trainers = 1, observers_per_trainer = 2, args = args, trainer = hoard }
