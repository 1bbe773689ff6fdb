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
