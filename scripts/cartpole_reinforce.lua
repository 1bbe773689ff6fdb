--- REINFORCE over remote calls: a trainer owns the policy, observers own the environments and
-- ask for every action. After one episode of each observer the policy is updated once. Ends
-- at running reward 475, which is when CartPole-v1 counts as solved.
local rl = require "rlengine"
local rpc = rl.rpc

local args = rl.args {
  episodes = { 3000, "most episodes to run; each is one of every observer" },
  observers = { 2, "observer processes" },
  seed = { 543, "of weights and chance" },
  device = { "auto", "cpu, cuda, cuda:1 or auto" },
  gamma = { 0.99, "discount of rewards" },
  lr = { 1e-2, "learning rate of Adam" },
  target = { 475, "running reward at which it ends" },
  log_every = { 20, "episodes from one line of the learning curve to the next" },
}

local Policy = rl.nn.class "Policy"
function Policy:init()
  self.affine1 = rl.nn.Linear(4, 128)
  self.dropout = rl.nn.Dropout(0.6)
  self.affine2 = rl.nn.Linear(128, 2)
end
function Policy:forward(x)
  return self.affine2(self.dropout(self.affine1(x)):relu()):softmax(-1)
end

local Observer = rpc.class("Observer", { "run_episode" })
function Observer:init(id, seed)
  self.id, self.env = id, rl.env.make "CartPole-v1"
  self.env:reset { seed = seed + id }
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
  rl.manual_seed(args.seed)
  self.device = rl.device(args.device, ctx.rank)
  self.policy = Policy():to(self.device)
  self.optimizer = rl.optim.Adam(self.policy:parameters(), { lr = args.lr })
  self.rewards = rl.rewards.new { observers = #ctx.observers }
  self.running = rl.rewards.running { start = 10 }
  self.observers, self.saved_log_probs = {}, {}
  for i, name in ipairs(ctx.observers) do
    self.observers[i] = rpc.remote(name, "Observer", i, args.seed)
    self.saved_log_probs[i] = {}
  end
end
function Agent:select_action(id, state)
  local m = rl.distributions.Categorical { probs = self.policy(state:to(self.device)) }
  local action = m:sample()
  table.insert(self.saved_log_probs[id], m:log_prob(action))
  return action:item()
end
function Agent:report_reward(id, reward) self.rewards:report(id, reward) end
-- An observer was lost within an episode: that one does not count.
function Agent:drop(id)
  self.saved_log_probs[id] = {}
  return self.rewards:drop(id)
end
function Agent:finish_episode(totals)
  local log_probs, weights = {}, {}
  for id, returns in ipairs(self.rewards:returns { gamma = args.gamma, normalise = true }) do
    for t, value in ipairs(returns) do
      log_probs[#log_probs + 1], weights[#weights + 1] = self.saved_log_probs[id][t], value
    end
    self.saved_log_probs[id] = {}
  end
  local loss = -(rl.stack(log_probs) * rl.tensor(weights, { device = self.device })):sum()
  self.optimizer:zero_grad()
  loss:backward()
  self.optimizer:step()

  -- With several observers their mean counts: one update, one step of the running reward.
  self.reward = 0
  for _, total in ipairs(totals) do self.reward = self.reward + total / #totals end
  self.running:update(self.reward)
  self.rewards:clear()
end

rl.launch {
  trainers = 1, observers_per_trainer = args.observers, args = args,
  trainer = function(ctx)
    local agent = Agent(ctx)
    local solved = false
    local loop = rl.episode.new {
      observers = agent.observers, with = { rpc.rref(agent) }, device = agent.device,
      cleanup = rl.cleanup.per_episode { empty_cache = false, collect = true },
      drop = function(_, id) return agent:drop(id) end,
      finish = function(_, totals) agent:finish_episode(totals) end,
      report = function(self)
        solved = agent.running.value > args.target
        if self.number % args.log_every == 0 or solved then
          print(("episode %5d   reward %6.1f   running reward %6.1f"):format(self.number,
            agent.reward, agent.running.value))
        end
      end,
    }
    repeat loop:run() until solved or loop.number >= args.episodes
    if solved then print(("solved: running reward %.1f"):format(agent.running.value)) end
    print(("episode : %d, mem_used: %.2fMb"):format(loop.number,
      rl.memory.allocated(agent.device) / 2 ^ 20))
  end,
}
