--- One trainer owns the policy, observers own the environments and ask the trainer for every
-- action by remote calls. Nothing is learned here (cartpole_reinforce.lua does): the program
-- shows that device memory stays where it is.
local rl = require "rlengine"
local rpc = rl.rpc

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
  rl.manual_seed(ctx.args.seed)
  self.device = rl.device(ctx.args.device, ctx.rank)
  self.policy = Policy():to(self.device)
  self.observers, self.rewards, self.saved_log_probs = {}, {}, {}
  for i, name in ipairs(ctx.observers) do
    self.observers[i] = rpc.remote(name, "Observer", i, ctx.args.seed)
    self.rewards[i], self.saved_log_probs[i] = {}, {}
  end
  self.cleanup = rl.cleanup.per_episode { empty_cache = false, collect = true }
end
function Agent:select_action(id, state)
  local m = rl.distributions.Categorical { probs = self.policy(state:to(self.device)) }
  local action = m:sample()
  table.insert(self.saved_log_probs[id], m:log_prob(action))
  return action:item()
end
function Agent:report_reward(id, reward) table.insert(self.rewards[id], reward) end
function Agent:run_episode()
  local futures = {}
  for i, observer in ipairs(self.observers) do
    futures[i] = observer:rpc_async():run_episode(rpc.rref(self))
  end
  return rpc.wait_all(futures)
end
function Agent:finish_episode(episode)
  for id in ipairs(self.observers) do self.rewards[id], self.saved_log_probs[id] = {}, {} end
  self.cleanup:run { episode = episode, device = self.device }
end

local args = rl.args {
  episodes = { 500, "episodes to run" }, observers = { 2, "observer processes" },
  device = { "auto", "cpu, cuda, cuda:1 or auto" }, seed = { 543, "of weights and chance" },
}
rl.launch {
  trainers = 1, observers_per_trainer = args.observers, args = args,
  trainer = function(ctx)
    local agent = Agent(ctx)
    for episode = 1, ctx.args.episodes do
      agent:run_episode()
      agent:finish_episode(episode)
      local mem_used = rl.memory.allocated(agent.device) / 2 ^ 20
      print(("episode : %d, mem_used: %.2fMb"):format(episode, mem_used))
    end
  end,
}
