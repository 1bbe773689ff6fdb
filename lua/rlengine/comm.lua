--- Collectives: what several workers compute together. `local comm = rl.comm`.
--
--    local group = rl.comm.group()                    -- all trainers of rl.launch
--    group:all_reduce(grads, { op = "mean" })         -- a tensor or a list of them, in place
--    group:broadcast(weights, { from = 0 })
--    local all = group:all_gather(returns)            -- [ranks, ...]
--    group:barrier()
--
-- Every rank of a group makes the same calls in the same order; each waits until all are there.
-- Meanwhile a worker serves calls of others. The result has the same bits at every rank: values
-- are combined element by element in the order of the ranks.
--
-- Options of every collective: name ("grads"), for messages, has to be the same at every rank;
-- timeout (120 s, or the group's); async = true: returns a future at once, whose result is what
-- the call would have returned. Until it is done its tensors must be left alone.
--
-- What fails, fails at every rank, and leaves its tensors as they were:
--   INVALID_ARGUMENT   ranks call different collectives; the message has both
--   UNAVAILABLE        a rank was lost; the message has its rank and worker
--   CANCELLED          a rank has closed the group
--   DEADLINE_EXCEEDED  allreduce "grads" not finished after 120 s (rank 1 silent?)
-- The group can be used further, as long as its members are there.

local core = require "rlengine.core"
local options = require "rlengine.options"
local futures = require "rlengine.rpc.futures"
local team = require "rlengine.team"

local c, rpc = core.comm, core.rpc
local fail = options.fail
local is_tensor = core.tensor.is_tensor

local TIMEOUT, CONNECT_TIMEOUT = 120, 10

local comm = {}

local Group = {}
Group.__index = Group

function Group:__tostring()
  return ("Group(rank %d of %d: %s)"):format(self.rank, self.size, table.concat(self.names, ", "))
end

-- ---- groups -----------------------------------------------------------------

-- How often a group of these workers was made, and the one that is made without naming any; of
-- one life of the worker.
local counts, default, generation

local function check_life()
  if generation == rpc.generation() then return end
  generation, counts, default = rpc.generation(), {}, nil
end

-- Groups of the same workers, whatever their order.
local function key_of(names)
  local sorted = {}
  for i, worker in ipairs(names) do sorted[i] = tostring(worker) end
  table.sort(sorted)
  return table.concat(sorted, " ")
end

local function seconds(what, value)
  if value ~= nil and not (value > 0) then
    fail("INVALID_ARGUMENT", "%s must be a number of seconds > 0", what)
  end
  return value
end

-- The ranks below ours are connected to; those above connect to us.
local function reach(names, rank, addresses, timeout)
  for i = 1, rank do
    local address = addresses[names[i]]
    if address and not rpc.connected(names[i]) then
      local found = c.connect(address, timeout)
      if found ~= names[i] then
        fail("INVALID_ARGUMENT", 'at %s is worker "%s", not "%s"', address, found, names[i])
      end
    end
  end
end

local function rank_of(names)
  local own = rpc.active() and rpc.name()
  for i, name in ipairs(names) do
    if name == own then return i - 1 end
  end
  return 0 -- core says what is wrong
end

--- A group of workers: their names, in the order of the ranks (from 0), the same everywhere. This
-- worker is one of them. Without names: all trainers of rl.launch, the same group each time.
--
-- Ranks that are not connected yet are connected to, by address: trainers of rl.launch know
-- each other's, others are given in `addresses`.
-- @param[opt] given list of names, and
--   name: a worker has one group of a name at a time, once it is closed the name is free again
--     (default: the how many-th of these workers it is);
--   timeout (120 s): of collectives that give none;
--   addresses: table name -> address; connect_timeout (10 s)
-- @return an object with `rank`, `size`, `names` and the collectives as methods
-- @raise INVALID_ARGUMENT when others have made it of other workers, or in another order: then
--   their collectives fail, too; ALREADY_EXISTS when this worker is in a group of that name
function comm.group(given)
  check_life()
  local names, named = {}, {}
  for key, value in pairs(given or {}) do
    if type(key) == "number" then names[key] = value else named[key] = value end
  end
  local o = options.check("comm.group", named, { name = "string", timeout = "number",
    addresses = "table", connect_timeout = "number" })
  seconds("comm.group: timeout", o.timeout)
  seconds("comm.group: connect_timeout", o.connect_timeout)
  local is_default = #names == 0 and next(named) == nil
  if is_default and default then return default end
  if #names == 0 then
    if not team.names then
      fail("INVALID_ARGUMENT", "comm.group wants the names of its workers; only a trainer of "
        .. "rl.launch has a group without them")
    end
    for i, name in ipairs(team.names) do names[i] = name end
  end
  reach(names, rank_of(names), o.addresses or team.addresses or {},
    o.connect_timeout or CONNECT_TIMEOUT)
  -- One that cannot be made does not count: the others wait for it.
  local key = key_of(names)
  local count = (counts[key] or 0) + 1
  local handle, rank = c.group(names, o.name or "#" .. count)
  local self = setmetatable({
    handle, names = names, rank = rank, size = #names, timeout = o.timeout or TIMEOUT,
  }, Group)
  if not o.name then counts[key] = count end
  if is_default then default = self end
  return self
end

--- Leave it. Collectives that are not over fail, at the other ranks too.
function Group:close()
  if self.closed then return end
  self.closed = true
  if default == self then default = nil end
  if generation == rpc.generation() and rpc.active() then c.close(self[1]) end
end

-- ---- collectives ------------------------------------------------------------

local COMMON = { name = "string", timeout = "number", async = "boolean" }

local function with(more)
  local known = {}
  for key, value in pairs(COMMON) do known[key] = value end
  for key, value in pairs(more) do known[key] = value end
  return known
end

local REDUCE, TO, FROM = with { op = "string" }, with { op = "string", to = "number" },
  with { from = "number" }

-- A tensor or a list of tensors, as a list.
local function list_of(what, tensors)
  if is_tensor(tensors) then return { tensors } end
  if type(tensors) ~= "table" or #tensors == 0 then
    fail("INVALID_ARGUMENT", "%s wants a tensor, or a list of tensors, got %s", what,
      type(tensors) == "table" and "a table without any" or type(tensors))
  end
  return tensors
end

local function root_of(what, rank)
  if rank ~= nil and (rank % 1 ~= 0 or math.abs(rank) > 1e6) then
    fail("INVALID_ARGUMENT", "%s: a rank is a whole number from 0, got %s", what, tostring(rank))
  end
  return rank or 0
end

local function finish(work, result)
  c.wait(work)
  rpc.waited()
  local gathered = c.finish(work)
  if gathered ~= nil then return gathered end
  return result
end

local function run(self, kind, list, result, o, root)
  seconds(kind .. ": timeout", o.timeout)
  local timeout, left = o.timeout or self.timeout, rpc.time_left()
  if left and left < timeout then timeout = math.max(left, 1e-3) end
  local work = c.begin(self[1], kind, list, o.op or "sum", root, o.name, timeout)
  if o.async then return futures.spawn(finish, work, result) end
  return finish(work, result)
end

--- Combine what all ranks have; each then has the result, in place of its own.
-- @param tensors a tensor or a list of tensors of one dtype, of the same shapes at every rank
-- @param[opt] given op: "sum" (default), "mean", "min", "max" or "prod"; name, timeout, async
-- @return tensors
function Group:all_reduce(tensors, given)
  local o = options.check("all_reduce", given, REDUCE)
  return run(self, "all_reduce", list_of("all_reduce", tensors), tensors, o, 0)
end

--- The same, with the result only at rank `to`; the others keep what they have.
-- @param tensors a tensor or a list of tensors of one dtype
-- @param[opt] given to (0); op, name, timeout, async
-- @return tensors
function Group:reduce(tensors, given)
  local o = options.check("reduce", given, TO)
  return run(self, "reduce", list_of("reduce", tensors), tensors, o, root_of("reduce", o.to))
end

--- Give every rank what rank `from` has, in place.
-- @param tensors a tensor or a list of tensors of one dtype
-- @param[opt] given from (0); name, timeout, async
-- @return tensors
function Group:broadcast(tensors, given)
  local o = options.check("broadcast", given, FROM)
  return run(self, "broadcast", list_of("broadcast", tensors), tensors, o,
    root_of("broadcast", o.from))
end

--- What each rank has, side by side.
-- @param tensor of the same shape and dtype at every rank; it is only read
-- @param[opt] given name, timeout, async
-- @return a new tensor [size, ...], without history
function Group:all_gather(tensor, given)
  local o = options.check("all_gather", given, COMMON)
  if not is_tensor(tensor) then
    fail("INVALID_ARGUMENT", "all_gather wants a tensor, got %s", type(tensor))
  end
  return run(self, "all_gather", { tensor }, nil, o, 0)
end

--- Wait until every rank has come here.
-- @param[opt] given name, timeout, async
function Group:barrier(given)
  return run(self, "barrier", {}, nil, options.check("barrier", given, COMMON), 0)
end

--- Put the mean over all ranks into the gradients of these parameters: between backward and the
-- optimizer's step. A parameter without a gradient here counts as zeros.
--
--    loss:backward()
--    group:average_gradients(policy:parameters())
--    optimizer:step()
-- @param parameters list of leaves, in the same order at every rank
-- @param[opt] given name ("gradients"), timeout, async
function Group:average_gradients(parameters, given)
  local o = options.check("average_gradients", given, COMMON)
  local grads = {}
  for i, parameter in ipairs(list_of("average_gradients", parameters)) do
    if not parameter.grad then parameter.grad = parameter:detach():clone():zero_() end
    grads[i] = parameter.grad
  end
  return self:all_reduce(grads, { op = "mean", name = o.name or "gradients",
    timeout = o.timeout, async = o.async })
end

-- The same on the group of all trainers: `rl.comm.all_reduce(x)`.
for name, method in pairs(Group) do
  if name:sub(1, 2) ~= "__" and name ~= "close" then
    comm[name] = function(...) return method(comm.group(), ...) end
  end
end

return comm
