--- REINFORCE with several trainers: each plays an episode of its own, then they average their
-- gradients and take the same step. All begin with rank 0's weights, so they stay the same. Ends
-- at running reward 475, which is when CartPole-v1 counts as solved.
local rl = require "rlengine"

local args = rl.args {
  trainers = { 2, "trainer processes" },
  updates = { 3000, "most updates; each is an episode of every trainer" },
  seed = { 543, "of weights and chance" },
  gamma = { 0.99, "discount of rewards" },
  lr = { 1e-2, "learning rate of Adam" },
  target = { 475, "running reward at which it ends" },
  log_every = { 20, "updates from one line of the learning curve to the next" },
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

-- An episode, and the loss of it. Returns the sum of its rewards.
local function play(env, policy, rewards)
  local state, log_probs, total, terminated, truncated, reward = env:reset(), {}, 0
  repeat
    local m = rl.distributions.Categorical { probs = policy(state) }
    local action = m:sample()
    log_probs[#log_probs + 1] = m:log_prob(action)
    state, reward, terminated, truncated = env:step(action:item())
    rewards:report(1, reward)
    total = total + reward
  until terminated or truncated
  local returns = rewards:returns({ gamma = args.gamma, normalise = true })[1]
  rewards:clear();
  (-(rl.stack(log_probs) * rl.tensor(returns)):sum()):backward()
  return total
end

rl.launch {
  trainers = args.trainers, observers_per_trainer = 0, args = args, prefix = false,
  trainer = function(ctx)
    local group = rl.comm.group()
    rl.manual_seed(args.seed + ctx.rank)
    local env, policy = rl.env.make "CartPole-v1", Policy()
    env:reset { seed = args.seed + ctx.rank }
    rl.no_grad(function() group:broadcast(policy:parameters(), { name = "weights" }) end)
    local optimizer = rl.optim.Adam(policy:parameters(), { lr = args.lr })
    local rewards = rl.rewards.new { observers = 1 }
    local running = rl.rewards.running { start = 10 }
    for update = 1, args.updates do
      optimizer:zero_grad()
      local total = rl.tensor { play(env, policy, rewards) }
      group:average_gradients(policy:parameters())
      optimizer:step()
      -- The mean is the same at every rank, and so is what is decided by it.
      running:update(group:all_reduce(total, { op = "mean", name = "reward" }):item())
      local solved = running.value > args.target
      if ctx.rank == 0 and (solved or update % args.log_every == 0) then
        print(("update %5d   reward %6.1f   running reward %6.1f"):format(update, total:item(),
          running.value))
      end
      if solved then break end
    end
    if ctx.rank == 0 and running.value > args.target then
      print(("solved: running reward %.1f"):format(running.value))
    end
  end,
}
