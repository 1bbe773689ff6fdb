--- The loop over observers: start an episode on each, wait for all, learn, clean up, report.
--
--   local loop = rl.episode.new{
--     observers = agent.observers,             -- remote references
--     with = { rpc.rref(agent) },              -- what every observer's run_episode gets
--     finish = function(loop, results) agent:finish_episode() end,
--   }
--   for _ = 1, 500 do loop:run() end
--
-- `run` does nothing but call the five steps below in order, so each can be replaced alone:
-- by an option of its name as here, or later by `function loop:report() ... end`.

local options = require "rlengine.options"
local cleanup = require "rlengine.cleanup"

local episode = {}

local Loop = {}
Loop.__index = Loop

--- Options: observers (a list of remote references), with (a list of arguments), method
-- ("run_episode"), timeout (seconds an episode may take; default: that of every call), device
-- (whose memory is reported), cleanup (a policy or function, see rl.cleanup; default: never),
-- and the steps start, wait, finish, report.
function episode.new(given)
  given = options.check("rl.episode.new", given, {
    observers = "table", with = "table", method = "string", timeout = "number", device = "any",
    cleanup = "table|function", start = "function", wait = "function", finish = "function",
    report = "function",
  })
  local loop = { number = 0, with = {}, method = "run_episode" }
  for key, value in pairs(given) do loop[key] = value end
  loop.observers = loop.observers or {}
  loop.cleanup = cleanup.policy(loop.cleanup)
  return setmetatable(loop, Loop)
end

local unpack = table.unpack or unpack

--- Start an episode on every observer; returns the futures.
function Loop:start()
  local futures = {}
  for i, observer in ipairs(self.observers) do
    local peer = observer:rpc_async(self.timeout and { timeout = self.timeout })
    futures[i] = peer[self.method](peer, unpack(self.with))
  end
  return futures
end

--- Wait for them; returns the results in the observers' order. One that fails raises.
function Loop:wait(futures)
  return require("rlengine.rpc").wait_all(futures)
end

--- Learn from the episode. Nothing unless the script says what.
function Loop.finish() end

--- Say how it went: the line of every episode, with the device memory that is allocated.
function Loop:report()
  print(("episode : %d, mem_used: %.2fMb"):format(self.number,
    require("rlengine.memory").allocated(self.device) / 2 ^ 20))
end

--- One episode of every observer; returns their results.
function Loop:run()
  self.number = self.number + 1
  local results = self:wait(self:start())
  self:finish(results)
  self.cleanup:run { episode = self.number, device = self.device }
  self:report(results)
  return results
end

return episode
