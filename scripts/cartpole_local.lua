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
  self.env = rl.env.make "CartPole-v1"
  self.env:reset { seed = seed + id }
  self.policy = Policy()
  self.rollout = rl.rollout.new { weights = rpc.follow(rpc.caller(), "policy", self.policy) }
end
function Observer:run_episode()
  local state = self.rollout:start((self.env:reset()))
  repeat
    local action = rl.distributions.Categorical { probs = self.policy(state) }:sample()
    local reward, terminated, truncated
    state, reward, terminated, truncated = self.env:step(action:item())
  until self.rollout:add { action = action, reward = reward, terminated = terminated,
    truncated = truncated, observation = state }
  return self.rollout:take()
end

local Agent = rpc.class("Agent", {})
function Agent:init(ctx)
  rl.manual_seed(args.seed)
  self.device = rl.device(args.device, ctx.rank)
  self.policy = Policy():to(self.device)
  self.weights = rpc.weights("policy", self.policy)
  self.optimizer = rl.optim.Adam(self.policy:parameters(), { lr = args.lr })
  self.running = rl.rewards.running { start = 10 }
  self.observers = {}
  for i, name in ipairs(ctx.observers) do
    self.observers[i] = rpc.remote(name, "Observer", i, args.seed)
  end
end
function Agent:finish_episode(episodes)
  local log_probs, returns = {}, {}
  for i, episode in ipairs(episodes) do
    local probs = self.policy(episode.observations:to(self.device))
    local m = rl.distributions.Categorical { probs = probs }
    log_probs[i] = m:log_prob(episode.actions:to(self.device))
    returns[i] = rl.rewards.discounted(episode.rewards, { gamma = args.gamma })
  end
  local weights = rl.cat(returns):to(self.device)
  weights = (weights - weights:mean()) / (weights:std() + rl.rewards.eps)
  local loss = -(rl.cat(log_probs) * weights):sum()
  self.optimizer:zero_grad()
  loss:backward()
  self.optimizer:step()
  self.weights:publish()

  -- With several observers their mean counts: one update, one step of the running reward.
  self.reward = 0
  for _, episode in ipairs(episodes) do
    self.reward = self.reward + episode.rewards:sum():item() / #episodes
  end
  self.running:update(self.reward)
end

rl.launch {
  trainers = 1, observers_per_trainer = args.observers, args = args,
  trainer = function(ctx)
    local agent = Agent(ctx)
    local solved = false
    local loop = rl.episode.new {
      observers = agent.observers, device = agent.device,
      cleanup = rl.cleanup.per_episode { empty_cache = false, collect = true },
      finish = function(_, episodes) agent:finish_episode(episodes) end,
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
