--- Futures: the methods of a call's result to come, and waiting for several. Part of
-- `rlengine.rpc`.

local core = require "rlengine.core"
local options = require "rlengine.options"

local c = core.rpc
local fail = options.fail

local futures = {}

local TIMEOUT = { timeout = "number" }

--- Seconds out of {timeout = seconds}; nil when there is none.
function futures.timeout_of(what, given)
  local timeout = options.check(what, given, TIMEOUT).timeout
  if timeout ~= nil and timeout <= 0 or timeout ~= timeout then
    fail("INVALID_ARGUMENT", "%s: timeout must be a number of seconds > 0", what)
  end
  return timeout
end
local timeout_of = futures.timeout_of

local Future = c.future_methods

--- Wait until it is over; returns the results or raises the error.
-- @param[opt] given {timeout = seconds}: wait no longer; the call itself goes on
function Future:wait(given)
  local timeout = given ~= nil and timeout_of("wait", given) or nil
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

--- rpc.wait_all; see rpc.lua.
function futures.wait_all(list, given)
  local o = options.check("wait_all", given, { fail_fast = "boolean", timeout = "number" })
  local fail_fast = o.fail_fast ~= false
  c.wait_many(list, fail_fast and 2 or 0, o.timeout)
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
  c.wait_many(list, 1, timeout_of("wait_any", given))
  c.waited()
  for i = 1, #list do
    if c.status(list[i]) ~= "pending" then return i, list[i] end
  end
  not_done(list)
end

--- rpc.sleep; see rpc.lua.
function futures.sleep(seconds)
  c.sleep(seconds)
  c.waited()
end

return futures
