--- What an observer that acts by itself has seen, collected into pieces: whole episodes, or a
-- fixed number of steps.
--
--   local rollout = rl.rollout.new { weights = rpc.follow("agent_0", "policy", policy) }
--   local state = rollout:start(env:reset())          -- newest weights first
--   repeat
--     local m = rl.distributions.Categorical { probs = policy(state) }
--     local action = m:sample()
--     state, reward, terminated, truncated = env:step(action:item())
--   until rollout:add { action = action, log_prob = m:log_prob(action), reward = reward,
--     terminated = terminated, truncated = truncated, observation = state }
--   agent:rpc_sync():report(rollout:take())           -- all of it in one call
--
-- A piece is a table of tensors, stacked over its T steps, without history:
--   observations           what was seen before each step, [T, ...]
--   actions, log_probs, rewards, terminated, truncated    [T, ...]
--   last                   what was seen after the last step, to bootstrap from
--   version                of the weights that acted, the same for all steps
--   steps                  T
-- and any other field that the steps had, under its own name. A step may be one of N environments
-- at once: each field then is a tensor of N rows.

local core = require "rlengine.core"
local options = require "rlengine.options"
local tensor = require "rlengine.tensor"

local fail = options.fail
local is_tensor = core.tensor.is_tensor

local rollout = {}

local Rollout = {}
Rollout.__index = Rollout

-- Fields of a step, by what they are called in a piece. Others keep their name.
local NAMES = { action = "actions", log_prob = "log_probs", reward = "rewards" }
local RESERVED = { observations = true, last = true, version = true, steps = true }

--- Options: weights (of rpc.follow): the newest are taken before each piece; length: steps of a
-- piece, which then goes on over the ends of episodes, and new weights act from its first step
-- on. Without a length a piece is one episode, and weights change between episodes only.
function rollout.new(given)
  given = options.check("rl.rollout.new", given, { weights = "table", length = "number" })
  local length = given.length
  if length and (length < 1 or length % 1 ~= 0) then
    fail("INVALID_ARGUMENT", "rl.rollout.new: length must be a whole number of steps from 1")
  end
  if given.weights and type(given.weights.busy) ~= "table" then
    fail("INVALID_ARGUMENT", "rl.rollout.new: weights are what rpc.follow returns")
  end
  local self = setmetatable({ weights = given.weights, length = length }, Rollout)
  self:clear()
  return self
end

-- Is any of it true? `flag`: a boolean, or a tensor of them.
local function any(flag)
  if is_tensor(flag) then return flag:any():item() == true end
  return flag == true
end

-- What will not change any more: without history, and no view of what may be written again.
local function kept(value)
  if is_tensor(value) then return value:detach():clone() end
  return value
end

local function set_busy(self, busy)
  local weights = self.weights
  if weights then weights.busy[self] = busy or nil end
end

-- A new piece begins: with the newest weights, unless another rollout is in the middle of one.
local function begin(self)
  set_busy(self, false) -- it may have begun already, without a step
  if self.weights then
    self.weights:update()
    self.version = self.weights.version
  end
  set_busy(self, true)
end

--- An episode begins with that observation, which is returned. Between two pieces the newest
-- weights are taken; for the first ones ever it waits. An episode that was broken off, by an
-- error or a lost trainer, is forgotten, where a piece is an episode. With a length it may be
-- called with the last observation before any piece: `take` began it with the weights that were
-- there, and what was learnt from the piece before may have come since.
function Rollout:start(observation)
  if self.open and not self.whole and not self.length then self:clear() end
  if self.steps == 0 then begin(self) end
  self.observation = kept(observation)
  self.open = true
  return observation
end

--- One step: a table of what was done and seen: action, log_prob, reward, terminated, truncated
-- and observation (what was seen after it), and whatever else is to be in the piece; every step
-- the same fields. Returns true when the piece is whole: then `take` it.
function Rollout:add(step)
  if not self.open then
    fail("FAILED_PRECONDITION", "rollout: the episode is over; start(observation) begins the next")
  end
  if type(step) ~= "table" or step.observation == nil then
    fail("INVALID_ARGUMENT", "rollout: a step is a table, with the observation that came of it")
  end
  if self.whole then
    fail("FAILED_PRECONDITION", "rollout: this piece is whole; take() it before the next step")
  end
  local columns, t = self.columns, self.steps + 1
  if t > 1 then
    for name in pairs(columns) do
      if name ~= "observations" and step[self.source[name]] == nil then
        fail("INVALID_ARGUMENT", 'rollout: step %d has no "%s", the steps before it have', t,
          self.source[name])
      end
    end
  end
  for key, value in pairs(step) do
    if key ~= "observation" then
      local name = NAMES[key] or key
      if RESERVED[name] then
        fail("INVALID_ARGUMENT", 'rollout: a step has no field "%s" of its own', key)
      end
      if not columns[name] then
        if t > 1 then
          fail("INVALID_ARGUMENT", 'rollout: step %d has a "%s", the steps before it have none', t,
            key)
        end
        columns[name], self.source[name] = {}, key
      end
      columns[name][t] = kept(value)
    end
  end
  columns.observations = columns.observations or {}
  columns.observations[t] = self.observation
  self.observation, self.steps = kept(step.observation), t
  local over = any(step.terminated) or any(step.truncated)
  -- Several environments at once begin anew by themselves.
  if over and not is_tensor(step.terminated) and not is_tensor(step.truncated) then
    self.open = false
  end
  self.whole = self.length and t == self.length or not self.length and over
  return self.whole
end

local function stacked(values)
  if is_tensor(values[1]) then return tensor.stack(values) end
  if type(values[1]) == "boolean" then return tensor.tensor(values, { dtype = "bool" }) end
  return tensor.tensor(values)
end

--- The piece, also one that is not whole yet; nil when it has no step. The next one begins.
function Rollout:take()
  if self.steps == 0 then return nil end
  local piece = { last = self.observation, version = self.version, steps = self.steps }
  for name, values in pairs(self.columns) do piece[name] = stacked(values) end
  local observation, open = self.observation, self.open
  self:clear()
  self.observation, self.open = observation, open
  -- It goes on in the middle of an episode: what acts next decides with the new weights, or with
  -- those that `start` finds after the piece was reported.
  if open then begin(self) end
  return piece
end

--- Forget what was collected, and the episode.
function Rollout:clear()
  self.columns, self.source, self.steps = {}, {}, 0
  self.open, self.whole, self.observation = false, false, nil
  self.version = self.weights and self.weights.version
  set_busy(self, false)
end

return rollout
