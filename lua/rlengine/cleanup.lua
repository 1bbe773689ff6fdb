--- When memory is cleaned up: the script's decision.
--
--   local cleanup = rl.cleanup.per_episode{ empty_cache = true, collect = true }
--   cleanup:run{ episode = 12, device = dev }      -- at the end of an episode
--
-- Others: on_pressure{above = "1GiB"}, never(), and any function(stats), as it is where a
-- policy is expected (`rl.cleanup.policy` makes one of it). `run` returns how many bytes of
-- the device's memory went back to the system, and counts `runs` and `freed`.

local memory = require "rlengine.memory"
local options = require "rlengine.options"

local cleanup = {}

local Policy = {}
Policy.__index = Policy

--- Clean up if the policy says so. stats: episode (a number, for per_episode), device.
function Policy:run(stats)
  if stats ~= nil and type(stats) ~= "table" then
    options.fail("INVALID_ARGUMENT", "cleanup:run: expected a table such as {episode = 12}, got %s",
      type(stats))
  end
  stats = stats or {}
  for _, key in ipairs { "episode", "reserved" } do
    if stats[key] ~= nil and type(stats[key]) ~= "number" then
      options.fail("INVALID_ARGUMENT", "cleanup:run: %s must be a number, got %s", key,
        type(stats[key]))
    end
  end
  local freed = self.decide(stats)
  if freed then
    self.runs = self.runs + 1
    self.freed = self.freed + (tonumber(freed) or 0)
  end
  return tonumber(freed) or 0
end

function Policy.__call(self, stats) return self:run(stats) end

function Policy.__tostring(self)
  return ("cleanup %s (%d runs, %d bytes freed)"):format(self.name, self.runs, self.freed)
end

--- A policy from a function(stats) that cleans up as it likes and returns the bytes it freed
-- (nil: it did nothing). A policy is returned as it is, nil becomes never().
function cleanup.policy(decide, name)
  if getmetatable(decide) == Policy then return decide end
  if decide == nil then return cleanup.never() end
  if type(decide) ~= "function" then
    options.fail("INVALID_ARGUMENT", "cleanup: expected a policy or a function(stats), got %s",
      type(decide))
  end
  return setmetatable({ decide = decide, name = name or "by a function", runs = 0, freed = 0 },
    Policy)
end

-- Collect first: what dies then goes to the cache, and the cache back to the system.
local function clean(given, device)
  if given.collect ~= false then collectgarbage() end
  if given.empty_cache == false then return 0 end
  return memory.empty_cache(device)
end

--- At the end of every episode, or of every nth. Options: empty_cache (true), collect (true),
-- every (1).
function cleanup.per_episode(given)
  given = options.check("rl.cleanup.per_episode", given,
    { empty_cache = "boolean", collect = "boolean", every = "number" })
  local every, calls = options.whole("rl.cleanup.per_episode", "every", given.every, 1, 1), 0
  return cleanup.policy(function(stats)
    calls = calls + 1
    if (stats.episode or calls) % every ~= 0 then return nil end
    return clean(given, stats.device)
  end, "per episode")
end

--- When the device has reserved more than `above` from the system. Options: above (needed),
-- empty_cache (true), collect (true).
function cleanup.on_pressure(given)
  given = options.check("rl.cleanup.on_pressure", given,
    { above = "number|string", empty_cache = "boolean", collect = "boolean" })
  if given.above == nil then
    options.fail("INVALID_ARGUMENT", 'rl.cleanup.on_pressure: above = "1GiB" is missing')
  end
  local above = memory.parse(given.above, "rl.cleanup.on_pressure: above")
  return cleanup.policy(function(stats)
    local reserved = stats.reserved or memory.reserved(stats.device)
    if reserved <= above then return nil end
    return clean(given, stats.device)
  end, "on pressure")
end

--- Leave it to the engine and the collector.
function cleanup.never()
  return cleanup.policy(function() return nil end, "never")
end

return cleanup
