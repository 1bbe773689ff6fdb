--- A trainer's observers, of which one may be lost, hang or come back: who plays, and what is
-- done about the others. Part of `rl.episode`.
--
-- An observer plays while its reference is good. One whose worker was lost, by its death or its
-- silence, is taken back in once that worker has joined again: its object is made anew, with the
-- arguments it was first made with. One that let its deadline pass is asked whether it hears
-- anything at all; when it does not, the launcher (rl.launch) is asked to kill it and start it
-- again. What was seen of it is noted in the log, once for each event.

local core = require "rlengine.core"
local options = require "rlengine.options"

local c = core.rpc

local observers = {}

-- Of rl.launch, in a trainer whose observers are started again: function(name, reason).
observers.restart = nil

local Observers = {}
Observers.__index = Observers

local function log(text, ...) core.launch.log(text:format(...)) end

-- "ready", "pending", "gone", "failed", ...; nil for what is no reference.
local function state_of(observer)
  local refs = require "rlengine.rpc.refs"
  if getmetatable(observer) ~= refs.meta or observer.own then return nil end
  local _, _, _, state = c.describe(observer[1])
  return state
end

--- @param list of remote references; a new reference takes the place of one that is lost
-- @param given patience, rejoin: seconds, as rl.episode has them; remake: function(i, reference)
function observers.new(list, given)
  return setmetatable({
    list = list, patience = given.patience or 5, rejoin = given.rejoin or 60,
    remake = given.remake or function(_, observer) return observer:remake() end,
    away = {}, -- i -> "lost", "asked" (whether it hears), "hung"
    life = {}, -- i -> incarnation of the one that hung
  }, Observers)
end

local function playing(self)
  local n = 0
  for i = 1, #self.list do
    if not self.away[i] then n = n + 1 end
  end
  return n
end

local function name_of(observer) return (c.describe(observer[1])) end

local function life_of(name)
  local worker = require("rlengine.rpc").worker_info(name)
  return worker and worker.connected and worker.incarnation
end

-- Take observer i back in, if that is possible now.
local function take_back(self, i)
  local observer, away = self.list[i], self.away[i]
  local name = name_of(observer)
  local life = life_of(name)
  -- One that hung is of use in its next life only; its connection may come back without that.
  if not life or away == "asked" or away == "hung" and life == self.life[i] then return end
  local state = state_of(observer)
  if state ~= "ready" and state ~= "pending" then self.list[i] = self.remake(i, observer) end
  self.away[i] = nil
  log('observer "%s" is back; %d of %d play', name, playing(self), #self.list)
end

--- Positions of those that play.
function Observers:present()
  local list = {}
  for i = 1, #self.list do
    if self.away[i] then take_back(self, i) end
    if not self.away[i] and state_of(self.list[i]) == "gone" then self:lost(i) end
    if not self.away[i] then list[#list + 1] = i end
  end
  return list
end

function Observers:lost(i)
  self.away[i] = "lost"
  log('observer "%s" is lost; %d of %d play on', name_of(self.list[i]), playing(self), #self.list)
end

-- " (pid 4242, in step 217 of its environment)", as far as that is known.
local function whereabouts(name)
  local worker = require("rlengine.rpc").worker_info(name)
  if not worker or not worker.pid then return "" end
  return (" (pid %d%s)"):format(worker.pid, worker.doing ~= "" and ", " .. worker.doing or "")
end

local function hangs(self, i, name)
  local reason = ("no reply after deadline + %.1f s"):format(self.patience)
  self.away[i], self.life[i] = "hung", life_of(name)
  if observers.restart then
    observers.restart(name, reason)
    return
  end
  log('observer "%s" hangs: %s%s; %d of %d play on', name, reason, whereabouts(name),
    playing(self), #self.list)
end

-- Its deadline has passed. Does it hear anything? Where nobody can start it again it is asked
-- until it does.
local function ask(self, i)
  local observer = self.list[i]
  local name = name_of(observer)
  self.away[i] = "asked"
  local rpc = require "rlengine.rpc"
  require("rlengine.rpc.futures").spawn(function()
    local ok, err
    repeat
      local to = rpc.to(name):rpc_async { timeout = self.patience }
      ok, err = pcall(function() return to["rlengine.alive"](to):wait() end)
      if self.list[i] ~= observer then return end
      if ok or err.code ~= "DEADLINE_EXCEEDED" then
        self.away[i] = "lost" -- to come back at once when it is there
      elseif self.away[i] ~= "hung" then
        hangs(self, i, name)
      end
    until self.away[i] ~= "hung" or observers.restart
  end)
end

--- Observer i did not finish: returns true when that is its worker's fate, false when `err` is
-- an error of what it ran.
function Observers:failed(i, err)
  local state = state_of(self.list[i])
  if not state then return false end
  local name = name_of(self.list[i])
  -- It may be lost while its object is being made anew: no answer to that, or none was sent.
  local unmade = state == "failed" and err.code == "UNAVAILABLE" and err.outcome and not err.via
  if state == "gone" or unmade then
    if not self.away[i] then self:lost(i) end
  elseif err.code == "DEADLINE_EXCEEDED" and err.worker == name then
    log("%s; its episode is dropped%s", err.message, whereabouts(name))
    if not self.away[i] then ask(self, i) end
  else
    -- What could not even be made is made again before it plays again.
    if state == "failed" then self.away[i] = "lost" end
    return false
  end
  return true
end

--- Nobody plays: wait until somebody does, or raise `err` after `rejoin` seconds.
function Observers:wait_for_one(err)
  local rpc = require "rlengine.rpc"
  local ends = c.clock() + self.rejoin
  while #self:present() == 0 do
    if c.clock() >= ends then
      if err then error(err, 0) end
      options.fail("UNAVAILABLE", "no observer has come back for %g s", self.rejoin)
    end
    rpc.sleep(0.02)
  end
end

return observers
