-- Waiting: what ends it, when, and that others are served meanwhile.
package.path = "tests/support/?.lua;" .. package.path
local rl = require "rlengine"
local fails = require "fails"
local workers = require "workers"
local rpc = rl.rpc

describe("a handler that goes on waiting though nobody wants it", function()
  local group
  before_each(function() group = workers.group() end)
  after_each(function() group:finish() end)

  it("does not keep others from being served", function()
    local w = group:start("w", [[
local waits, codes = 0, {}
rpc.register("stubborn", function()
  while true do
    local ok, err = pcall(rpc.sleep, 0.05)
    waits = waits + 1
    if not ok then codes[err.code] = true end
  end
end)
rpc.register("waits", function() return waits, codes end)
    ]])
    rpc.rpc_sync("w", "waits")
    local to = rpc.to "w"
    for _ = 1, 3 do
      assert.equal("DEADLINE_EXCEEDED",
        fails(function() to:rpc_sync { timeout = 0.2 }:stubborn() end).code)
    end
    local first, codes = to:rpc_sync { timeout = 20 }:waits()
    assert.same({ CANCELLED = true }, codes)
    local t0 = workers.now()
    rpc.sleep(0.3)
    local later = to:rpc_sync { timeout = 20 }:waits()
    -- It goes on, at a pace that leaves the core to others.
    assert.is_true(later > first)
    assert.is_true(later - first < 3 * ((workers.now() - t0) / 0.01 + 2 * 16), later - first)
    local _, said = w:output():gsub('"stubborn" for "test" goes on waiting though nobody', "")
    assert.equal(3, said)
  end)

  it("may clean up, which takes no time", function()
    group:start("w", [[
local codes
rpc.register("tidy", function()
  local seen = {}
  for i = 1, 10 do
    local ok, err = pcall(rpc.sleep, i == 1 and 60 or 0.5)
    seen[i] = ok or err.code
  end
  codes = table.concat(seen, " ")
end)
rpc.register("codes", function() return codes end)
    ]])
    rpc.rpc_sync("w", "codes")
    local f = rpc.to("w"):rpc_async { timeout = 0.1 }:tidy()
    assert.equal("DEADLINE_EXCEEDED", fails(f.wait, f).code)
    local codes
    workers.eventually(function()
      codes = rpc.rpc_sync("w", "codes")
      return codes
    end)
    assert.equal(("CANCELLED "):rep(10), codes .. " ")
  end)
end)

describe("a time that is waited", function()
  local group
  before_each(function() group = workers.group() end)
  after_each(function() group:finish { blocks = true } end)

  -- Calls of 30 ms, one upon the other, as long as this worker is there.
  local CALLS = [[
local function keep_calling()
  local list = {}
  for i = 1, 8 do list[i] = rpc.rpc_async("test", "work") end
  if pcall(rpc.wait_all, list) then return keep_calling() end
end
rpc.register("begin", keep_calling)
  ]]

  local function busy()
    local served = 0
    rpc.register("work", function()
      local ends = workers.now() + 0.03
      while workers.now() < ends do end
      served = served + 1
    end)
    group:start("w", CALLS)
    rpc.wait_for "w"
    rpc.rpc_async("w", "begin")
    assert.is_true(workers.eventually(function() return served > 8 end))
    return function() return served end
  end

  local function timed(fn, ...)
    local t0 = workers.now()
    local err = fails(fn, ...)
    return workers.now() - t0, err
  end

  it("goes by the clock, however busy the worker is meanwhile", function()
    local served = busy()
    local before = served()
    local took, err = timed(rpc.wait_for, "nobody", { timeout = 0.3 })
    assert.equal("DEADLINE_EXCEEDED", err.code)
    assert.is_true(took >= 0.3 and took < 1.5, took)
    local follow = rpc.follow("nobody", "policy", { a = rl.zeros(2) })
    took, err = timed(follow.wait, follow, { timeout = 0.3 })
    assert.equal("UNAVAILABLE", err.code)
    assert.is_true(took >= 0.3 and took < 1.5, took)
    follow:close()
    assert.is_true(served() > before) -- others were served
    local t0 = workers.now()
    rpc.shutdown { timeout = 0.3 }
    assert.is_true(workers.now() - t0 < 1.5)
  end)
end)

describe("what makes no sense is refused with an error object that says what it was", function()
  local group
  before_each(function() group = workers.group() end)
  after_each(function() group:finish() end)

  local function refused(text, fn, ...)
    local err = fails(fn, ...)
    assert.equal("table", type(err), tostring(err))
    assert.equal("INVALID_ARGUMENT", err.code)
    assert.equal(text, err.message)
  end

  it("in what waits", function()
    refused("wait_all wants a list of futures, got nil", rpc.wait_all)
    refused("wait_any wants a list of futures, got number", rpc.wait_any, 1)
    refused("wait_any wants at least one future, the list is empty", rpc.wait_any, {})
    refused("wait_any wants at least one future, the list is empty", rpc.wait_any, {},
      { timeout = 0.1 })
    assert.same({}, rpc.wait_all {})
    refused("sleep wants a number of seconds, got nil", rpc.sleep)
    refused("sleep wants a number of seconds, got string", rpc.sleep, "1")
    refused("rpc.wait_for wants the names of workers, entry 2 is a number", rpc.wait_for,
      { "w", 1 })
    for _, timeout in ipairs { -1, 0 / 0 } do
      local said = ": timeout must be a number of seconds >= 0, got " .. tostring(timeout)
      refused("wait_all" .. said, rpc.wait_all, {}, { timeout = timeout })
      refused("wait_for" .. said, rpc.wait_for, "w", { timeout = timeout })
      refused("rpc.shutdown" .. said, rpc.shutdown, { timeout = timeout })
    end
  end)

  it("in names and texts", function()
    refused("a worker's name is a string, not a nil", rpc.to)
    refused("a worker's name is a string, not a nil", rpc.rpc_sync)
    refused("a worker's name is a string, not a number", rpc.rpc_async, 5, "x")
    refused("a worker's name is a string, not a nil", rpc.remote)
    refused("rpc.note wants a text, or nil, got a table", rpc.note, {})
    refused("rpc.make_token wants the path of the file, got no value", rpc.make_token)
    rpc.note "loading"
    rpc.note()
  end)

  it("in the options of rpc.init", function()
    rpc.shutdown()
    local function init(key, value)
      return rpc.init { name = "a", listen = group.address, token = workers.token, [key] = value }
    end
    refused('option "max_concurrent" must be from 1 to 1000000, got 0', init, "max_concurrent", 0)
    refused('option "max_calls" must be from 1 to 10000, got 0', init, "max_calls", 0)
    refused('option "max_message" must be from 4096 to 9007199254740992, got 0', init,
      "max_message", 0)
    local uids = 'option "allow_uids" must be a user\'s number (see id -u) or a list of them; '
      .. "entry "
    refused(uids .. "1 is -1", init, "allow_uids", { -1 })
    refused(uids .. "2 is string", init, "allow_uids", { 0, "x" })
    refused(uids .. "1 is 4294967295", init, "allow_uids", 4294967295)
    refused(uids .. "1 is 0.5", init, "allow_uids", 0.5)
    refused(uids .. "1 is boolean", init, "allow_uids", true)
    for _, fine in ipairs { 1000, {}, { 1000, 0 } } do
      init("allow_uids", fine)
      rpc.shutdown()
    end
  end)

  it("in rpc.batched", function()
    local function batched(key, value)
      return rpc.batched(print, { input = { "x f32[4]" }, [key] = value })
    end
    refused("rpc.batched: size must be a whole number of rows from 1 to 1000000, got 10000000",
      batched, "size", 1e7)
    refused("rpc.batched: input 1: 64 rows of f32[2000000000,2000000000] are more than any memory "
      .. "holds", batched, "input", { "x f32[2000000000,2000000000]" })
    refused('unknown device "gpu"; there are "cpu", "cuda", "cuda:<n>", "emu", "emu:<n>" and '
      .. '"auto"', batched, "device", "gpu")
    refused("expected a device or its name, got number", batched, "device", 5)
    for _, device in ipairs { "cpu", "cuda:1", "auto", rl.device "cpu" } do
      assert.equal("function", type(batched("device", device)))
    end
  end)
end)

describe("a timeout of 0", function()
  it("means: look, and do not wait, wherever something is waited for", function()
    local group = workers.group()
    group:start("w", [[
rpc.register("sleep", function(s) rpc.sleep(s) return "slept" end)]])
    rpc.wait_for "w"
    local f = rpc.rpc_async("w", "sleep", 0.3)
    for _, look in ipairs {
      function() return f:wait { timeout = 0 } end,
      function() return rpc.wait_all({ f }, { timeout = 0 }) end,
      function() return rpc.wait_any({ f }, { timeout = 0 }) end,
      function() return rpc.wait_for("nobody", { timeout = 0 }) end,
    } do
      assert.equal("DEADLINE_EXCEEDED", fails(look).code)
    end
    rpc.wait_for("w", { timeout = 0 })
    assert.equal("slept", f:wait())
    assert.equal("slept", f:wait { timeout = 0 })
    assert.same({ "slept" }, rpc.wait_all({ f }, { timeout = 0 }))
    assert.equal(1, (rpc.wait_any({ f }, { timeout = 0 })))
    local to = rpc.to "w" -- for a call it would mean that it cannot be made
    assert.equal("INVALID_ARGUMENT", fails(function()
      return to:rpc_sync { timeout = 0 }:sleep(0)
    end).code)
    group:finish()
  end)
end)

describe("an error that is a table with a text of its own", function()
  it("arrives with that text", function()
    local group = workers.group()
    group:start("w", [[
rpc.register("fail", function(how)
  error(setmetatable({}, { __tostring = function()
    if how == "raise" then error "no text" end
    return how == "text" and "out of cheese" or how
  end }))
end)]])
    local function said(how) return tostring(fails(rpc.rpc_sync, "w", "fail", how)) end
    assert.equal('UNKNOWN: "fail" on "w" failed: out of cheese', said "text")
    assert.equal('UNKNOWN: "fail" on "w" failed: (error object is a table value)', said "raise")
    assert.equal('UNKNOWN: "fail" on "w" failed: (error object is a table value)', said {})
    group:finish()
  end)
end)
