--- Several environments of one kind, stepped together: `rl.env.vector(id, {num_envs = N})`.
--
-- Autoreset, in `envs.autoreset`, is what happens after the end of an episode:
--   "next_step"  (the default, and Gymnasium's) The step that ends an episode returns its
--                last observation. The next step ignores that row's action, resets the row
--                and returns its first observation with reward 0; info.was_reset is true
--                for it. Such a row is no transition: leave it out of what is learnt from.
--   "same_step"  The step that ends an episode resets the row at once: its observation is
--                the first of the new episode. info.final_obs has, in every row, what
--                followed the action: the last observation where an episode ended.
--   "disabled"   Nothing resets by itself, and a step with a row that has ended raises:
--                envs:reset{mask = terminated:logical_or(truncated)}.
-- So the final observation of an episode is always there, to bootstrap what was truncated.
--
--     local envs = rl.env.vector("CartPole-v1", {num_envs = 64})
--     local obs, info = envs:reset{seed = 1}                             -- f32[64,4]
--     local reward, terminated, truncated
--     obs, reward, terminated, truncated, info = envs:step(actions)      -- i64[64]
--
-- `reward` is f32[N], `terminated` and `truncated` are bool[N]. A reset with seed s seeds
-- the environments s, s + 1, ...; without a seed each goes on in its own stream.
--
-- Fields: num_envs, autoreset, spec, single_observation_space, single_action_space,
-- observation_space, action_space. Methods: reset, step, close.

local core = require "rlengine.core"
local native = require "rlengine.env.native"
local options = require "rlengine.options"
local scripted = require "rlengine.env.scripted"

local modes = { "next_step", "same_step", "disabled" }
local reset_options = { seed = "number", mask = "table|userdata" }
local vector = {}

local function finish(self)
  local n = self.num_envs
  self.observation_space = core.env.batch_space(self.single_observation_space, n)
  self.action_space = core.env.batch_space(self.single_action_space, n)
  return self
end

local function describe(self)
  return ("%d x %s (autoreset %s)"):format(self.num_envs, self.spec.id, self.autoreset)
end

-- ---- of the C engine ----

local Native = { __tostring = describe }
Native.__index = Native

--- Start an episode in each environment, or with opts.mask where it is true (after a whole
-- reset; the rows of the others stay as they were).
-- @return observations, info
function Native:reset(opts)
  opts = options.check("envs:reset", opts, reset_options)
  local obs = core.env.vector_reset(self._handle, opts.seed, opts.mask, self._obs)
  self._obs = obs
  return obs, {}
end

--- One step of each: `actions` is an integer tensor [N] or a table for a Discrete.
-- @return observations, rewards, terminated, truncated, info
function Native:step(actions)
  local obs, reward, terminated, truncated, was_reset, final_obs =
    core.env.vector_step(self._handle, actions)
  self._obs = obs
  return obs, reward, terminated, truncated, { was_reset = was_reset, final_obs = final_obs }
end

function Native:close()
  core.env.vector_close(self._handle)
end

-- ---- written in Lua ----

local Scripted = { __tostring = describe }
Scripted.__index = Scripted

local number_space = core.env.box(-math.huge, math.huge, {}, "f32")
local flag_space = core.env.box(0, 1, {}, "bool")

-- Row i of the vector in what a row raises by itself.
local function fail(self, i, message)
  options.fail("FAILED_PRECONDITION", "environment %d of the vector: %s: %s", i, self.spec.id,
    message)
end

function Scripted:reset(opts)
  opts = options.check("envs:reset", opts, reset_options)
  local mask
  if opts.mask ~= nil then
    mask = core.env.plain(core.env.batch_space(flag_space, self.num_envs), opts.mask)
    if not self._rows then fail(self, 1, "a reset with a mask comes after a whole one") end
  end
  local rows = self._rows or {}
  for i, env in ipairs(self.envs) do
    if not mask or mask[i] == 1 then
      rows[i] = env:reset(opts.seed and { seed = opts.seed + i - 1 } or nil)
      self._over[i] = false
    end
  end
  self._rows = rows
  return core.env.batch(self.single_observation_space, rows), {}
end

-- One row: observation, reward, terminated, truncated, was it reset, what followed.
local function step_row(self, i, action)
  local env = self.envs[i]
  if self._over[i] then
    self._over[i] = false
    local obs = env:reset()
    return obs, 0, false, false, true, obs
  end
  local obs, reward, terminated, truncated = env:step(action)
  if not (terminated or truncated) then return obs, reward, false, false, false, obs end
  if self.autoreset == "same_step" then
    return env:reset(), reward, terminated, truncated, false, obs
  end
  self._over[i] = true
  return obs, reward, terminated, truncated, false, obs
end

function Scripted:step(actions)
  if not self._rows then fail(self, 1, "no episode has begun: call reset before the first step") end
  actions = core.env.plain(self.action_space, actions)
  for i = 1, self.num_envs do
    if not self._over[i] then
      core.env.action(self.single_action_space, actions[i], self.spec.id,
        self.envs[i]._step + 1)
    elseif self.autoreset == "disabled" then
      fail(self, i, "the episode is over: reset it with a mask")
    end
  end
  local rows, rewards, terminated, truncated, was_reset, final = self._rows, {}, {}, {}, {}, {}
  for i = 1, self.num_envs do
    rows[i], rewards[i], terminated[i], truncated[i], was_reset[i], final[i] =
      step_row(self, i, actions[i])
  end
  local batch = core.env.batch
  return batch(self.single_observation_space, rows), batch(number_space, rewards),
    batch(flag_space, terminated), batch(flag_space, truncated), {
      was_reset = batch(flag_space, was_reset),
      final_obs = self.autoreset == "same_step"
        and batch(self.single_observation_space, final) or nil,
    }
end

function Scripted:close()
  for _, env in ipairs(self.envs) do env:close() end
end

-- ---- making ----

--- What rl.env.vector calls: one of kind (C) and definition (Lua) is nil.
function vector.new(kind, definition, opts)
  local what = "rl.env.vector"
  opts = options.check(what, opts,
    { num_envs = "number", autoreset = "string", max_episode_steps = "number" })
  local n, mode = opts.num_envs, opts.autoreset or "next_step"
  if not n or n ~= math.floor(n) or n < 1 or n > 2 ^ 31 - 1 then
    options.fail("INVALID_ARGUMENT", "%s: num_envs must be a whole number from 1 to %d, got %s",
      what, 2 ^ 31 - 1, n and ("%.14g"):format(n) or "nil")
  end
  local found = false
  for _, name in ipairs(modes) do found = found or name == mode end
  if not found then
    options.fail("INVALID_ARGUMENT", '%s: no autoreset mode "%s"; there are: %s', what, mode,
      table.concat(modes, ", "))
  end
  if definition then
    local envs = {}
    for i = 1, n do
      envs[i] = scripted.new(definition, { max_episode_steps = opts.max_episode_steps })
    end
    return finish(setmetatable({
      num_envs = n, autoreset = mode, spec = envs[1].spec, envs = envs, _over = {},
      single_observation_space = envs[1].observation_space:copy(),
      single_action_space = envs[1].action_space:copy(),
    }, Scripted))
  end
  local limit = native.limit(what, opts.max_episode_steps, kind.max_episode_steps)
  local handle, observation_space, action_space =
    core.env.vector_new(kind.id, n, limit or 0, mode)
  return finish(setmetatable({
    num_envs = n, autoreset = mode, _handle = handle,
    spec = {
      id = kind.id, max_episode_steps = limit, reward_threshold = kind.reward_threshold,
    },
    single_observation_space = observation_space,
    single_action_space = action_space,
  }, Native))
end

return vector
