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
--
-- Calls are executed at most once. A call that fails raises an error object with `code`,
-- `worker` and `method` where it first happened, `traceback`, `via` (workers it passed
-- through), and for calls that got lost `outcome`: "not executed" or "unknown".
--
-- A worker that this one connected to and lost is looked for (rpc.init: reconnect_for). Calls that
-- were open fail, calls made meanwhile wait until it is back, and references to objects of before
-- are gone: rpc.on_join is where to make them anew, rpc.retry what makes a lost call again.

local core = require "rlengine.core"
local options = require "rlengine.options"
local batch = require "rlengine.rpc.batch"
local exports = require "rlengine.rpc.exports"
local futures = require "rlengine.rpc.futures"
local members = require "rlengine.rpc.members"
local refs = require "rlengine.rpc.refs"
local weights = require "rlengine.rpc.weights"

local c = core.rpc
local fail = options.fail

local rpc = {}

-- ---- declaring --------------------------------------------------------------

--- Declare a class whose objects others may make here and call.
-- The result is callable: `Agent(ctx)` makes an object and runs `init`.
-- @function class
-- @param name what `rpc.remote` asks for
-- @param methods list of the methods others may call; `init` and all else are not reachable
-- @param[opt] given {from = "obs_*"}: which workers may
rpc.class = exports.class

--- Let others call `fn` under that name: `rpc.rpc_sync("agent_0", "ping")`.
-- @function register
-- @param name 1 to 64 letters, digits, "_" or "."
-- @param fn the function
-- @param[opt] given {from = "obs_*"}: which workers may
rpc.register = exports.register

--- Answer calls of many workers together: `fn` runs once for all who called meanwhile, with
-- their arguments stacked. The result is a function for `rpc.register`, or a method of a class.
-- See rlengine/rpc/batch.lua for what fn is given and returns.
-- @function batched
-- @param fn function(inputs..., batch), as a method function(self, inputs..., batch)
-- @param given input: what a row of each argument is, {"obs f32[4]", "id any"}; size (64): rows
--   it runs with at once; delay (200e-6 s): longest wait of a call; when_idle (false): do not
--   wait while this worker and the device have nothing else to do; name: who wants what
--   `input` says, in messages (default: the name it is called by); device: where the rows
--   are (default: the default device)
rpc.batched = batch.batched

-- ---- calling ----------------------------------------------------------------

--- The worker of that name, to call its functions with options:
-- `rpc.to("agent_0"):rpc_sync{timeout = 5}:ping()`.
-- @function to
rpc.to = refs.to

--- A reference to an object of this worker, to give to others; the same for the same object.
-- While anybody holds one, the object stays alive.
-- @function rref
rpc.rref = refs.rref

--- Call a registered function of another worker and wait.
function rpc.rpc_sync(worker, name, ...)
  local to = refs.to(worker):rpc_sync()
  return to[name](to, ...)
end

--- Call a registered function of another worker; returns a future.
function rpc.rpc_async(worker, name, ...)
  local to = refs.to(worker):rpc_async()
  return to[name](to, ...)
end

--- Make an object of a class declared on that worker. Returns a reference at once; should
-- making it fail, its first use raises the error.
function rpc.remote(worker, class, ...)
  local to = refs.to(worker):remote()
  return to[class](to, ...)
end

-- ---- weights ----------------------------------------------------------------

--- Publish the weights of a net under a name, for workers that act with a copy of it: what is
-- in it now is the first version, and each `weights:publish()` the next. The same name again
-- takes another net's from then on. Details: rpc/weights.lua.
-- @function weights
-- @param name 1 to 64 letters, digits, "_", "." or "-"
-- @param net a module, or a table name -> tensor
-- @param[opt] given from ("obs_*"): which workers may follow; version (0): where counting
--   begins; max_lag: how many versions old what `weights:accepts(piece)` accepts may be
-- @return an object with `version`, `publish()`, `accepts(piece)`, `stale`, `info()`, `close()`
rpc.weights = weights.publish

--- Follow weights that another worker publishes, now or later, also over a new connection.
-- Each version lies ready when it has arrived; `weights:update()` puts the newest into the net.
-- @function follow
-- @param worker its name
-- @param name of the weights
-- @param net as there: the same names, shapes and types; what does not fit is refused whole
-- @return an object with `version` (0: none yet), `update()`, `wait{timeout = seconds}`, `close()`
rpc.follow = weights.follow

-- ---- waiting ----------------------------------------------------------------

--- Wait for every future of a list. Returns a table of their first results, in order.
-- The first failure is raised as soon as it happens.
-- @function wait_all
-- @param list of futures
-- @param[opt] given {fail_fast = false}: wait for all; errors stand in the table in place of
--   results. {timeout = seconds}: wait no longer.
rpc.wait_all = futures.wait_all

--- Wait until any future of a list is over. Returns its position and itself.
-- @function wait_any
-- @param list of futures
-- @param[opt] given {timeout = seconds}
rpc.wait_any = futures.wait_any

--- Call fn(attempt) until it does not fail with UNAVAILABLE or DEADLINE_EXCEEDED, and return
-- what it returns. What calls of it got lost may have been executed, so they must be of a kind
-- that does no harm when executed twice, and that has to be said: idempotent = true.
--
--    rpc.retry(function() trainer:rpc_sync{timeout = 1}:report(episode, step, reward) end,
--      {idempotent = true})
--
-- Pauses double from one attempt to the next and are stretched at random. In a handler it ends
-- before the deadline of the call being served. The last failure is raised.
-- @function retry
-- @param fn the function, which makes the call
-- @param given idempotent; attempts (5); backoff (0.1): seconds before the second attempt
rpc.retry = require "rlengine.rpc.retry"

--- Let others run for that many seconds.
-- @function sleep
rpc.sleep = futures.sleep

-- ---- life -------------------------------------------------------------------

local joined -- names of the workers this one connected to

-- Where calls need threads, their number is a setting, and memory grows with it. Scripts that
-- come from there are told that it means nothing here.
local thread_settings = { "worker_threads", "num_worker_threads", "io_threads" }
local told

--- `given` without the settings that ask for threads, each process's first of which is told
-- on standard error unless `quiet`.
local function without_threads(given, quiet)
  local rest = given
  for _, key in ipairs(thread_settings) do
    if type(given) == "table" and given[key] ~= nil then
      if rest == given then
        rest = {}
        for k, value in pairs(given) do rest[k] = value end
      end
      if not (told or quiet) then
        io.stderr:write(("rlengine: config: worker threads %s asked, not used: calls need no "
          .. "threads\n"):format(tostring(given[key])))
        told = true
      end
      rest[key] = nil
    end
  end
  return rest
end
rpc._without_threads = without_threads

--- Become a worker.
-- @param given name; listen, connect: an address or a list ("unix:/path",
--   "tcp://127.0.0.1:29500"; port 0 picks one); token, token_fd or token_file (default:
--   $RLENGINE_TOKEN_FILE, ~/.config/rlengine/token); max_concurrent (256): calls served at
--   once; max_calls (64): calls a worker may have open here; call_timeout (60 s): deadline of
--   calls that give none; timeout (10 s): a worker silent for so long is given up; heartbeat
--   (3 s, at most a third of timeout): so long silent it is asked; connect_timeout (10 s): so long
--   connecting is tried again; join_timeout (10 s): so long a call waits for a worker that was
--   never here; reconnect_for (60 s; 0: not at all): a worker that this one connected to and lost
--   is looked for, and calls to it wait; max_message (64 MiB): bytes accepted; tls: encrypts
--   TCP connections, "psk" with a key made from the token, or {cert = file, key = file, ca = file,
--   name =}: certificates of both sides, in PEM; name: what those of workers we connect to must
--   name (default: the host of the address);
--   insecure_network: listen or connect beyond this machine without TLS; allow_uids: other users
--   at Unix sockets; busy_after (30 s): log a call that keeps a worker's Lua so long; busy_poll
--   (50e-6 s; 0: not at all): a wait looks for so long whether something came before it sleeps;
--   worker_threads, num_worker_threads, io_threads: accepted and not used, calls need none
-- @return the addresses it listens on
function rpc.init(given)
  local bound
  bound, joined = c.init(without_threads(given))
  return bound
end

local SERVE_STEP = 3600

--- Serve calls: until this worker is told to stop, or every worker it connected to has said
-- goodbye and gone. One that was lost is waited for while it is looked for; when it is not
-- found, or was not looked for, serve raises UNAVAILABLE.
function rpc.serve()
  while true do
    local membership, present = c.membership(), 0
    for _, name in ipairs(joined or {}) do
      local _, left, there, looked_for = c.connected(name)
      if there or looked_for then
        present = present + 1
      elseif not left then
        c.lost(name)
      end
    end
    if joined and #joined > 0 and present == 0 then return end
    if c.serve(SERVE_STEP, membership) then
      rpc.shutdown()
      return
    end
  end
end

--- Call fn(name, incarnation) for every worker that joins, and for those that are there now.
-- A worker that comes back after it was lost joins again, also when its process is the same
-- (then the incarnation is): references of before are gone, so make its objects anew here.
--
--    rpc.on_join(function(name) observers[name] = rpc.remote(name, "Observer") end)
--
-- fn runs in a coroutine of its own and may wait. Returns a function that ends it.
-- @function on_join
rpc.on_join = members.on_join

--- Call fn(name, incarnation, goodbye) for every worker that goes; goodbye: it said that it
-- leaves, it was not lost. Returns a function that ends it.
-- @function on_leave
rpc.on_leave = members.on_leave

-- Wait until each of the workers is connected or, with or_left, was and has said goodbye.
local function wait_for(names, timeout, or_left)
  local ends = c.clock() + timeout
  while true do
    local missing
    for _, name in ipairs(names) do
      local connected, left = c.connected(name)
      if not connected and not (or_left and left) then
        c.found(name)
        missing = name
      end
    end
    if not missing then return end
    if c.clock() >= ends then
      fail("DEADLINE_EXCEEDED", 'worker "%s" has not joined in %.3f s%s', missing, timeout,
        c.who_is_here(missing))
    end
    futures.sleep(0.005)
  end
end

--- Wait until those workers are connected. Raises what made one of them be given up, when it
-- was looked for and not found. A call to a worker that has yet to join waits by itself, but not
-- longer than join_timeout (rpc.init).
-- @param names of the workers: a list, or a single one
-- @param[opt] given {timeout = seconds}, default 60: then DEADLINE_EXCEEDED
function rpc.wait_for(names, given)
  if type(names) == "string" then names = { names } end
  if type(names) ~= "table" then
    fail("INVALID_ARGUMENT", "rpc.wait_for wants the names of workers, got %s", type(names))
  end
  for i = 1, #names do
    if type(names[i]) ~= "string" then
      fail("INVALID_ARGUMENT", "rpc.wait_for wants the names of workers, entry %d is a %s", i,
        type(names[i]))
    end
  end
  wait_for(names, futures.wait_of("wait_for", given) or 60)
end

-- For rl.launch: a process that was quick may be done before another sees that it came. What it
-- calls meanwhile is yet to be declared, so it waits.
function rpc._wait_for_start(names)
  c.hold_calls(true)
  wait_for(names, 60, true)
  c.hold_calls(false)
end

--- Stop being a worker: no new calls, those being served may finish, peers are told. In a
-- handler it makes rpc.serve return.
-- The program rlengine does without it when it ends well: at the end of the script or with
-- os.exit(0) it says goodbye by itself, though it waits for no calls then. A process that fails, is
-- interrupted or killed is lost to its peers, and those that connected to it look for it; so is
-- one of another Lua that ends without rpc.shutdown.
-- @param[opt] given {timeout = seconds}, default 10: how long calls may take to finish
function rpc.shutdown(given)
  local timeout = futures.wait_of("rpc.shutdown", given) or 10
  if not c.active() then return end
  if c.in_handler() then
    c.want_stop()
    return
  end
  c.stop()
  local pause, ends = 0.001, c.clock() + timeout
  while c.clock() < ends do
    local serving, _, flushed = c.open_calls()
    if serving == 0 and flushed then break end
    futures.sleep(pause)
    if pause < 0.02 then pause = pause * 2 end
  end
  c.close()
  joined = nil
  refs.clear()
  members.clear()
  weights.clear()
end

-- ---- looking ----------------------------------------------------------------

--- This worker: {name, addresses}; with a name, what is known of that one, or nil.
function rpc.worker_info(name)
  if name == nil or name == c.name() then
    return {
      name = c.name(), addresses = c.addresses(), connected = true, incarnation = c.incarnation(),
    }
  end
  for _, worker in ipairs(c.workers()) do
    if worker.name == name then return worker end
  end
end

--- Every other worker met, of those that are gone the last 1,024, by name: {name, incarnation,
-- connected, reconnecting, left, pid, address, silent (seconds), doing (what keeps it, as it said
-- when it last answered a ping: "in step 217 of its environment"), calls_to, calls_from,
-- references, bytes_in, bytes_out}.
function rpc.workers()
  local list = c.workers()
  table.sort(list, function(a, b) return a.name < b.name end)
  return list
end

--- The references there are, from both ends: list of {object, class, owner, holder, count, age
-- (seconds since it was made, or sent to that holder), line (of the script, that did)}. owner and
-- holder are workers' names, "" is this one: objects of this worker with who holds them, then
-- those of others that this one holds.
function rpc.refs()
  local list = c.exports()
  for _, entry in ipairs(list) do
    local record = exports.object_records[entry.object]
    entry.owner, entry.class = "", record and record.name
  end
  for _, entry in ipairs(c.held()) do
    entry.holder = ""
    list[#list + 1] = entry
  end
  table.sort(list, function(a, b)
    if a.owner ~= b.owner then return a.owner < b.owner end
    if a.object ~= b.object then return a.object < b.object end
    if a.holder ~= b.holder then return a.holder < b.holder end
    return a.age > b.age
  end)
  return list
end

--- Counters of this worker, for reports and tests.
-- @function counters
rpc.counters = c.counters

--- What this worker is busy with, as text to print: connections, open futures with the lines
-- that made them, calls being served, who holds references, and where each coroutine stands.
function rpc.dump()
  local text, coroutines = c.dump()
  local parts = { text }
  for _, entry in ipairs(rpc.refs()) do
    parts[#parts + 1] = ("  object %d %s of %s: held %d times by %s for %.1f s, since %s\n"):format(
      entry.object, entry.class or "", entry.owner == "" and "this worker" or entry.owner,
      entry.count, entry.holder == "" and "this worker" or entry.holder, entry.age, entry.line)
  end
  for _, entry in ipairs(coroutines) do
    parts[#parts + 1] = ("  %s %s\n"):format(entry.method == "" and "spawned coroutine"
      or ('coroutine of "%s"'):format(entry.method),
      (debug.traceback(entry.coroutine):gsub("\n", "\n    ")))
  end
  return (table.concat(parts):gsub("\n$", ""))
end

--- In a handler: the caller's name, the seconds left until its deadline (or nil), and the
-- caller's incarnation: 16 hexadecimal digits that change when its process starts again.
-- @function caller
rpc.caller = c.caller

--- In a handler: true when nobody waits for the result any more. What the handler waits for then
-- ends at once with CANCELLED, and should end it too: after 16 such errors in one handler each
-- wait takes 10 ms, so that one which catches them for ever leaves the core to others.
-- @function cancelled
rpc.cancelled = c.cancelled

--- What this worker is doing, in few words: others are told when it takes long and hears
-- nothing meanwhile. Steps of environments are noted by themselves. nil: nothing any more.
-- @function note
rpc.note = c.note

--- Write a new token file (mode 0600) for workers that are started by hand.
-- @function make_token
-- @param path of the file, which must not be there yet
rpc.make_token = c.make_token

-- ---- what the C side calls --------------------------------------------------

local args, reply, dispatch = c.args, c.reply, exports.dispatch

local function answer(...)
  if reply(...) then -- a reference among the results has to be made ready first
    refs.prepare_all((c.caller()), ...)
    reply(...)
  end
end

-- Body of a handler's coroutine.
local function entry()
  return answer(dispatch(args()))
end

local function keep(values, ...)
  values.n = select("#", ...)
  for i = 1, values.n do values[i] = (select(i, ...)) end
  c.done()
end

-- Body of a spawned coroutine.
local function spawned(values, fn, ...)
  c.begin()
  return keep(values, fn(...))
end

-- Integers of 64 bits, where numbers hold 53: LuaJIT has a type for them.
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
    if not unsigned and high >= 2 ^ 31 then high = high - 2 ^ 32 end
    local v = high * 2 ^ 32 + low
    if v > 2 ^ 53 or v < -2 ^ 53 then
      fail("INVALID_ARGUMENT", "an integer of more than 53 bits does not fit into a number")
    end
    return v
  end
end

c.hooks {
  dispatch, entry, spawned, refs.make, refs.dropped, int64, int64_kind, refs.meta, {},
  exports.batched, batch.entry(exports.objects),
  members.changed,
}

return rpc
