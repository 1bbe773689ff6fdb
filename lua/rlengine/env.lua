--- Environments, as Gymnasium has them: `rl.env.make("CartPole-v1")`.
--
--     local env = rl.env.make("CartPole-v1")
--     local obs, info = env:reset{seed = 42}
--     local reward, terminated, truncated
--     repeat
--       obs, reward, terminated, truncated, info = env:step(env.action_space:sample())
--     until terminated or truncated
--
-- `terminated` says that the task has ended, `truncated` that a time limit stopped it; both
-- may be true of one step. Observations of a Box are tensors of the space's dtype and shape,
-- fresh ones at each step, on the default device; of a Discrete they are numbers. Actions:
-- a number or an integer tensor of one element for a Discrete (they count from 0, as in
-- Gymnasium), a tensor, a table of numbers, or for one element a number for a Box.
--
-- A reset with a seed gives what Gymnasium gives from that seed; a reset without goes on in
-- the stream, so episodes differ and a run can still be repeated. The first reset of an
-- environment takes a seed from the system when it is given none.
--
-- Methods of an environment: reset, step, step_into, ffi, close. Fields: observation_space,
-- action_space, spec (id, max_episode_steps, reward_threshold), unwrapped.

local core = require "rlengine.core"
local options = require "rlengine.options"
local native = require "rlengine.env.native"
local scripted = require "rlengine.env.scripted"

local env = {}

local definitions = {} -- id -> what rl.env.register was given, checked

-- Kinds of the C engine by id, and the ids in order. Asked for each time: a C program may
-- register its own at any moment.
local function native_kinds()
  local by_id, ids = {}, {}
  for i, kind in ipairs(core.env.kinds()) do by_id[kind.id], ids[i] = kind, kind.id end
  return by_id, ids
end

--- The ids of all environments, in alphabetical order.
function env.list()
  local _, ids = native_kinds()
  for id in pairs(definitions) do ids[#ids + 1] = id end
  table.sort(ids)
  return ids
end

-- The kind or definition of an id: kind, nil or nil, definition.
local function find(what, id)
  if type(id) ~= "string" then
    options.fail("INVALID_ARGUMENT", "%s: expected the id of an environment, got %s", what,
      type(id))
  end
  if definitions[id] then return nil, definitions[id] end
  local kinds, ids = native_kinds()
  if kinds[id] then return kinds[id] end
  for other in pairs(definitions) do ids[#ids + 1] = other end
  local hint = options.hint(id, ids)
  if hint == "" then
    table.sort(ids)
    hint = "; there are: " .. table.concat(ids, ", ")
  end
  options.fail("NOT_FOUND", '%s: no environment "%s"%s', what, id, hint)
end

--- A new environment.
-- @param id "CartPole-v1", or what rl.env.register was given
-- @param opts max_episode_steps: another time limit, 0 for none. Other options go to the
-- `init` of an environment written in Lua.
function env.make(id, opts)
  local kind, definition = find("rl.env.make", id)
  if definition then return scripted.new(definition, opts) end
  return native.new(kind, options.check("rl.env.make", opts, { max_episode_steps = "number" }))
end

--- Several environments of one kind, stepped together; see rlengine/env/vector.lua.
-- @param opts num_envs (required), autoreset ("next_step", "same_step", "disabled"),
-- max_episode_steps
function env.vector(id, opts)
  local kind, definition = find("rl.env.vector", id)
  return require("rlengine.env.vector").new(kind, definition, opts)
end

--- Make an environment written in Lua known by its id.
--
--     rl.env.register("Corridor-v0", {
--       observation_space = rl.env.Box{low = 0, high = 10, shape = {1}},
--       action_space = rl.env.Discrete(2), max_episode_steps = 100,
--       reset = function(self, options) self.x = 0; return {self.x} end,
--       step = function(self, action)
--         self.x = math.max(0, self.x + (action == 1 and 1 or -1))
--         return {self.x}, self.x >= 10 and 1 or -0.1, self.x >= 10, false
--       end,
--     })
--
-- `reset(self, options)` returns the observation and, if it likes, an info table. `options`
-- is what env:reset was given, an empty table for nothing; `options.seed` has the seed.
-- `step(self, action)` returns observation, reward, terminated, truncated, info (the last
-- two may be left out). The action was checked; it is a number, or a table of numbers for a
-- Box. Observations may be tables, tensors or numbers: they are checked and copied.
--
-- `self` is one table for each environment, with `self.rng` (random(), uniform(low, high),
-- integers(n), normal()), which a reset with a seed seeds: take all randomness from it. The
-- time limit is applied outside. Also known: init(self, options of rl.env.make), close(self),
-- reward_threshold; further functions are methods of self.
function env.register(id, definition)
  if native_kinds()[id] then
    options.fail("ALREADY_EXISTS", "rl.env.register: %s is part of the engine; choose another id",
      tostring(id))
  end
  local checked = scripted.define(id, definition)
  if definitions[id] then
    core.env.warn(("rl.env.register: %s was registered before; the new one counts"):format(id))
  end
  definitions[id] = checked
end

--- Does an environment keep the rules? See rlengine/env/check.lua.
-- Raises FAILED_PRECONDITION with each breach in plain words. Returns the list of warnings,
-- which also go to the log unless opts.quiet is true.
-- @param id an id, or an environment (it is reset and stepped, not closed)
function env.check(id, opts)
  return require("rlengine.env.check")(env.make, id, opts)
end

--- A space of n choices: opts.start (0), start + 1, ... start + n - 1. opts.seed seeds
-- its samples.
function env.Discrete(n, opts)
  opts = options.check("rl.env.Discrete", opts, { start = "number", seed = "number" })
  return core.env.discrete(n, opts.start, opts.seed)
end

-- Sizes of nested tables or of a tensor.
local function shape_of(value)
  local shape = {}
  if type(value) == "userdata" then
    for i, size in ipairs(value.shape) do shape[i] = size end
    return shape
  end
  while type(value) == "table" do
    shape[#shape + 1] = #value
    value = value[1]
  end
  return shape
end

--- A space of arrays with bounds. opts: low and high (numbers, tables or tensors; infinite
-- where there is no bound), shape (a list of sizes; without it that of low or high, or {1}),
-- dtype ("f32"), seed.
function env.Box(opts)
  opts = options.check("rl.env.Box", opts, {
    low = "number|table|userdata", high = "number|table|userdata", shape = "table",
    dtype = "string", seed = "number",
  })
  if opts.low == nil or opts.high == nil then
    options.fail("INVALID_ARGUMENT", "rl.env.Box: %s is missing; math.huge stands for no bound",
      opts.low == nil and "low" or "high")
  end
  local shape = opts.shape
  if not shape then
    shape = type(opts.low) ~= "number" and shape_of(opts.low)
      or type(opts.high) ~= "number" and shape_of(opts.high) or { 1 }
  end
  return core.env.box(opts.low, opts.high, shape, opts.dtype or "f32", opts.seed)
end

--- A random stream as environments have it: numpy's default_rng(seed). Methods: random(),
-- uniform(low, high), integers(n) (from 0 to n - 1), normal(), seed(n).
function env.rng(seed) return core.env.rng(seed) end

return env
