--- The view of an environment for LuaJIT's FFI: `local view = env:ffi()`.
--
-- For loops that must be fast: nothing is allocated, and LuaJIT compiles the calls.
--
--     local view = env:ffi()
--     view:reset{seed = 42}
--     repeat
--       local action = view.obs[2] + 0.5 * view.obs[3] > 0 and 1 or 0
--       local reward, terminated, truncated = view:step(action)
--     until terminated or truncated
--
-- `view.obs` is a C array that each call overwrites; it counts from 0. The view and the
-- environment are one: their calls may be mixed, and the view keeps the environment alive
-- (but not open). For a Box of actions fill `view.action`, a C array, and call view:step().

local core = require "rlengine.core"
local options = require "rlengine.options"

local ffi = jit and require "ffi" -- luacheck: ignore
if not ffi then
  return function(env)
    options.fail("UNIMPLEMENTED", "%s: env:ffi() needs LuaJIT; use step or step_into",
      env.spec.id)
  end
end

ffi.cdef[[
typedef struct rlengine_env_step { double reward; bool terminated, truncated; } rlengine_env_step;
]]

local ctypes = {
  f32 = "float", f64 = "double", i32 = "int32_t", i64 = "int64_t", u8 = "uint8_t", bool = "bool",
}
local reset_type = ffi.typeof "int (*)(void *, double, void *)"
local step_type = ffi.typeof "int (*)(void *, double, void *, rlengine_env_step *)"
local step_box_type = ffi.typeof "int (*)(void *, const void *, void *, rlengine_env_step *)"
local reset_options = { seed = "number" }

local View = {}
View.__index = View

--- Start an episode; the observation is in view.obs.
function View:reset(opts)
  local seed = -1
  if opts ~= nil then
    seed = options.check("view:reset", opts, reset_options).seed or -1
    if opts.seed and (seed < 0 or seed ~= math.floor(seed) or seed > 2 ^ 53) then
      options.fail("INVALID_ARGUMENT", "%s: seed must be an integer from 0 to 2^53, got %s",
        self.env.spec.id, tostring(opts.seed))
    end
  end
  local code = self._reset(self._handle, seed, self.obs)
  if code ~= 0 then core.env.raise(code) end
end

--- One step; the observation is in view.obs.
-- @return reward, terminated, truncated
function View:step(action)
  local out, code = self._out, nil
  if type(action) == "number" and not self.action then
    code = self._step(self._handle, action, self.obs, out)
  elseif action == nil and self.action then
    code = self._step_box(self._handle, self.action, self.obs, out)
  elseif self.action then
    options.fail("INVALID_ARGUMENT", "%s: fill view.action and call view:step() without one",
      self.env.spec.id)
  else
    local env = self.env -- what is no number: a tensor of one integer, or an error
    action = core.env.action(env.action_space, action, env.spec.id, self:elapsed() + 1)
    code = self._step(self._handle, action, self.obs, out)
  end
  if code ~= 0 then core.env.raise(code) end
  return out.reward, out.terminated, out.truncated
end

--- Steps of this episode.
function View:elapsed()
  local _, step = core.env.state(self.env._handle)
  return step
end

function View:__tostring()
  return ("view of %s"):format(tostring(self.env))
end

return function(env)
  local handle, reset, step, step_box, numel, dtype, action_numel, action_dtype =
    core.env.view(env._handle)
  return setmetatable({
    env = env,
    obs = ffi.new(ctypes[dtype] .. "[?]", numel),
    action = env.action_space.kind == "Box"
      and ffi.new(ctypes[action_dtype] .. "[?]", action_numel) or nil,
    _handle = ffi.cast("void *", handle),
    _reset = ffi.cast(reset_type, reset),
    _step = ffi.cast(step_type, step),
    _step_box = ffi.cast(step_box_type, step_box),
    _out = ffi.new "rlengine_env_step",
  }, View)
end
