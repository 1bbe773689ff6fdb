--- `rl.env.check(id)`: does an environment keep the rules that everything else relies on?
--
-- Resets and steps it with sampled actions and looks at: what reset and step return, and
-- whether it lies in the spaces; that one seed gives one course of events, start and steps;
-- that a reset without a seed goes on in the stream instead of starting it again; that
-- observations already returned do not change; that the time limit is kept; that a step
-- after the end is refused; that closing works twice. All breaches are collected and raised
-- as one FAILED_PRECONDITION; what is only unusual is a warning.

local core = require "rlengine.core"
local options = require "rlengine.options"

local unpack = table.unpack or unpack
local EPISODES, LONGEST = 5, 20000

local Check = {}
Check.__index = Check

-- Each finding once, in the order of appearance; numbers of steps do not make it another.
local function note(list, seen, message)
  local key = message:gsub("step %d+", "step")
  if seen[key] then return end
  seen[key] = true
  list[#list + 1] = message
end

function Check:breach(message, ...)
  if select("#", ...) > 0 then message = message:format(...) end
  note(self.breaches, self.seen, message)
end

function Check:warn(message, ...)
  if select("#", ...) > 0 then message = message:format(...) end
  note(self.warnings, self.seen, message)
end

local function text_of(err)
  return type(err) == "table" and err.message or tostring(err)
end

-- Call a method; what it raises is a breach. Returns true and the results, or false.
function Check:try(name, ...)
  local results = { pcall(self.env[name], self.env, ...) }
  if not results[1] then self:breach("%s raised: %s", name, text_of(results[2])) end
  return unpack(results, 1, 6)
end

-- ---- values ----

-- Numbers of an observation, to compare and to keep.
function Check:numbers(obs)
  local flat = {}
  local function walk(value)
    if type(value) == "table" then
      for _, v in ipairs(value) do walk(v) end
    else
      flat[#flat + 1] = value
    end
  end
  walk(core.env.plain(self.env.observation_space, obs))
  return flat
end

local function equal(a, b)
  if #a ~= #b then return false end
  for i = 1, #a do
    if a[i] ~= b[i] then return false end
  end
  return true
end

function Check:observation(what, obs)
  local ok, why = self.env.observation_space:contains(obs)
  if not ok then
    self:breach("%s returned an observation outside %s: %s", what,
      tostring(self.env.observation_space), why or "")
  end
end

-- ---- the checks ----

-- Numbers of the first observation after a reset, or nil.
function Check:start(opts)
  local ok, obs, info = self:try("reset", opts)
  if not ok then return nil end
  self:observation("reset", obs)
  if type(info) ~= "table" then self:breach("reset returned no info table") end
  local sound, numbers = pcall(self.numbers, self, obs)
  return sound and numbers or nil
end

function Check:seeds()
  local first = self:start{ seed = 123 }
  if not first then return end
  local later = {}
  for i = 1, 16 do later[i] = self:start() or {} end
  local again = self:start{ seed = 123 }
  if not again then return end
  if not equal(first, again) then
    self:breach("reset{seed = 123} gives another observation the second time: take all "
      .. "randomness from self.rng or options.seed")
    return
  end
  for i = 1, 16 do
    if not equal(later[i], self:start() or {}) then
      self:breach("after reset{seed = 123}, reset number %d gives another observation the "
        .. "second time: take all randomness from self.rng", i + 1)
      break
    end
  end
  local differ, repeated = false, true
  for seed = 1, 16 do
    differ = differ or not equal(first, self:start{ seed = seed } or first)
    repeated = repeated and equal(first, later[seed])
  end
  if not differ then
    self:warn("every seed gives the same first observation")
  elseif repeated then
    self:breach("a reset without a seed repeats the seeded one: the stream starts again "
      .. "instead of going on, so all episodes are alike")
  end
end

-- One episode of sampled actions. Returns its trace, or nil when it could not be played.
function Check:episode(seed, limit)
  local env, trace = self.env, {}
  local numbers = self:start{ seed = seed }
  if not numbers then return nil end
  trace[1] = table.concat(numbers, " ")
  env.action_space:seed(seed)
  local kept, kept_numbers
  for step = 1, limit do
    local ok, obs, reward, terminated, truncated, info = self:try("step",
      env.action_space:sample())
    if not ok then return nil end
    self:observation("step", obs)
    if type(reward) ~= "number" or reward ~= reward or math.abs(reward) == math.huge then
      self:breach("step returned a reward that is no finite number: %s", tostring(reward))
    elseif reward ~= 0 then
      self.rewarded = true
    end
    if type(terminated) ~= "boolean" or type(truncated) ~= "boolean" then
      self:breach("step returned terminated = %s and truncated = %s; both must be true or "
        .. "false", tostring(terminated), tostring(truncated))
      return nil
    end
    if type(info) ~= "table" then self:breach("step returned no info table") end
    local sound, now = pcall(self.numbers, self, obs)
    if not sound then return nil end
    if kept and not equal(kept_numbers, self:numbers(kept)) then
      self:breach("an observation that had been returned changed at a later step")
    end
    if step % 7 == 1 then kept, kept_numbers = obs, now end
    trace[#trace + 1] = ("%s | %.17g %s %s"):format(table.concat(now, " "), reward,
      tostring(terminated), tostring(truncated))
    local most = env.spec.max_episode_steps
    if most and step >= most and not truncated then
      self:breach("step %d is the time limit, but truncated is false", step)
    end
    if terminated or truncated then
      trace.ended = true
      break
    end
  end
  return trace
end

function Check:episodes()
  local env = self.env
  local longest = env.spec.max_episode_steps or LONGEST
  for seed = 1, EPISODES do
    local first = self:episode(seed, longest)
    if not first then return end
    local second = self:episode(seed, longest)
    if not second then return end
    for i = 1, math.max(#first, #second) do
      if first[i] ~= second[i] then
        self:breach("the same seed and the same actions lead elsewhere at step %d: %s and then "
          .. "%s", i - 1, first[i] or "over", second[i] or "over")
        return
      end
    end
    if not first.ended then
      self:warn("an episode of random actions did not end in %d steps and there is no time "
        .. "limit: give max_episode_steps", longest)
      return
    end
    local ok, err = pcall(env.step, env, env.action_space:sample())
    if ok then
      self:breach("a step after the end of the episode is accepted")
    elseif type(err) ~= "table" or err.code ~= "FAILED_PRECONDITION" then
      self:breach("a step after the end raises %s; FAILED_PRECONDITION is expected",
        text_of(err))
    end
  end
  if not self.rewarded then
    self:warn("the reward was 0 at every step of %d episodes", EPISODES)
  end
end

function Check:actions()
  local space = self.env.action_space
  if space.kind ~= "Box" then
    if space.start ~= 0 then
      self:warn("actions count from %d; networks give 0, 1, ...", space.start)
    end
    return
  end
  local bounds = { core.env.plain(space, space.low), core.env.plain(space, space.high) }
  local wide, endless = false, false
  local function walk(value)
    if type(value) == "table" then
      for _, v in ipairs(value) do walk(v) end
    else
      wide = wide or math.abs(value) > 1
      endless = endless or math.abs(value) == math.huge
    end
  end
  walk(bounds)
  if endless then
    self:warn("an action has no bound; algorithms want finite ones")
  elseif wide then
    self:warn("actions go beyond [-1, 1]; algorithms learn best within")
  end
end

function Check:closing()
  local env = self.env
  for _ = 1, 2 do
    local ok, err = pcall(env.close, env)
    if not ok then self:breach("close raised: %s", text_of(err)) end
  end
  if pcall(env.reset, env) then self:breach("a closed environment can be reset") end
end

return function(make, id, opts)
  opts = options.check("rl.env.check", opts, { quiet = "boolean" })
  local given = type(id) == "table"
  local env = given and id or make(id)
  local self = setmetatable({ env = env, breaches = {}, warnings = {}, seen = {} }, Check)
  self:seeds()
  self:episodes()
  self:actions()
  if not given then self:closing() end
  local name = env.spec.id
  if not opts.quiet then
    for _, warning in ipairs(self.warnings) do
      core.env.warn(("rl.env.check: %s: %s"):format(name, warning))
    end
  end
  if #self.breaches > 0 then
    error(core.error.new{
      code = "FAILED_PRECONDITION", breaches = self.breaches, warnings = self.warnings,
      message = ("rl.env.check: %s breaks %d rule%s:\n  - %s"):format(name, #self.breaches,
        #self.breaches == 1 and "" or "s", table.concat(self.breaches, "\n  - ")),
    })
  end
  return self.warnings
end
