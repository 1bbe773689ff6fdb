--- A policy's weights for many observers, a version at a time: `rpc.weights` where it is trained,
-- `rpc.follow` where it acts. Part of `rlengine.rpc`.
--
--    local weights = rpc.weights("policy", policy)             -- trainer: version 1
--    optimizer:step() weights:publish()                        -- version 2
--
--    local weights = rpc.follow("agent_0", "policy", policy)   -- observer
--    weights:update()                                          -- between episodes
--
-- A version is encoded once, goes over each connection at most once, and a version that was
-- overtaken while its receiver was still busy with an older one is not sent. Who comes later, or
-- comes back, gets the newest at once. All this goes on while both sides compute; the net
-- changes in update() and nowhere else.

local core = require "rlengine.core"
local options = require "rlengine.options"
local futures = require "rlengine.rpc.futures"

local c = core.rpc
local fail = options.fail
local is_tensor = core.tensor.is_tensor

local weights = {}

local published = {} -- name -> Published
local followed       -- "worker name" -> {core, users}, as long as anybody follows
local function reset()
  published = {}
  followed = setmetatable({}, { __mode = "v" })
end
reset()

-- Names, sorted, and tensors of a module or of a table name -> tensor.
local function contents(what, net)
  local dict = net
  if type(net) == "table" and type(net.state_dict) == "function" then dict = net:state_dict() end
  if type(dict) ~= "table" then
    fail("INVALID_ARGUMENT", "%s wants a module, or a table of tensors by name, got %s", what,
      type(net))
  end
  local names, tensors = {}, {}
  for name, tensor in pairs(dict) do
    if type(name) ~= "string" or not is_tensor(tensor) then
      fail("INVALID_ARGUMENT", "%s: field %s of the weights is a %s under a %s; what is sent are "
        .. "tensors under names", what, tostring(name), type(tensor), type(name))
    end
    names[#names + 1] = name
  end
  table.sort(names)
  for i, name in ipairs(names) do tensors[i] = dict[name] end
  return names, tensors
end

-- ---- where they are trained ---------------------------------------------------

local Published = {}
Published.__index = Published

function Published:__tostring()
  return ('Weights("%s", version %d)'):format(self.name, self.version)
end

--- Make what is in the net now the newest version, for all who follow. Returns its number,
-- which is also in `version`.
function Published:publish()
  local names, tensors = contents("publish", self.net)
  self.version = c.weights_publish(self[1], names, tensors)
  return self.version
end

--- Whether something that was made with `version` (a number, or a piece of rl.rollout) is
-- recent enough: at most max_lag versions old. What is not counts in `stale`.
function Published:accepts(version)
  if type(version) == "table" then version = version.version end
  if type(version) ~= "number" then
    fail("INVALID_ARGUMENT", "accepts wants a version, or a piece that has one, got %s",
      type(version))
  end
  local lag = self.version - version
  if lag >= 0 and lag <= self.max_lag then return true end
  self.stale = self.stale + 1
  return false
end

--- What became of it so far: {version, sent (versions that were sent, to all together), bytes
-- (of one), waiting (followers that have the newest)}.
function Published:info()
  local version, sent, bytes, waiting = c.weights_look(self[1])
  return { version = version, sent = sent, bytes = bytes, waiting = waiting }
end

--- Nobody can follow these weights any more. Closing them again does nothing.
function Published:close()
  if self.closed then return end
  self.closed = true
  if published[self.name] == self then published[self.name] = nil end
  c.weights_close(self[1])
end

--- rpc.weights; see rpc.lua.
function weights.publish(name, net, given)
  if type(name) ~= "string" then
    fail("INVALID_ARGUMENT", "rpc.weights wants a name, got %s", type(name))
  end
  given = options.check("rpc.weights", given, { from = "string", version = "number",
    max_lag = "number" })
  if given.version and (given.version % 1 ~= 0 or given.version < 0) then
    fail("INVALID_ARGUMENT", "rpc.weights: version must be a whole number from 0, got %s",
      tostring(given.version))
  end
  if given.max_lag and not (given.max_lag >= 0) then
    fail("INVALID_ARGUMENT", "rpc.weights: max_lag must be a number of versions from 0, got %s",
      tostring(given.max_lag))
  end
  contents("rpc.weights", net)
  local before = published[name]
  local version = given.version or before and before.version or 0
  if before then before:close() end
  local self = setmetatable({
    c.weights_open(name, given.from or "", version), name = name, net = net, version = version,
    max_lag = given.max_lag or math.huge, stale = 0,
  }, Published)
  published[name] = self
  self:publish()
  return self
end

-- ---- where they are followed --------------------------------------------------

local Followed = {}
Followed.__index = Followed

function Followed:__tostring()
  return ('Weights("%s" of "%s", version %d)'):format(self.name, self.worker, self.version)
end

-- Every handle has taken what arrived last: its memory may be used again.
local function done(shared)
  for handle in pairs(shared.users) do
    if handle.seen ~= (c.follow_look(shared[1])) then return end
  end
  c.follow_done(shared[1])
end

-- The newest into the net; false: it is there already.
local function take(self)
  local shared = self.shared
  local serial, failed = c.follow_look(shared[1])
  if failed then c.follow_error(shared[1]) end
  if serial == 0 or serial == self.seen then return false end
  local names, tensors = contents("update", self.net)
  self.seen = serial
  self.version = c.follow_take(shared[1], names, tensors,
    ('weights "%s" of "%s"'):format(self.name, self.worker))
  done(shared)
  return true
end

--- Wait until a version has arrived that is newer than the one in the net, and take it.
-- Returns its number.
-- @param[opt] given {timeout = seconds}, default 60: then DEADLINE_EXCEEDED
function Followed:wait(given)
  local timeout = given ~= nil and futures.wait_of("wait", given) or 60
  local pause, ends = 0.0005, c.clock() + timeout
  while not take(self) do
    if c.clock() >= ends then
      local _, _, connected = c.follow_look(self.shared[1])
      if not connected then
        fail("UNAVAILABLE", 'worker "%s" is not connected, no "%s" has come in %.3f s',
          self.worker, self.name, timeout)
      end
      fail("DEADLINE_EXCEEDED", 'worker "%s" has published no%s "%s" in %.3f s', self.worker,
        self.version > 0 and " newer" or "", self.name, timeout)
    end
    futures.sleep(pause)
    if pause < 0.005 then pause = pause * 2 end
  end
  return self.version
end

--- Put the newest version that has arrived into the net, in place. Returns true when the net
-- has changed. The first time it waits for one, as `wait` does. While a rollout is in the
-- middle of an episode, nothing changes.
function Followed:update()
  if next(self.busy) then return false end
  if self.version == 0 then return self:wait() ~= nil end
  return take(self)
end

--- Follow no longer. The net keeps what is in it. Closing again does nothing.
function Followed:close()
  if self.closed then return end
  self.closed = true
  local shared = self.shared
  shared.users[self] = nil
  if next(shared.users) == nil then
    if followed[shared.key] == shared then followed[shared.key] = nil end
    c.follow_close(shared[1])
  end
end

--- rpc.follow; see rpc.lua.
function weights.follow(worker, name, net)
  if type(worker) ~= "string" or type(name) ~= "string" then
    fail("INVALID_ARGUMENT", "rpc.follow wants a worker's name, a name of weights and a net")
  end
  contents("rpc.follow", net)
  local key = worker .. " " .. name
  local shared = followed[key]
  if not shared then
    shared = { c.follow_open(worker, name), key = key, users = setmetatable({}, { __mode = "k" }) }
    followed[key] = shared
  end
  local self = setmetatable({
    shared = shared, worker = worker, name = name, net = net, version = 0, seen = 0,
    busy = setmetatable({}, { __mode = "k" }), -- rollouts that are in the middle of a piece
  }, Followed)
  shared.users[self] = true
  return self
end

--- Forget everything: the worker has stopped.
weights.clear = reset

return weights
