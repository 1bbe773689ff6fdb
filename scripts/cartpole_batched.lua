--- PPO with many environments and one policy: a trainer owns the policy, each observer steps a
-- vector of environments and asks for all its actions with one call. The calls of the observers
-- are answered together, by one pass through the network. Ends at running reward 475, which is
-- when CartPole-v1 counts as solved. The same seed gives the same run: what is drawn for an
-- environment does not depend on which calls happen to be answered together.
local rl = require "rlengine"
local rpc = rl.rpc

local args = rl.args {
  updates = { 1000, "most updates to make" },
  observers = { 2, "observer processes" },
  envs = { 32, "environments of each observer" },
  steps = { 64, "of each environment between updates" },
  seed = { 543, "of weights and chance" },
  device = { "auto", "cpu, cuda, cuda:1 or auto" },
  lr = { 3e-3, "learning rate of Adam" },
  epochs = { 4, "passes over what an update learns from" },
  target = { 475, "running reward at which it ends" },
  log_every = { 5, "updates from one line of the learning curve to the next" },
}

local Observer = rpc.class("Observer", { "run" })
function Observer:init(seed)
  self.envs = rl.env.vector("CartPole-v1", { num_envs = args.envs, autoreset = "same_step" })
  self.obs = self.envs:reset { seed = seed }
  self.totals = rl.zeros(args.envs)
end
function Observer:run(agent, steps)
  local seen = { obs = {}, action = {}, log_prob = {}, reward = {}, done = {} }
  local totals = {}
  for t = 1, steps do
    local action, log_prob = agent:rpc_sync():select_action(self.obs)
    local obs, reward, terminated, truncated = self.envs:step(action)
    local done = terminated:logical_or(truncated)
    seen.obs[t], seen.action[t], seen.log_prob[t] = self.obs, action, log_prob
    seen.reward[t], seen.done[t], self.obs = reward, done, obs
    self.totals = self.totals + reward
    if done:any():item() then
      local all = self.totals:totable()
      for i, over in ipairs(done:totable()) do
        if over then totals[#totals + 1] = all[i] end
      end
      self.totals = self.totals * done:logical_not()
    end
  end
  for name, list in pairs(seen) do seen[name] = rl.stack(list) end -- [steps, envs, ...]
  seen.last = self.obs
  return { seen = seen, totals = totals }
end

local function net(outputs)
  local nn = rl.nn
  return nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(),
    nn.Linear(64, outputs))
end

local Agent = rpc.class("Agent", { "select_action" })
function Agent:init(ctx)
  rl.manual_seed(args.seed)
  self.device = rl.device(args.device, ctx.rank)
  self.policy, self.value = net(2):to(self.device), net(1):to(self.device)
  local parameters = self.policy:parameters()
  for _, p in ipairs(self.value:parameters()) do parameters[#parameters + 1] = p end
  self.optimizer = rl.optim.Adam(parameters, { lr = args.lr })
  self.running = rl.rewards.running { start = 10 }
  self.observers = {}
  for i, name in ipairs(ctx.observers) do
    self.observers[i] = rpc.remote(name, "Observer", args.seed + i * args.envs)
  end
end
Agent.select_action = rpc.batched(function(self, obs, batch)
  return self.policy:act(obs:to(self.device), { keys = batch.keys:to(self.device) })
end, { input = { "obs f32[4]" }, size = args.observers * args.envs })

function Agent:gather(parts)
  local seen = {}
  for _, part in ipairs(parts) do
    for _, total in ipairs(part.totals) do self.running:update(total) end
    for name, value in pairs(part.seen) do
      seen[name] = seen[name] or {}
      table.insert(seen[name], value:to(self.device))
    end
  end
  for name, list in pairs(seen) do seen[name] = rl.cat(list, name == "last" and 1 or 2) end
  return seen
end
function Agent:learn(seen)
  local advantage, target = rl.no_grad(function()
    return rl.rewards.gae { rewards = seen.reward, dones = seen.done,
      values = self.value(seen.obs):squeeze(-1), last = self.value(seen.last):squeeze(-1) }
  end)
  advantage = (advantage - advantage:mean()) / (advantage:std() + 1e-8)
  for _ = 1, args.epochs do
    local m = rl.distributions.Categorical { logits = self.policy(seen.obs) }
    local ratio = (m:log_prob(seen.action) - seen.log_prob):exp()
    local gain = rl.minimum(ratio * advantage, ratio:clamp(0.8, 1.2) * advantage)
    local missed = (self.value(seen.obs):squeeze(-1) - target):square()
    local loss = -gain:mean() + missed:mean() * 0.5 - m:entropy():mean() * 0.01
    self.optimizer:zero_grad()
    loss:backward()
    rl.nn.clip_grad_norm_(self.policy:parameters(), 0.5)
    self.optimizer:step()
  end
end

rl.launch {
  trainers = 1, observers_per_trainer = args.observers, args = args,
  trainer = function(ctx)
    local agent, solved = Agent(ctx), false
    local loop = rl.episode.new {
      observers = agent.observers, method = "run", with = { rpc.rref(agent), args.steps },
      finish = function(_, parts) agent:learn(agent:gather(parts)) end,
      report = function(self)
        solved = agent.running.value > args.target
        if self.number % args.log_every == 0 or solved then
          print(("update %4d   steps %8d   running reward %6.1f"):format(self.number,
            self.number * args.steps * args.envs * args.observers, agent.running.value))
        end
      end,
    }
    repeat loop:run() until solved or loop.number >= args.updates
    if solved then print(("solved: running reward %.1f"):format(agent.running.value)) end
    local c = rpc.counters()
    print(("batches : %d, rows in each: %.1f"):format(c.batches, c.batched_rows / c.batches))
  end,
}
