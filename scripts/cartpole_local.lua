--- REINFORCE over remote calls: observers own the environments and a copy of the policy, act by
-- themselves and send whole episodes; the trainer learns and sends weights. After one episode of
-- each observer the policy is updated once. Ends at running reward 475, which is when CartPole-v1
-- counts as solved. The same with the policy on the trainer alone: cartpole_reinforce.lua. No
-- dropout here: the trainer computes the probabilities anew, and its masks would be others.
local rl = require "rlengine"
local rpc = rl.rpc

local args = rl.args {
  episodes = { 3000, "most episodes to run; each is one of every observer" },
  observers = { 2, "observer processes" },
  seed = { 543, "of weights and chance" },
  device = { "auto", "cpu, cuda, cuda:1 or auto" },
  gamma = { 0.99, "discount of rewards" },
  lr = { 5e-3, "learning rate of Adam" },
  target = { 475, "running reward at which it ends" },
  log_every = { 20, "episodes from one line of the learning curve to the next" },
}

local Policy = rl.nn.class "Policy"
function Policy:init()
  self.affine1 = rl.nn.Linear(4, 128)
  self.affine2 = rl.nn.Linear(128, 2)
end
function Policy:forward(x)
  return self.affine2(self.affine1(x):relu()):softmax(-1)
end

local Observer = rpc.class("Observer", { "run_episode" })
function Observer:init(id, seed)
  self.id, self.env = id, rl.env.make "CartPole-v1"
  self.env:reset { seed = seed + id }
  self.policy = Policy()
  self.rollout = rl.rollout.new { weights = rpc.follow(rpc.caller(), "policy", self.policy) }
end
function Observer:run_episode(agent)
  local state, total = self.rollout:start((self.env:reset())), 0
  repeat
    local action = rl.distributions.Categorical { probs = self.policy(state) }:sample()
    local reward, terminated, truncated
    state, reward, terminated, truncated = self.env:step(action:item())
    self.rollout:add { action = action, reward = reward, terminated = terminated,
      truncated = truncated, observation = state }
    total = total + reward
  until terminated or truncated
  agent:rpc_sync():report_episode(self.id, self.rollout:take())
  return total
end

local Agent = rpc.class("Agent", { "report_episode" })
function Agent:init(ctx)
  rl.manual_seed(args.seed)
  self.device = rl.device(args.device, ctx.rank)
  self.policy = Policy():to(self.device)
  self.weights = rpc.weights("policy", self.policy)
  self.optimizer = rl.optim.Adam(self.policy:parameters(), { lr = args.lr })
  self.rewards = rl.rewards.new { observers = #ctx.observers }
  self.running = rl.rewards.running { start = 10 }
  self.observers, self.episodes = {}, {}
  for i, name in ipairs(ctx.observers) do
    self.observers[i] = rpc.remote(name, "Observer", i, args.seed)
  end
end
function Agent:report_episode(id, episode)
  self.episodes[id] = episode
  for t = 1, episode.steps do self.rewards:report(id, episode.rewards[t]:item()) end
end
-- An observer was lost within an episode: that one does not count.
function Agent:drop(id)
  self.rewards:drop(id)
  self.episodes[id] = nil
end
function Agent:finish_episode(totals)
  local log_probs, weights = {}, {}
  for id, returns in ipairs(self.rewards:returns { gamma = args.gamma, normalise = true }) do
    local episode = self.episodes[id]
    if episode then
      local probs = self.policy(episode.observations:to(self.device))
      local m = rl.distributions.Categorical { probs = probs }
      log_probs[#log_probs + 1] = m:log_prob(episode.actions:to(self.device))
      for _, value in ipairs(returns) do weights[#weights + 1] = value end
    end
  end
  self.episodes = {}
  local loss = -(rl.cat(log_probs) * rl.tensor(weights, { device = self.device })):sum()
  self.optimizer:zero_grad()
  loss:backward()
  self.optimizer:step()
  self.weights:publish()

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
      drop = function(_, id) agent:drop(id) end,
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
