-- Who comes and goes, as scripts are told; calls that are made again.
package.path = "tests/support/?.lua;" .. package.path
local rl = require "rlengine"
local fails = require "fails"
local core = require "rlengine.core"
local process = require "process"
local workers = require "workers"
local signal = require "posix.signal"
local rpc = rl.rpc

describe("who comes and goes", function()
  it("is told to functions of the script", function()
    local group = workers.group()
    local events = {}
    local function note(kind)
      return function(name, incarnation, goodbye)
        assert(#incarnation == 16)
        events[#events + 1] = kind .. " " .. name .. (goodbye and " goodbye" or "")
      end
    end
    local join, leave = note "join", note "leave"
    local stop_join, stop_leave = rpc.on_join(join), rpc.on_leave(leave)
    local function seen(n)
      assert.is_true(workers.eventually(function() return #events == n end), table.concat(events,
        ", "))
    end
    local a = group:start("a", [[rpc.register("stop", function() rpc.shutdown() end)]])
    seen(1)
    local again = rpc.on_join(function(name) events[#events + 1] = "there " .. name end)
    seen(2) -- those who are there are told at once
    again()
    pcall(rpc.rpc_sync, "a", "stop")
    seen(3)
    a:join()
    local b = group:start("b", "")
    seen(4)
    b:kill(signal.SIGKILL)
    seen(5)
    assert.same({ "join a", "there a", "leave a goodbye", "join b", "leave b" }, events)
    assert.matches("^%x+$", rpc.worker_info().incarnation)
    stop_join()
    stop_leave()
    group:start("c", "")
    rpc.wait_for { "c" }
    assert.equal(5, #events)
    assert.matches("rpc.on_join wants a function, got nil", fails(rpc.on_join).message)
    group:finish()
  end)

  it("may be waited for in them, and an error there is told", function()
    local group = workers.group()
    local path = group.folder .. "/script.lua"
    process.write(path, ([[
local rpc = require("rlengine").rpc
rpc.init { name = "host", listen = "unix:%s/host.sock", token = %q }
rpc.on_join(function(name)
  print(rpc.rpc_sync(name, "hello"))
  error("not today")
end)
rpc.on_leave(function() rpc.shutdown() end)
rpc.serve()
]]):format(group.folder, workers.token))
    local host = group:run(path, "host")
    group.address = "unix:" .. group.folder .. "/host.sock"
    local guest = group:start("guest", [[rpc.register("hello", function() return "hello!" end)]],
      "reconnect_for = 0")
    assert.is_true(workers.eventually(function() return host:output():find "not today" end))
    guest:kill(signal.SIGKILL)
    assert.equal(0, host:join(), host:output())
    assert.matches("hello!", host:output())
    assert.matches("rlengine: error in a function given to rpc.on_join: .*not today",
      host:output())
    group:finish()
  end)
end)

describe("rpc.retry", function()
  local function failing(code, times)
    local calls = 0
    return function(attempt)
      calls = calls + 1
      assert(attempt == calls)
      if calls <= times then error(core.error.new { code = code, message = "no" }, 0) end
      return calls, "and more"
    end, function() return calls end
  end

  it("makes what got lost again, where that does no harm", function()
    local group = workers.group()
    local again = { idempotent = true, backoff = 0.001 }
    assert.same({ 3, "and more" }, { rpc.retry((failing("UNAVAILABLE", 2)), again) })
    assert.same({ 2, "and more" }, { rpc.retry((failing("DEADLINE_EXCEEDED", 1)), again) })
    assert.same({ 1, "and more" }, { rpc.retry((failing("UNAVAILABLE", 0)), again) })
    local fn, calls = failing("UNAVAILABLE", 100)
    assert.equal("UNAVAILABLE: no", tostring(fails(rpc.retry, fn, again)))
    assert.equal(5, calls())
    fn, calls = failing("UNAVAILABLE", 100)
    again.attempts = 2
    fails(rpc.retry, fn, again)
    assert.equal(2, calls())
    for _, code in ipairs { "INVALID_ARGUMENT", "CANCELLED", "NOT_FOUND", "UNKNOWN" } do
      fn, calls = failing(code, 100)
      assert.equal(code, fails(rpc.retry, fn, again).code)
      assert.equal(1, calls())
    end
    assert.matches("plain", tostring(fails(rpc.retry, function() error "plain" end, again)))
    group:finish()
  end)

  it("wants to be told that it does no harm", function()
    local group = workers.group()
    local fn, calls = failing("UNAVAILABLE", 100)
    for _, given in ipairs { {}, { idempotent = false }, { attempts = 3 } } do
      local err = fails(rpc.retry, fn, given)
      assert.equal("INVALID_ARGUMENT: rpc.retry: a call that got lost may have been executed; say "
        .. "idempotent = true where it may be executed again", tostring(err))
    end
    assert.equal(0, calls())
    assert.matches("attempts must be a whole number from 1, got 0",
      fails(rpc.retry, fn, { idempotent = true, attempts = 0 }).message)
    assert.matches("backoff must be a number of seconds >= 0, got %-1",
      fails(rpc.retry, fn, { idempotent = true, backoff = -1 }).message)
    assert.matches('unknown option "attempt"; did you mean "attempts"',
      fails(rpc.retry, fn, { idempotent = true, attempt = 1 }).message)
    assert.matches("rpc.retry wants a function, got nil", fails(rpc.retry).message)
    group:finish()
  end)

  it("ends before the deadline of the call that waits for it", function()
    local group = workers.group()
    group:start("w", [[
rpc.register("stubborn", function()
  local t0, attempts = os.clock(), 0
  local ok, err = pcall(rpc.retry, function(attempt)
    attempts = attempt
    rpc.rpc_sync("nobody_here", "f")
  end, { idempotent = true, attempts = 1000, backoff = 0.05 })
  return ok, tostring(err), attempts
end)]])
    local ok, text, attempts = rpc.to("w"):rpc_sync { timeout = 3 }:stubborn()
    assert.is_false(ok) -- and its answer came in time
    assert.matches("^NOT_FOUND", text)
    assert.equal(1, attempts)
    group:start("v", [[
rpc.register("stubborn", function()
  local attempts = 0
  local ok, err = pcall(rpc.retry, function(attempt)
    attempts = attempt
    rpc.to("test"):rpc_sync{timeout = 0.01}:slow()
  end, { idempotent = true, attempts = 1000, backoff = 0.05 })
  return ok, tostring(err), attempts
end)]])
    rpc.register("slow", function() rpc.sleep(0.5) end)
    ok, text, attempts = rpc.to("v"):rpc_sync { timeout = 3 }:stubborn()
    assert.is_false(ok)
    assert.matches("^DEADLINE_EXCEEDED", text)
    assert.is_true(attempts > 1 and attempts < 100, attempts)
    group:finish()
  end)
end)
