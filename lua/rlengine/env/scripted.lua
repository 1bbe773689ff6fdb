--- Environments written in Lua: what rl.env.register takes, and what rl.env.make returns
-- for it. The same order of calls, time limit and checks as those of the C engine; what a
-- script's function raises passes through untouched.

local core = require "rlengine.core"
local native = require "rlengine.env.native"
local options = require "rlengine.options"

local c_action, c_observation = core.env.action, core.env.observation

local scripted = {}

local Env = {}
Env.__index = Env

local function fail(self, code, message, ...)
  options.fail(code, "%s: " .. message, self.spec.id, ...)
end

local function check_open(self)
  if self._state == "closed" then
    fail(self, "FAILED_PRECONDITION", "the environment is closed")
  end
end

local function check_info(self, step, info)
  if info == nil then return {} end
  if type(info) ~= "table" then
    fail(self, "INVALID_ARGUMENT", "%s: info must be a table or nil, got %s",
      step > 0 and "step " .. step or "reset", type(info))
  end
  return info
end

function Env:reset(opts)
  check_open(self)
  if opts == nil then
    opts = {}
  elseif type(opts) ~= "table" then
    fail(self, "INVALID_ARGUMENT", "reset: expected a table of options, got %s", type(opts))
  end
  if opts.seed ~= nil then self.unwrapped.rng:seed(opts.seed) end
  self._state, self._step = "not reset", 0
  local obs, info = self._definition.reset(self.unwrapped, opts)
  obs = c_observation(self.observation_space, obs, self.spec.id, 0)
  info = check_info(self, 0, info)
  self._state = "running"
  return obs, info
end

local function no_episode(self)
  check_open(self)
  if self._state == "ended" then
    fail(self, "FAILED_PRECONDITION", "the episode is over (%s at step %d): call reset before "
      .. "the next step", self._terminated and "terminated" or "truncated", self._step)
  end
  fail(self, "FAILED_PRECONDITION", "no episode has begun: call reset before the first step")
end

local function check_flag(self, step, name, value)
  if type(value) ~= "boolean" then
    fail(self, "INVALID_ARGUMENT", "step %d: %s must be true or false, got %s%s", step, name,
      type(value) == "number" and tostring(value) or type(value),
      value == 0 and " (which counts as true in Lua)" or "")
  end
end

local function check_reward(self, step, reward)
  if type(reward) ~= "number" then
    fail(self, "INVALID_ARGUMENT", "step %d: the reward must be a number, got %s%s", step,
      type(reward), type(reward) == "userdata" and " (a tensor gives its number with :item())"
      or "")
  elseif reward ~= reward then
    fail(self, "INTERNAL", "step %d: the reward is NaN", step)
  end
end

function Env:step(action)
  if self._state ~= "running" then no_episode(self) end
  local id, step = self.spec.id, self._step + 1
  action = c_action(self.action_space, action, id, step)
  -- An error from here on leaves an environment that needs a reset.
  self._state, self._step = "not reset", step
  local obs, reward, terminated, truncated, info =
    self._definition.step(self.unwrapped, action)
  obs = c_observation(self.observation_space, obs, id, step)
  check_reward(self, step, reward)
  check_flag(self, step, "terminated", terminated)
  if truncated == nil then truncated = false else check_flag(self, step, "truncated", truncated) end
  info = check_info(self, step, info)
  if step == self._limit then truncated = true end
  self._terminated = terminated
  self._state = (terminated or truncated) and "ended" or "running"
  return obs, reward, terminated, truncated, info
end

function Env:step_into(action, obs)
  local fresh, reward, terminated, truncated, info = self:step(action)
  obs:copy_(fresh)
  return reward, terminated, truncated, info
end

function Env:ffi()
  fail(self, "UNIMPLEMENTED", "an environment written in Lua has no FFI view; use step")
end

function Env:close()
  if self._state == "closed" then return end
  self._state = "closed"
  if self._definition.close then self._definition.close(self.unwrapped) end
end

function Env:__tostring()
  return native.describe(self.spec, self._state, self._step)
end

-- ---- definitions ----

local known = {
  observation_space = "space", action_space = "space", max_episode_steps = "number",
  reward_threshold = "number", reset = "function", step = "function", init = "function",
  close = "function",
}
local required = { "observation_space", "action_space", "reset", "step" }

--- Check what rl.env.register was given; returns a copy.
function scripted.define(id, definition)
  local what = "rl.env.register"
  if type(id) ~= "string" or id == "" or #id > 64 or id:find "[%s%c]" then
    options.fail("INVALID_ARGUMENT",
      "%s: the id must be a string of 1 to 64 characters without spaces", what)
  end
  what = ("%s: %s"):format(what, id)
  if type(definition) ~= "table" then
    options.fail("INVALID_ARGUMENT", "%s: expected a table, got %s", what, type(definition))
  end
  local names, copy = {}, { id = id }
  for name in pairs(known) do names[#names + 1] = name end
  for key, value in pairs(definition) do
    local want = known[key]
    if want == "space" and not core.env.is_space(value) then
      options.fail("INVALID_ARGUMENT", "%s: %s must be rl.env.Box{...} or rl.env.Discrete(n), "
        .. "got %s", what, key, type(value))
    elseif want and want ~= "space" and type(value) ~= want then
      options.fail("INVALID_ARGUMENT", "%s: %s must be a %s, got %s", what, key, want,
        type(value))
    elseif not want and type(value) ~= "function" then
      options.fail("INVALID_ARGUMENT", '%s: unknown option "%s"%s; only functions may be added, '
        .. "as methods", what, tostring(key), options.hint(key, names))
    end
    copy[key] = value
  end
  for _, name in ipairs(required) do
    if copy[name] == nil then
      options.fail("INVALID_ARGUMENT", "%s: %s is missing", what, name)
    end
  end
  copy.max_episode_steps = native.limit(what, copy.max_episode_steps, nil)
  copy.methods = {}
  for key, value in pairs(definition) do
    if type(value) == "function" then copy.methods[key] = value end
  end
  return copy
end

function scripted.new(definition, opts)
  local what = "rl.env.make: " .. definition.id
  local rest = {}
  if opts ~= nil and type(opts) ~= "table" then
    options.fail("INVALID_ARGUMENT", "%s: expected a table of options, got %s", what, type(opts))
  end
  for key, value in pairs(opts or {}) do rest[key] = value end
  local given = rest.max_episode_steps
  rest.max_episode_steps = nil
  if not definition.init then options.check(what, rest, { max_episode_steps = "number" }) end
  if given ~= nil and type(given) ~= "number" then
    options.fail("INVALID_ARGUMENT", "%s: max_episode_steps must be a number, got %s", what,
      type(given))
  end
  local limit = native.limit(what, given, definition.max_episode_steps)

  local observation_space = definition.observation_space:copy()
  local action_space = definition.action_space:copy()
  local instance = setmetatable({
    id = definition.id, observation_space = observation_space, action_space = action_space,
    rng = core.env.rng(),
  }, { __index = definition.methods })
  if definition.init then definition.init(instance, rest) end
  return setmetatable({
    _definition = definition, _limit = limit, _state = "not reset", _step = 0,
    unwrapped = instance,
    observation_space = observation_space,
    action_space = action_space,
    spec = {
      id = definition.id, max_episode_steps = limit,
      reward_threshold = definition.reward_threshold,
    },
  }, Env)
end

return scripted
