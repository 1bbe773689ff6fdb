--- References to objects of any worker, workers themselves, and the proxies that turn
-- `ref:rpc_sync():method(...)` into a call. Part of `rlengine.rpc`.
--
-- A reference is a table: [1] its target (a userdata that holds the object), [2] a ticket
-- while it is being sent to a third worker. Its proxies are kept in it, and in each proxy a
-- function for every method name that was used, so that a call makes no garbage.

local core = require "rlengine.core"
local options = require "rlengine.options"
local exports = require "rlengine.rpc.exports"
local futures = require "rlengine.rpc.futures"

local c = core.rpc
local fail = options.fail
local sync, take, async = c.sync, c.take, c.async
local objects, object_records = exports.objects, exports.object_records
local spawn, timeout_of = futures.spawn, futures.timeout_of

-- Kinds of calls, as engine/lua/lua_rpc_call.c numbers them.
local CALL, CONSTRUCT, QUIET = 0, 1, 2

local unpack = table.unpack or unpack -- luacheck: ignore

local refs = {}

local numbers = setmetatable({}, { __mode = "k" }) -- own object -> number
local own_refs, far_refs, workers -- number -> Ref, "worker:number" -> Ref, name -> Worker

local function weak() return setmetatable({}, { __mode = "v" }) end
own_refs, far_refs, workers = weak(), weak(), weak()

-- ---- references -------------------------------------------------------------

local Ref = {}
refs.meta = { __index = Ref, __name = "rlengine.Ref" }
local ref_meta = refs.meta

local function new_ref(target, own)
  return setmetatable({ target, false, own = own }, ref_meta)
end

function ref_meta.__tostring(self)
  local worker, class, number, state = c.describe(self[1])
  return ('Ref(%s%s on "%s"%s)'):format(class ~= "" and class or "object",
    number and (" %d"):format(number) or "", worker, state == "ready" and "" or ", " .. state)
end

-- The same object is to come as the same reference: this one, made by rpc.remote, whose number
-- is known by now.
local function enlist(ref)
  if ref.enlisted ~= false then return end
  local worker, _, number, state = c.describe(ref[1])
  if state ~= "ready" then return end
  ref.enlisted = true
  local key = worker .. ":" .. number
  local other = far_refs[key]
  if not other or select(4, c.describe(other[1])) ~= "ready" then far_refs[key] = ref end
end

--- Wait until the object exists; raises what went wrong when it was made.
function Ref:wait(given)
  local timeout = given ~= nil and futures.wait_of("wait", given) or nil
  c.again(self[1])
  if c.pending(self[1]) then
    c.wait_target(self[1], timeout)
    c.waited()
    if c.pending(self[1]) then
      fail("DEADLINE_EXCEEDED", "%s is not there after %.3f s", tostring(self), timeout)
    end
  end
  c.check(self[1])
  enlist(self)
  return self
end

--- Make the object again, of the same class with the same arguments, and return a reference to
-- the new one: its worker was started again and knows nothing of the old one. Only for what
-- rpc.remote returned, and where no argument was a tensor (the reference would keep it alive).
function Ref:remake()
  local made = self.made
  if not made then
    fail("FAILED_PRECONDITION", "%s cannot be made again: that takes a reference from rpc.remote, "
      .. "with no tensor among the arguments", tostring(self))
  end
  return refs.make_remote(made.worker, made.timeout, made.class, unpack(made, 1, made.n))
end

--- The object itself, where it lives; nil elsewhere.
function Ref:local_value()
  return self.own
end

--- Name of the worker that owns the object.
function Ref:owner()
  return (c.describe(self[1]))
end

--- Give the reference back now, rather than when it is collected. (LuaJIT's compiled code may hold
-- one of those that a hot loop used, for as long as it is there itself: jit.flush() drops it.)
function Ref:release()
  local worker, _, number = c.describe(self[1])
  if number then far_refs[worker .. ":" .. number] = nil end
  if self.own and number then own_refs[number] = nil end
  c.release(self[1])
end

local function own_ref(number)
  local ref = own_refs[number]
  if ref then return ref end
  local record = object_records[number]
  local target = record and c.hold(number, record.name)
  if not target then fail("NOT_FOUND", "reference %d was released", number) end
  ref = new_ref(target, objects[number])
  own_refs[number] = ref
  return ref
end

--- rpc.rref; see rpc.lua.
function refs.rref(object)
  local record = exports.record_of(object)
  if not record then
    fail("INVALID_ARGUMENT", "rpc.rref wants an object of a class made with rpc.class, got %s",
      type(object))
  end
  local number = numbers[object]
  if number and own_refs[number] then return own_refs[number] end
  local target = number and c.hold(number, record.name)
  if not target then
    number, target = c.export(record.name)
    numbers[object], objects[number], object_records[number] = number, object, record
  end
  local ref = new_ref(target, object)
  own_refs[number] = ref
  return ref
end
exports.rref = refs.rref

--- Nobody refers to that object any more.
function refs.dropped(number)
  local object = objects[number]
  if object ~= nil and numbers[object] == number then numbers[object] = nil end
  objects[number], object_records[number] = nil, nil
end

--- Forget everything: the worker has stopped.
function refs.clear()
  for number in pairs(objects) do refs.dropped(number) end
  own_refs, far_refs, workers = weak(), weak(), weak()
end

-- ---- references in messages -------------------------------------------------

local SENDERS, RECEIVERS = 0, 1 -- who owns the object; else a third worker

--- A reference that stands in a message.
function refs.make(kind, number, class, owner, ticket, addresses, incarnation)
  if kind == RECEIVERS then return own_ref(number) end
  if kind == SENDERS then
    local key = c.sender() .. ":" .. number
    local ref = far_refs[key]
    if ref and c.adopt_again(ref[1]) then return ref end
    ref = new_ref((c.adopt(number, class)))
    far_refs[key] = ref
    return ref
  end
  if owner == c.name() then
    local claimed = c.redeem(ticket)
    local ref = own_ref(number)
    if claimed then c.unhold(claimed) end
    return ref
  end
  c.hint(owner, addresses)
  local key = owner .. ":" .. number
  local known = far_refs[key]
  if known and c.is_of(known[1], incarnation) then
    c.return_ticket(owner, number, class, incarnation, ticket)
    return known
  end
  local ref = new_ref(c.claim(owner, number, class, incarnation, ticket))
  far_refs[key] = ref
  return ref
end

-- A reference about to be sent to `worker` must be of an object that exists; one to an
-- object of a third worker takes a ticket along, which its owner is told of.
local function prepare_ref(ref, worker)
  if ref.own then return end
  ref:wait()
  local owner, _, number = c.describe(ref[1])
  if owner == worker then return end
  local ticket = c.ticket()
  local told = async(c.owner(ref[1]), "rlengine.grant", 0, QUIET, number, ticket)
  if c.status(told) == "failed" then c.values(told) end -- raises: it was not even sent
  ref[2] = ticket
end

local function prepare(value, worker, depth)
  if type(value) ~= "table" then return end
  if getmetatable(value) == ref_meta then
    prepare_ref(value, worker)
  elseif depth < 64 then
    for _, v in next, value do prepare(v, worker, depth + 1) end
  end
end

--- Make the references among some values ready to be sent to `worker`.
function refs.prepare_all(worker, ...)
  for i = 1, select("#", ...) do prepare((select(i, ...)), worker, 0) end
end
local prepare_all = refs.prepare_all

-- ---- proxies ----------------------------------------------------------------

local function wrong_self(name)
  fail("INVALID_ARGUMENT", 'call "%s" with a colon: ref:rpc_sync():%s(...)', name, name)
end

-- A table whose fields are functions that call that method; each is made once.
local function proxy(make)
  return setmetatable({}, {
    __index = function(self, name)
      if type(name) ~= "string" then
        fail("INVALID_ARGUMENT", "a method's name is a string, not a %s", type(name))
      end
      local fn = make(self, name)
      rawset(self, name, fn)
      return fn
    end,
  })
end

local function sync_proxy(target, timeout, worker)
  return proxy(function(self, name)
    return function(this, ...)
      if this ~= self then wrong_self(name) end
      if sync(target, name, timeout, CALL, ...) then
        prepare_all(worker, ...)
        sync(target, name, timeout, CALL, ...)
      end
      return take()
    end
  end)
end

local function async_proxy(target, timeout, worker)
  return proxy(function(self, name)
    return function(this, ...)
      if this ~= self then wrong_self(name) end
      local future = async(target, name, timeout, CALL, ...)
      if future == true then
        prepare_all(worker, ...)
        future = async(target, name, timeout, CALL, ...)
      end
      return future
    end
  end)
end

-- What this worker owns is called directly. `find(name)` gives the function.
local function own_proxy(find, is_async, ...)
  local first, has_first = ..., select("#", ...) > 0
  return proxy(function(self, name)
    return function(this, ...)
      if this ~= self then wrong_self(name) end
      if is_async then
        if has_first then return spawn(find(name), first, ...) end
        return spawn(find(name), ...)
      end
      if has_first then return find(name)(first, ...) end
      return find(name)(...)
    end
  end)
end

-- LuaJIT compiles for a function object, which the compiled code then holds, with its reference,
-- until a few functions have been made from the same source. From then on it compiles for the
-- source and holds none. So the first few belong to no reference.
for _ = 1, 4 do
  for _, made in ipairs { sync_proxy(nil, 0, ""), async_proxy(nil, 0, ""), own_proxy() } do
    assert(made.method)
  end
end

-- Proxies are kept by kind; those with a timeout by that, too, as long as there are few. A script
-- that computes its timeouts may have a new one with every call.
local TIMEOUTS_KEPT = 16

local function cached(self, kind, given, make)
  local proxies = self.proxies
  if not proxies then
    proxies = {}
    self.proxies = proxies
  end
  local key = kind
  if given ~= nil then
    local timeout = timeout_of(kind, given)
    if timeout then
      key = timeout
      local timed = proxies[kind .. " within"]
      if not timed or not timed[timeout] and timed.n == TIMEOUTS_KEPT then
        timed = { n = 0 }
        proxies[kind .. " within"] = timed
      end
      proxies = timed
    end
  end
  local found = proxies[key]
  if not found then
    found = make(key == kind and 0 or key)
    proxies[key] = found
    if proxies.n then proxies.n = proxies.n + 1 end
  end
  return found
end

local function ref_proxy(self, is_async, timeout)
  local object = self.own
  if object ~= nil then
    local record = exports.record_of(object)
    return own_proxy(function(name) return exports.method(record, name) end, is_async, object)
  end
  local make = is_async and async_proxy or sync_proxy
  return make(self[1], timeout, (c.describe(self[1])))
end

--- `ref:rpc_sync():method(...)`: call and wait. Options: {timeout = seconds}.
function Ref:rpc_sync(given)
  if given == nil and self.sync then return self.sync end
  local found = cached(self, "rpc_sync", given, function(timeout)
    return ref_proxy(self, false, timeout)
  end)
  if given == nil then self.sync = found end
  return found
end

--- `ref:rpc_async():method(...)`: returns a future at once. Options: {timeout = seconds}.
function Ref:rpc_async(given)
  return cached(self, "rpc_async", given, function(timeout)
    return ref_proxy(self, true, timeout)
  end)
end

-- ---- workers ----------------------------------------------------------------

local Worker = {}
local worker_meta = { __index = Worker, __name = "rlengine.Worker" }

function worker_meta.__tostring(self)
  return ('Worker("%s")'):format(self.name)
end

local function worker_proxy(self, is_async, timeout)
  if self.is_self then return own_proxy(exports.fn, is_async) end
  local make = is_async and async_proxy or sync_proxy
  return make(self[1], timeout, self.name)
end

--- `rpc.to("agent_0"):rpc_sync{timeout = 5}:ping()`: call a function of that worker.
function Worker:rpc_sync(given)
  return cached(self, "rpc_sync", given, function(timeout)
    return worker_proxy(self, false, timeout)
  end)
end

--- As rpc_sync; returns a future.
function Worker:rpc_async(given)
  return cached(self, "rpc_async", given, function(timeout)
    return worker_proxy(self, true, timeout)
  end)
end

-- What it takes to make an object again; nil when a tensor is needed for it.
local function recipe(worker, timeout, class, ...)
  local made = { worker = worker, timeout = timeout, class = class, n = select("#", ...), ... }
  for i = 1, made.n do
    if type(made[i]) == "userdata" then return nil end
  end
  return made
end

local function make_remote(worker, timeout, class, ...)
  if worker.is_self then return refs.rref(exports.class_named(class).class(...)) end
  local target = c.construct(worker[1], class, timeout, CONSTRUCT, ...)
  if target == true then
    prepare_all(worker.name, ...)
    target = c.construct(worker[1], class, timeout, CONSTRUCT, ...)
  end
  local ref = new_ref(target)
  ref.enlisted = false
  ref.made = recipe(worker, timeout, class, ...)
  return ref
end
refs.make_remote = make_remote

--- `rpc.to("obs_0"):remote():Observer(1)`: make an object there, as rpc.remote.
function Worker:remote(given)
  return cached(self, "remote", given, function(timeout)
    return proxy(function(proxy_self, class)
      return function(this, ...)
        if this ~= proxy_self then wrong_self(class) end
        return make_remote(self, timeout, class, ...)
      end
    end)
  end)
end

--- rpc.to; see rpc.lua.
function refs.to(name)
  local worker = workers[name]
  if worker and worker.generation == c.generation() then return worker end
  local target, is_self = c.worker(name)
  worker = setmetatable({ target, name = name, is_self = is_self, generation = c.generation() },
    worker_meta)
  workers[name] = worker
  return worker
end

return refs
