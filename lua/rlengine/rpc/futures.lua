--- Futures: the methods of a call's result to come, and waiting for several. Part of
-- `rlengine.rpc`.

local core = require "rlengine.core"
local options = require "rlengine.options"

local c = core.rpc
local fail = options.fail

local futures = {}

local TIMEOUT = { timeout = "number" }

--- How long to wait, out of {timeout = seconds}; nil when that is not said. 0: look, wait not.
function futures.wait_of(what, given)
  local timeout = options.check(what, given, TIMEOUT).timeout
  if timeout ~= nil and not (timeout >= 0) then
    fail("INVALID_ARGUMENT", "%s: timeout must be a number of seconds >= 0, got %s", what,
      tostring(timeout))
  end
  return timeout
end
local wait_of = futures.wait_of

--- How long a call may take, out of {timeout = seconds}; nil when that is not said.
function futures.timeout_of(what, given)
  local timeout = options.check(what, given, TIMEOUT).timeout
  if timeout ~= nil and timeout <= 0 or timeout ~= timeout then
    fail("INVALID_ARGUMENT", "%s: timeout must be a number of seconds > 0", what)
  end
  return timeout
end

local Future = c.future_methods

--- Wait until it is over; returns the results or raises the error.
-- @param[opt] given {timeout = seconds}: wait no longer; the call itself goes on
function Future:wait(given)
  local timeout = given ~= nil and wait_of("wait", given) or nil
  if c.status(self) == "pending" then
    c.wait(self, timeout)
    c.waited()
    if c.status(self) == "pending" then
      fail("DEADLINE_EXCEEDED", "%s is not done after %.3f s", tostring(self), timeout)
    end
  end
  return c.values(self)
end

--- True when there is a result or an error.
function Future:done()
  return c.status(self) ~= "pending"
end

--- Tell the other side that nobody waits. The future fails with CANCELLED; its `outcome` is
-- "not executed" when nothing of the call was sent yet, for then nothing of it ever is.
function Future:cancel()
  c.cancel(self)
end

--- Run fn(...) in a coroutine of the scheduler; returns a future.
function futures.spawn(fn, ...)
  return c.spawn({}, fn, ...)
end

--- A future of fn(results), which runs when this one is done; its error is passed on.
function Future:next(fn)
  return futures.spawn(function() return fn(self:wait()) end)
end

local function not_done(list)
  local pending = 0
  for _, future in ipairs(list) do
    if c.status(future) == "pending" then pending = pending + 1 end
  end
  fail("DEADLINE_EXCEEDED", "%d of %d futures are not done", pending, #list)
end

local function check_list(what, list)
  if type(list) ~= "table" then
    fail("INVALID_ARGUMENT", "%s wants a list of futures, got %s", what, type(list))
  end
end

local WAIT_ALL = { fail_fast = "boolean", timeout = "number" }

--- rpc.wait_all; see rpc.lua.
function futures.wait_all(list, given)
  check_list("wait_all", list)
  local o = options.check("wait_all", given, WAIT_ALL)
  local timeout = o.timeout and wait_of("wait_all", { timeout = o.timeout })
  local fail_fast = o.fail_fast ~= false
  c.wait_many(list, fail_fast and 2 or 0, timeout)
  c.waited()
  if fail_fast then
    for i = 1, #list do
      if c.status(list[i]) == "failed" then c.values(list[i]) end -- raises
    end
  end
  local results = {}
  for i = 1, #list do
    if c.status(list[i]) == "pending" then not_done(list) end
    local err = c.error_of(list[i])
    if err ~= nil then
      results[i] = err
    else
      results[i] = (c.values(list[i]))
    end
  end
  return results
end

--- rpc.wait_any; see rpc.lua.
function futures.wait_any(list, given)
  check_list("wait_any", list)
  if #list == 0 then
    fail("INVALID_ARGUMENT", "wait_any wants at least one future, the list is empty")
  end
  c.wait_many(list, 1, wait_of("wait_any", given))
  c.waited()
  for i = 1, #list do
    if c.status(list[i]) ~= "pending" then return i, list[i] end
  end
  not_done(list)
end

--- rpc.sleep; see rpc.lua.
function futures.sleep(seconds)
  if type(seconds) ~= "number" then
    fail("INVALID_ARGUMENT", "sleep wants a number of seconds, got %s", type(seconds))
  end
  c.sleep(seconds)
  c.waited()
end

return futures
