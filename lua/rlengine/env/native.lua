--- Environments of the C engine, as rl.env.make returns them.

local core = require "rlengine.core"
local options = require "rlengine.options"

local c_reset, c_step, c_step_into = core.env.reset, core.env.step, core.env.step_into

local no_info = core.env.no_info -- empty, shared, cannot be written to

local native = {}

local Env = {}
Env.__index = Env

local reset_options = { seed = "number" }

--- Start an episode. opts.seed starts the random stream; without it the stream goes on.
-- @return observation, info
function Env:reset(opts)
  if opts ~= nil then opts = options.check("env:reset", opts, reset_options) end
  return c_reset(self._handle, opts and opts.seed), no_info
end

--- One step.
-- @return observation, reward, terminated, truncated, info
function Env:step(action)
  return c_step(self._handle, action)
end

--- One step that writes the observation into a tensor of the script's instead of a new one.
-- Cheaper; what the tensor held before is gone. Autograd notices when it had been saved.
-- @return reward, terminated, truncated, info
function Env:step_into(action, obs)
  return c_step_into(self._handle, action, obs)
end

--- The fastest way to step, for LuaJIT: see rlengine/env/view.lua.
function Env:ffi()
  return require("rlengine.env.view")(self)
end

--- Give back what the environment holds. A second close does nothing; other calls raise.
function Env:close()
  core.env.close(self._handle)
end

function Env:__tostring()
  local state, step = core.env.state(self._handle)
  return native.describe(self.spec, state, step)
end

--- "CartPole-v1 (running, step 12 of at most 500)"
function native.describe(spec, state, step)
  local at = ""
  if state == "running" or state == "ended" then
    at = (", step %d"):format(step)
    if spec.max_episode_steps then at = at .. (" of at most %d"):format(spec.max_episode_steps) end
  end
  return ("%s (%s%s)"):format(spec.id, state, at)
end

--- The time limit that counts: `given` by the caller (0: none, nil: the kind's own).
-- @return limit or nil
function native.limit(what, given, own)
  if given == nil then return own end
  if given ~= math.floor(given) or given < 0 or given > 2 ^ 53 then
    options.fail("INVALID_ARGUMENT",
      "%s: max_episode_steps must be an integer, 0 for no limit, got %s", what, tostring(given))
  end
  if given > 0 then return given end
end

function native.new(kind, opts)
  local limit = native.limit("rl.env.make", opts.max_episode_steps, kind.max_episode_steps)
  local handle, observation_space, action_space = core.env.new(kind.id, limit or 0)
  local self = {
    _handle = handle,
    observation_space = observation_space,
    action_space = action_space,
    spec = {
      id = kind.id, max_episode_steps = limit, reward_threshold = kind.reward_threshold,
    },
  }
  self.unwrapped = self
  return setmetatable(self, Env)
end

return native
