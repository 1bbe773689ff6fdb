--- Remote calls between workers: `local rpc = rl.rpc`.
--
-- A worker has a name; it listens, connects to others, or both. What others may call here is
-- what was declared: functions given to `rpc.register` and, of a class made with `rpc.class`,
-- its construction and the methods in its list. Nothing else is reachable.
--
--    rpc.init{name = "agent_0", listen = "unix:/run/user/1000/train/agent_0"}
--    local Observer = rpc.class("Observer", {"run_episode"})
--    local observer = rpc.remote("obs_0_for_0", "Observer", 1)
--    local total = observer:rpc_sync():run_episode(rpc.rref(agent))
--    local future = observer:rpc_async{timeout = 5}:run_episode(rpc.rref(agent))
--    print(future:wait())

local core = require "rlengine.core"
local c = core.rpc
local sync, take, async = c.sync, c.take, c.async

-- Kinds of calls, as engine/lua/lua_rpc_call.c numbers them.
local CALL, CONSTRUCT, QUIET, CLAIM = 0, 1, 2, 3

local rpc = {}

local RESERVED = "rlengine%."

local function raise(code, message, ...)
  error(core.error.new { code = code, message = message:format(...) }, 0)
end

local function check_options(options, known, what)
  if options == nil then return end
  if type(options) ~= "table" then
    raise("INVALID_ARGUMENT", "%s: expected a table of options, got %s", what, type(options))
  end
  for key in pairs(options) do
    if not known[key] then
      local names = {}
      for name in pairs(known) do names[#names + 1] = name end
      local near = core.error.nearest(tostring(key), names)
      raise("INVALID_ARGUMENT", near and 'unknown option "%s"; did you mean "%s"?'
        or 'unknown option "%s"', tostring(key), near)
    end
  end
end

local TIMEOUT = { timeout = true }

-- Seconds out of {timeout = seconds}; 0 stands for the default.
local function timeout_of(options, what)
  if options == nil then return 0 end
  check_options(options, TIMEOUT, what)
  local timeout = options.timeout
  if timeout == nil then return 0 end
  if type(timeout) ~= "number" or not (timeout > 0) then
    raise("INVALID_ARGUMENT", "timeout must be a number of seconds > 0")
  end
  return timeout
end

-- ---- what others may call ---------------------------------------------------

local functions = {} -- name -> {fn, from}
local classes = {}   -- name -> {class, methods = {name -> true}, from}
local records = {}   -- class -> its record
local objects = {}   -- number -> object, as long as anybody refers to it
local object_records = {}
local numbers = setmetatable({}, { __mode = "k" }) -- object -> number
local own_refs = setmetatable({}, { __mode = "v" }) -- number -> Ref
local far_refs = setmetatable({}, { __mode = "v" }) -- "worker:number" -> Ref

local function check_name(name, what)
  if type(name) ~= "string" or #name < 1 or #name > 64 or name:find("[^%w_.]") then
    raise("INVALID_ARGUMENT", '%s must be 1 to 64 letters, digits, "_" or ".", not "%s"', what,
      tostring(name))
  end
  if name:find("^" .. RESERVED) then
    raise("INVALID_ARGUMENT", 'names that begin with "rlengine." belong to the engine')
  end
end

-- "obs_*" as a Lua pattern.
local function pattern_of(from)
  if from == nil then return nil end
  if type(from) ~= "string" then
    raise("INVALID_ARGUMENT", "from must be a worker's name, with * for any letters")
  end
  return "^" .. from:gsub("[^%w_*]", "%%%0"):gsub("%*", ".*") .. "$"
end

local function not_exported(name)
  raise("NOT_FOUND", '"%s" exports no "%s"', c.name(), name)
end

local function check_caller(pattern, caller, name)
  if pattern and caller and not caller:find(pattern) then
    raise("PERMISSION_DENIED", '"%s" may not call "%s" of "%s"', caller, name, c.name())
  end
end

local function method_of(record, name)
  local fn = record.methods[name] and rawget(record.class, name)
  if not fn then not_exported(name) end
  return fn
end

local builtin = {}

-- A call that arrived: find what it names and do it. Names are looked up in plain tables.
local function dispatch(construct, number, name, caller, ...)
  if number ~= 0 then
    local record = object_records[number]
    if not record then raise("NOT_FOUND", "reference %d was released", number) end
    local fn = record.methods[name] and rawget(record.class, name)
    if not fn then not_exported(name) end
    if record.from then check_caller(record.from, caller, name) end
    return fn(objects[number], ...)
  end
  if construct then
    local record = classes[name]
    if not record then not_exported(name) end
    check_caller(record.from, caller, name)
    return rpc.rref(record.class(...))
  end
  local entry = functions[name]
  if entry then
    if entry.from then check_caller(entry.from, caller, name) end
    return entry.fn(...)
  end
  local fn = builtin[name]
  if fn then return fn(caller, ...) end
  not_exported(name)
end

--- Declare a class whose objects others may make here and call.
-- The result is callable: `Agent(ctx)` makes an object and runs `init`.
-- @param name what `rpc.remote` asks for
-- @param methods list of the methods others may call; `init` and all else are not reachable
-- @param[opt] options {from = "obs_*"}: which workers may
function rpc.class(name, methods, options)
  check_name(name, "a class's name")
  check_options(options, { from = true }, "rpc.class")
  if type(methods) ~= "table" then
    raise("INVALID_ARGUMENT", "rpc.class wants the list of methods that others may call")
  end
  if classes[name] then
    raise("ALREADY_EXISTS", 'a class "%s" is declared already', name)
  end
  local exported = {}
  for _, method in ipairs(methods) do
    check_name(method, "a method's name")
    if method == "init" then
      raise("INVALID_ARGUMENT", "init runs when an object is made; it cannot be exported")
    end
    exported[method] = true
  end
  local class = { __name = name }
  class.__index = class
  setmetatable(class, {
    __call = function(self, ...)
      local object = setmetatable({}, self)
      local init = rawget(self, "init")
      if init then init(object, ...) end
      return object
    end,
    __tostring = function() return "class " .. name end,
  })
  local record = {
    class = class, name = name, methods = exported, from = pattern_of(options and options.from),
  }
  classes[name], records[class] = record, record
  return class
end

--- Let others call `fn` under that name: `rpc.rpc_sync("agent_0", "ping")`.
-- @param[opt] options {from = "obs_*"}: which workers may
function rpc.register(name, fn, options)
  check_name(name, "a function's name")
  check_options(options, { from = true }, "rpc.register")
  if type(fn) ~= "function" then
    raise("INVALID_ARGUMENT", "rpc.register wants a function, got %s", type(fn))
  end
  functions[name] = { fn = fn, from = pattern_of(options and options.from) }
end

-- ---- futures ----------------------------------------------------------------

local Future = c.future_methods

--- Wait until it is over; returns the results or raises the error.
-- @param[opt] options {timeout = seconds}: wait no longer; the call itself goes on
function Future:wait(options)
  local timeout
  if options ~= nil then timeout = timeout_of(options, "wait") end
  if c.status(self) == "pending" then
    c.wait(self, timeout)
    c.waited()
    if c.status(self) == "pending" then
      raise("DEADLINE_EXCEEDED", "%s is not done after %.3f s", tostring(self), timeout)
    end
  end
  return c.values(self)
end

--- True when there is a result or an error.
function Future:done()
  return c.status(self) ~= "pending"
end

--- Tell the other side that nobody waits. The future fails with CANCELLED.
function Future:cancel()
  c.cancel(self)
end

-- Run fn(...) in a coroutine of the scheduler; returns a future.
local function spawn(fn, ...)
  return c.spawn({}, fn, ...)
end

--- A future of fn(results), which runs when this one is done; its error is passed on.
function Future:next(fn)
  return spawn(function() return fn(self:wait()) end)
end

local WAIT_ALL = { fail_fast = true, timeout = true }

local function timed_out(list)
  local pending = 0
  for _, future in ipairs(list) do
    if c.status(future) == "pending" then pending = pending + 1 end
  end
  raise("DEADLINE_EXCEEDED", "%d of %d futures are not done", pending, #list)
end

--- Wait for every future of a list. Returns a table of their first results, in order.
-- The first failure is raised as soon as it happens.
-- @param[opt] options {fail_fast = false}: wait for all; errors stand in the table in place
--   of results. {timeout = seconds}: wait no longer.
function rpc.wait_all(list, options)
  check_options(options, WAIT_ALL, "wait_all")
  local fail_fast = not options or options.fail_fast ~= false
  local timeout = options and options.timeout
  c.wait_many(list, fail_fast and 2 or 0, timeout)
  c.waited()
  local results = {}
  if fail_fast then
    for i = 1, #list do
      if c.status(list[i]) == "failed" then return (c.values(list[i])) end
    end
  end
  for i = 1, #list do
    if c.status(list[i]) == "pending" then timed_out(list) end
    local err = c.error_of(list[i])
    if err ~= nil then
      results[i] = err
    else
      results[i] = (c.values(list[i]))
    end
  end
  return results
end

--- Wait until any future of a list is over. Returns its position and itself.
-- @param[opt] options {timeout = seconds}
function rpc.wait_any(list, options)
  check_options(options, TIMEOUT, "wait_any")
  c.wait_many(list, 1, options and options.timeout)
  c.waited()
  for i = 1, #list do
    if c.status(list[i]) ~= "pending" then return i, list[i] end
  end
  timed_out(list)
end

--- Let others run for that many seconds.
function rpc.sleep(seconds)
  c.sleep(seconds)
  c.waited()
end

-- ---- references -------------------------------------------------------------
--
-- A reference is a table: [1] its target, [2] a ticket when it is about to be sent to a
-- third worker. Its proxies are kept in it, so that a call makes no garbage.

local Ref = {}
local ref_meta = { __index = Ref, __name = "rlengine.Ref" }
local function new_ref(target, own)
  return setmetatable({ target, false, own = own }, ref_meta)
end

function ref_meta.__tostring(self)
  local worker, class, number, state = c.describe(self[1])
  return ('Ref(%s%s on "%s"%s)'):format(class ~= "" and class or "object",
    number and (" %d"):format(number) or "", worker, state == "ready" and "" or ", " .. state)
end

--- Wait until the object exists; raises what went wrong when it was made.
function Ref:wait(options)
  if c.pending(self[1]) then
    c.wait_target(self[1], options and timeout_of(options, "wait"))
    c.waited()
    if c.pending(self[1]) then
      raise("DEADLINE_EXCEEDED", "%s is not there after %.3f s", tostring(self), options.timeout)
    end
  end
  c.check(self[1])
  return self
end

-- A reference about to be sent to `worker` must be of an object that exists; one to an
-- object of a third worker takes a ticket along, which its owner is told of.
local function prepare_ref(ref, worker)
  if ref.own then return end
  ref:wait()
  local owner, _, number = c.describe(ref[1])
  if owner == worker then return end
  ref[2] = c.ticket()
  async((c.worker(owner)), "rlengine.grant", 0, QUIET, number, ref[2])
end

local function prepare(value, worker, depth)
  if type(value) ~= "table" then return end
  if getmetatable(value) == ref_meta then
    prepare_ref(value, worker)
  elseif depth < 64 then
    for _, v in next, value do prepare(v, worker, depth + 1) end
  end
end

local function prepare_all(worker, ...)
  for i = 1, select("#", ...) do prepare((select(i, ...)), worker, 0) end
end

local function own_ref(number)
  local ref = own_refs[number]
  if ref then return ref end
  local record = object_records[number]
  local target = record and c.hold(number, record.name)
  if not target then raise("NOT_FOUND", "reference %d was released", number) end
  ref = new_ref(target, objects[number])
  own_refs[number] = ref
  return ref
end

--- A reference to an object of this worker, to give to others; the same for the same object.
-- While anybody holds one, the object stays alive.
function rpc.rref(object)
  local record = records[getmetatable(object)]
  if not record then
    raise("INVALID_ARGUMENT", "rpc.rref wants an object of a class made with rpc.class, got %s",
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

-- Nobody refers to it any more.
local function dropped(number)
  local object = objects[number]
  if object ~= nil and numbers[object] == number then numbers[object] = nil end
  objects[number], object_records[number] = nil, nil
end

local SENDERS, RECEIVERS = 0, 1

-- A reference in a message.
local function make_ref(kind, number, class, owner, ticket, addresses)
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
    local claimed = c.claim(ticket)
    local ref = own_ref(number)
    if claimed then c.unhold(claimed) end
    return ref
  end
  c.hint(owner, addresses)
  local key = owner .. ":" .. number
  local known = far_refs[key]
  if known then
    local _, _, _, state = c.describe(known[1])
    if state == "ready" then return known end
  end
  local target = c.construct((c.worker(owner)), "rlengine.claim", 0, CLAIM, ticket)
  local ref = new_ref(target)
  ref.class = class
  far_refs[key] = ref
  return ref
end

-- ---- proxies ----------------------------------------------------------------

local function wrong_self(name)
  raise("INVALID_ARGUMENT", 'call "%s" with a colon: ref:rpc_sync():%s(...)', name, name)
end

local function method_name(name)
  if type(name) ~= "string" then
    raise("INVALID_ARGUMENT", "a method's name is a string, not a %s", type(name))
  end
end

-- A table whose fields are functions that call that method; made once for each name.
local function proxy(make)
  return setmetatable({}, {
    __index = function(self, name)
      method_name(name)
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

-- An object of this worker is called directly.
local function own_sync_proxy(object)
  local record = records[getmetatable(object)]
  return proxy(function(self, name)
    local fn = method_of(record, name)
    return function(this, ...)
      if this ~= self then wrong_self(name) end
      return (rawget(record.class, name) or fn)(object, ...)
    end
  end)
end

local function own_async_proxy(object)
  local record = records[getmetatable(object)]
  return proxy(function(self, name)
    return function(this, ...)
      if this ~= self then wrong_self(name) end
      return spawn(method_of(record, name), object, ...)
    end
  end)
end

-- Proxies of a reference or worker by kind and timeout.
local function cached(self, kind, options, make)
  if options == nil then
    local found = self[kind]
    if not found then
      found = make(0)
      self[kind] = found
    end
    return found
  end
  local timeout = timeout_of(options, kind)
  local by_timeout = self._by_timeout
  if not by_timeout then
    by_timeout = {}
    self._by_timeout = by_timeout
  end
  local key = kind .. timeout
  local found = by_timeout[key]
  if not found then
    found = make(timeout)
    by_timeout[key] = found
  end
  return found
end

--- `ref:rpc_sync():method(...)`: call and wait. Options: {timeout = seconds}.
function Ref:rpc_sync(options)
  if options == nil and self._sync then return self._sync end
  return cached(self, "_sync", options, function(timeout)
    if self.own then return own_sync_proxy(self.own) end
    return sync_proxy(self[1], timeout, (c.describe(self[1])))
  end)
end

--- `ref:rpc_async():method(...)`: returns a future at once. Options: {timeout = seconds}.
function Ref:rpc_async(options)
  if options == nil and self._async then return self._async end
  return cached(self, "_async", options, function(timeout)
    if self.own then return own_async_proxy(self.own) end
    return async_proxy(self[1], timeout, (c.describe(self[1])))
  end)
end

--- The object itself, where it lives; nil elsewhere.
function Ref:local_value()
  return self.own
end

--- Name of the worker that owns the object.
function Ref:owner()
  return (c.describe(self[1]))
end

--- Give the reference back now, rather than when it is collected.
function Ref:release()
  local worker, _, number = c.describe(self[1])
  if number then far_refs[worker .. ":" .. number] = nil end
  if self.own and number then own_refs[number] = nil end
  c.release(self[1])
end

local Worker = {}
local worker_meta = { __index = Worker, __name = "rlengine.Worker" }
local workers = setmetatable({}, { __mode = "v" })

function worker_meta.__tostring(self)
  return ('Worker("%s")'):format(self.name)
end

-- Functions of this worker itself are called directly.
local function own_function(name)
  local entry = functions[name]
  if not entry then not_exported(name) end
  return entry.fn
end

local function own_worker_proxy(is_async)
  return proxy(function(self, name)
    return function(this, ...)
      if this ~= self then wrong_self(name) end
      if is_async then return spawn(own_function(name), ...) end
      return own_function(name)(...)
    end
  end)
end

local function make_remote(worker, timeout, class, ...)
  if worker.is_self then
    local record = classes[class]
    if not record then not_exported(class) end
    return rpc.rref(record.class(...))
  end
  local target = c.construct(worker[1], class, timeout, CONSTRUCT, ...)
  if target == true then
    prepare_all(worker.name, ...)
    target = c.construct(worker[1], class, timeout, CONSTRUCT, ...)
  end
  return new_ref(target)
end

--- `rpc.to("agent_0"):rpc_sync{timeout = 5}:ping()`: call a function of that worker.
function Worker:rpc_sync(options)
  return cached(self, "_sync", options, function(timeout)
    if self.is_self then return own_worker_proxy(false) end
    return sync_proxy(self[1], timeout, self.name)
  end)
end

--- As rpc_sync; returns a future.
function Worker:rpc_async(options)
  return cached(self, "_async", options, function(timeout)
    if self.is_self then return own_worker_proxy(true) end
    return async_proxy(self[1], timeout, self.name)
  end)
end

--- `rpc.to("obs_0"):remote():Observer(1)`: make an object there, as rpc.remote.
function Worker:remote(options)
  return cached(self, "_remote", options, function(timeout)
    return proxy(function(proxy_self, class)
      return function(this, ...)
        if this ~= proxy_self then wrong_self(class) end
        return make_remote(self, timeout, class, ...)
      end
    end)
  end)
end

--- The worker of that name, to call its functions with options.
function rpc.to(name)
  local worker = workers[name]
  if worker and worker.membership == c.generation() then return worker end
  local target, is_self = c.worker(name)
  worker = setmetatable({ target, name = name, is_self = is_self, membership = c.generation() },
    worker_meta)
  workers[name] = worker
  return worker
end

--- Call a registered function of another worker and wait.
function rpc.rpc_sync(worker, name, ...)
  local to = rpc.to(worker):rpc_sync()
  return to[name](to, ...)
end

--- Call a registered function of another worker; returns a future.
function rpc.rpc_async(worker, name, ...)
  local to = rpc.to(worker):rpc_async()
  return to[name](to, ...)
end

--- Make an object of a class declared on that worker. Returns a reference at once; should
-- making it fail, its first use raises the error.
function rpc.remote(worker, class, ...)
  local to = rpc.to(worker):remote()
  return to[class](to, ...)
end

-- ---- tickets for references given to third workers --------------------------

builtin["rlengine.grant"] = function(_, number, ticket)
  c.grant(number, ticket)
end

local CLAIM_PATIENCE = 5 -- the ticket's grant may come after its claim

builtin["rlengine.claim"] = function(_, ticket)
  local number = c.claim(ticket)
  local waited = 0
  while not number and waited < CLAIM_PATIENCE do
    rpc.sleep(0.01)
    waited = waited + 0.01
    number = c.claim(ticket)
  end
  if not number then raise("NOT_FOUND", "this reference was released") end
  local ref = own_ref(number)
  c.unhold(number)
  return ref
end

-- ---- life -------------------------------------------------------------------

local joined -- workers this one connected to

--- Become a worker.
-- @param options name; listen, connect: an address or a list ("unix:/path",
--   "tcp://127.0.0.1:29500"; port 0 picks one); token, token_fd or token_file (default:
--   $RLENGINE_TOKEN_FILE, ~/.config/rlengine/token); max_concurrent (256): calls served at
--   once; max_calls (64): calls a worker may have open here; call_timeout (60), heartbeat
--   (3), timeout (10): seconds until a silent worker is given up; connect_timeout (10);
--   max_message (64 MiB): bytes accepted; insecure_network: listen or connect beyond this
--   machine without TLS; allow_uids: other users at Unix sockets
-- @return the addresses it listens on
function rpc.init(options)
  local bound
  bound, joined = c.init(options)
  return bound
end

--- Serve calls: until this worker is told to stop, or every worker it connected to has said
-- goodbye. Raises UNAVAILABLE when one of those is lost.
function rpc.serve()
  while true do
    local present, lost = 0, nil
    local membership = c.membership()
    for _, name in ipairs(joined) do
      local _, left, there = c.connected(name)
      if there then
        present = present + 1
      elseif not left then
        lost = name
      end
    end
    if lost then raise("UNAVAILABLE", 'worker "%s" disconnected', lost) end
    if #joined > 0 and present == 0 then return end
    if c.serve(3600, membership) then
      rpc.shutdown()
      return
    end
  end
end

--- Wait until those workers are connected (names), at most `timeout` seconds (60).
function rpc.wait_for(names, options)
  check_options(options, TIMEOUT, "wait_for")
  local timeout = options and options.timeout or 60
  local waited = 0
  while true do
    local missing
    for _, name in ipairs(names) do
      if not c.connected(name) then missing = name end
    end
    if not missing then return end
    if waited >= timeout then
      raise("DEADLINE_EXCEEDED", 'worker "%s" has not joined in %.3f s', missing, timeout)
    end
    rpc.sleep(0.005)
    waited = waited + 0.005
  end
end

--- Stop being a worker: no new calls, those being served may finish for `timeout` seconds
-- (10), peers are told. In a handler it makes rpc.serve return.
function rpc.shutdown(options)
  check_options(options, TIMEOUT, "rpc.shutdown")
  if not c.active() then return end
  if c.in_handler() then
    c.want_stop()
    return
  end
  local timeout = options and options.timeout or 10
  c.stop()
  local pause, waited = 0.001, 0
  while waited < timeout do
    local serving, _, flushed = c.open_calls()
    if serving == 0 and flushed then break end
    rpc.sleep(pause)
    waited = waited + pause
    if pause < 0.02 then pause = pause * 2 end
  end
  c.close()
  for number in pairs(objects) do dropped(number) end
  own_refs = setmetatable({}, { __mode = "v" })
  far_refs = setmetatable({}, { __mode = "v" })
  workers = setmetatable({}, { __mode = "v" })
end

--- This worker: {name, addresses}; with a name, what is known of that one, or nil.
function rpc.worker_info(name)
  if name == nil or name == c.name() then
    return { name = c.name(), addresses = c.addresses(), connected = true }
  end
  for _, worker in ipairs(c.workers()) do
    if worker.name == name then return worker end
  end
end

--- Every other worker met so far, by name: {name, connected, left, pid, address, silent
-- (seconds), calls_to, calls_from, references, bytes_in, bytes_out}.
function rpc.workers()
  local list = c.workers()
  table.sort(list, function(a, b) return a.name < b.name end)
  return list
end

--- Who holds references to objects of this worker: list of {object, class, holder, count};
-- holder "" is this worker itself.
function rpc.refs()
  local list = c.exports()
  for _, entry in ipairs(list) do
    local record = object_records[entry.object]
    entry.class = record and record.name
  end
  table.sort(list, function(a, b)
    if a.object ~= b.object then return a.object < b.object end
    return a.holder < b.holder
  end)
  return list
end

--- Counters of this worker, for reports and tests.
function rpc.counters()
  return c.counters()
end

--- In a handler: the caller's name, and the seconds left until its deadline.
function rpc.caller()
  return c.caller()
end

--- In a handler: true when nobody waits for the result any more.
function rpc.cancelled()
  return c.cancelled()
end

--- Write a new token file (mode 0600) for workers that are started by hand.
function rpc.make_token(path)
  c.make_token(path)
end

-- ---- what the C side calls --------------------------------------------------

local args, reply = c.args, c.reply

local function answer(...)
  if reply(...) then
    prepare_all((c.caller()), ...)
    reply(...)
  end
end

local function entry()
  return answer(dispatch(args()))
end

local function keep(values, ...)
  values.n = select("#", ...)
  for i = 1, values.n do values[i] = (select(i, ...)) end
  c.done()
end

local function spawned(values, fn, ...)
  c.begin()
  return keep(values, fn(...))
end

local int64, int64_kind
if jit then -- luacheck: ignore
  local ffi = require "ffi"
  function int64_kind(value)
    return ffi.istype("int64_t", value) and 1 or ffi.istype("uint64_t", value) and 2 or 0
  end
  function int64(high, low, unsigned)
    local v = ffi.cast("uint64_t", high) * ffi.cast("uint64_t", 2 ^ 32)
      + ffi.cast("uint64_t", low)
    return unsigned and v or ffi.cast("int64_t", v)
  end
else
  function int64_kind() return 0 end
  function int64(high, low, unsigned)
    if not unsigned and high >= 2147483648 then high = high - 4294967296 end
    local v = high * 4294967296 + low
    if v > 9007199254740992 or v < -9007199254740992 then
      raise("INVALID_ARGUMENT", "an integer of more than 53 bits does not fit into a number")
    end
    return v
  end
end

c.hooks { dispatch, entry, spawned, make_ref, dropped, int64, int64_kind, ref_meta, {} }

return rpc
