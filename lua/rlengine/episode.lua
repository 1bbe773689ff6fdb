--- The loop over observers: start an episode on each, wait for all, learn, clean up, report.
--
--   local loop = rl.episode.new{
--     observers = agent.observers,             -- remote references
--     with = { rpc.rref(agent) },              -- what every observer's run_episode gets
--     drop = function(loop, i) return agent.rewards:drop(i) end,
--     finish = function(loop, results) agent:finish_episode() end,
--   }
--   for _ = 1, 500 do loop:run() end
--
-- `run` does nothing but call the five steps below in order, so each can be replaced alone:
-- by an option of its name as here, or later by `function loop:report() ... end`.
--
-- Observers may be lost, hang or fail; the loop goes on with the others. What such a one has
-- reported of its unfinished episode is for `drop` to forget. It plays again as soon as it has
-- joined again (rl.launch starts it again): its object is then made anew with the arguments that
-- rpc.remote got, and takes its place in the list. The loop raises when in one episode every
-- observer failed with an error of its own, or when all were lost and none came back.

local options = require "rlengine.options"
local cleanup = require "rlengine.cleanup"
local core = require "rlengine.core"
local observers = require "rlengine.observers"

local c = core.rpc

local episode = {}

local Loop = {}
Loop.__index = Loop

--- Options: observers (a list of remote references), with (a list of arguments), method
-- ("run_episode"), timeout (seconds an episode may take; default: that of every call), device
-- (whose memory is reported), cleanup (a policy or function, see rl.cleanup; default: never),
-- rejoin (60: seconds to wait when no observer is left), patience (5: seconds after its timeout
-- until an observer that does not answer counts as hung and is killed), remake (function(i,
-- reference): a new reference for a lost observer; default: reference:remake()), and the steps
-- start, wait, drop, finish, report.
function episode.new(given)
  given = options.check("rl.episode.new", given, {
    observers = "table", with = "table", method = "string", timeout = "number", device = "any",
    cleanup = "table|function", start = "function", wait = "function", finish = "function",
    report = "function", drop = "function", rejoin = "number", patience = "number",
    remake = "function",
  })
  for _, key in ipairs { "timeout", "rejoin", "patience" } do
    if given[key] and not (given[key] >= 0) then
      options.fail("INVALID_ARGUMENT", "rl.episode.new: %s must be a number of seconds from 0, "
        .. "got %s", key, tostring(given[key]))
    end
  end
  local loop = { number = 0, with = {}, method = "run_episode", dropped = {} }
  for key, value in pairs(given) do loop[key] = value end
  loop.observers = loop.observers or {}
  loop.cleanup = cleanup.policy(loop.cleanup)
  loop.crew = observers.new(loop.observers, given)
  return setmetatable(loop, Loop)
end

local unpack = table.unpack or unpack

--- Start an episode on every observer that is there; returns the futures. `self.playing` is then
-- the list of their positions among the observers.
function Loop:start()
  local futures = {}
  self.playing = self.crew:present()
  for k, i in ipairs(self.playing) do
    -- What it may have called before it heard that nobody waits any more.
    if self.dropped[i] then self:drop(i) end
    self.dropped[i] = nil
    local peer = self.observers[i]:rpc_async(self.timeout and { timeout = self.timeout })
    futures[k] = peer[self.method](peer, unpack(self.with))
  end
  return futures
end

--- Wait for them; returns the results of those that finished, in the observers' order, and
-- `self.finished` is the list of their positions. The others are dropped.
function Loop:wait(futures)
  require("rlengine.rpc").wait_all(futures, { fail_fast = false })
  local results, finished, own, lost = {}, {}, {}, nil
  for k, future in ipairs(futures) do
    local i = self.playing and self.playing[k] or k
    local err = c.error_of(future)
    if err == nil then
      results[#results + 1], finished[#finished + 1] = (c.values(future)), i
    else
      if self.crew:failed(i, err) then lost = err else own[#own + 1] = err end
      local steps = self:drop(i, err)
      if type(steps) == "number" and steps > 0 then
        core.launch.log(('worker "%s": %d step%s of an unfinished episode dropped'):format(
          self.observers[i]:owner(), steps, steps == 1 and "" or "s"))
      end
      self.dropped[i] = true
    end
  end
  -- Those that do not play may still have reported something before they heard that nobody waits.
  local plays = {}
  for k in ipairs(futures) do plays[self.playing and self.playing[k] or k] = true end
  for i in pairs(self.dropped) do
    if not plays[i] then self:drop(i) end
  end
  if #results == 0 and own[1] then error(own[1], 0) end
  for _, err in ipairs(own) do
    core.launch.log(("%s; its episode is dropped"):format(tostring(err)))
  end
  self.finished = finished
  self.nobody = #results == 0 and #self.observers > 0
  if self.nobody then self.crew:wait_for_one(lost) end
  return results
end

--- Observer i did not finish its episode: forget what it has reported of it. Comes again until
-- it plays again, since more of it may arrive. Returns how many steps that were, for the log.
-- Nothing unless the script says what.
function Loop.drop() end

--- Learn from the episode. Nothing unless the script says what.
function Loop.finish() end

--- Say how it went: the line of every episode, with the device memory that is allocated.
function Loop:report()
  print(("episode : %d, mem_used: %.2fMb"):format(self.number,
    require("rlengine.memory").allocated(self.device) / 2 ^ 20))
end

--- One episode of every observer; returns the results of those that finished it, of at least one.
function Loop:run()
  self.number = self.number + 1
  local results
  repeat
    self.nobody = false
    results = self:wait(self:start())
  until not self.nobody
  self:finish(results)
  self.cleanup:run { episode = self.number, device = self.device }
  self:report(results)
  return results
end

return episode
