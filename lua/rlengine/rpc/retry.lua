--- Calls that are made again when they got lost. Part of `rlengine.rpc`.

local core = require "rlengine.core"
local options = require "rlengine.options"
local futures = require "rlengine.rpc.futures"

local c = core.rpc
local fail = options.fail

local ATTEMPTS, BACKOFF, LONGEST = 5, 0.1, 5

-- Failures of the way, not of what was called.
local lost = { UNAVAILABLE = true, DEADLINE_EXCEEDED = true }

local function check(given)
  local o = options.check("rpc.retry", given, {
    idempotent = "boolean", attempts = "number", backoff = "number",
  })
  if o.idempotent ~= true then
    fail("INVALID_ARGUMENT", "rpc.retry: a call that got lost may have been executed; say "
      .. "idempotent = true where it may be executed again")
  end
  local attempts, backoff = o.attempts or ATTEMPTS, o.backoff or BACKOFF
  if attempts < 1 or attempts ~= math.floor(attempts) then
    fail("INVALID_ARGUMENT", "rpc.retry: attempts must be a whole number from 1, got %s",
      tostring(attempts))
  end
  if not (backoff >= 0 and backoff < 1e9) then
    fail("INVALID_ARGUMENT", "rpc.retry: backoff must be a number of seconds >= 0, got %s",
      tostring(backoff))
  end
  return attempts, backoff
end

-- The pause before the next attempt; nil when there is none: it was the last one, the error is
-- another one, or the call being served would be over by then.
local function pause_before_next(err, attempt, attempts, backoff)
  if attempt >= attempts or not core.error.is(err) or not lost[err.code] then return nil end
  local pause = math.min(backoff * 2 ^ (attempt - 1), LONGEST) * (0.5 + c.random())
  local left = c.time_left()
  if left and pause >= left then return nil end
  return pause
end

--- rpc.retry; see rpc.lua.
return function(fn, given)
  if type(fn) ~= "function" then
    fail("INVALID_ARGUMENT", "rpc.retry wants a function, got %s", type(fn))
  end
  local attempts, backoff = check(given)
  local attempt = 0
  local function finish(ok, ...)
    if ok then return true, ... end
    local err = ...
    local pause = pause_before_next(err, attempt, attempts, backoff)
    if not pause then error(err, 0) end
    futures.sleep(pause)
    return false
  end
  local function try()
    attempt = attempt + 1
    return finish(pcall(fn, attempt))
  end
  local function until_done(done, ...)
    if done then return ... end
    return until_done(try())
  end
  return until_done(try())
end
