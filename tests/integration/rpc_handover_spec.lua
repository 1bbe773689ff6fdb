-- References that a worker passes on to a third one: they arrive whatever keeps their owner, are
-- the reference that is there already, and say what happened when they do not arrive.
package.path = "tests/support/?.lua;" .. package.path
local rl = require "rlengine"
local fails = require "fails"
local workers = require "workers"
local signal = require "posix.signal"
local rpc = rl.rpc

local PLACE = [[
local Thing = rpc.class("Thing", { "get", "me" })
function Thing:init(x) self.x = x end
function Thing:get() return self.x end
function Thing:me() return rpc.rref(self) end
local kept
rpc.register("keep", function(ref) kept = ref end)
rpc.register("use", function(given) return kept:rpc_sync(given):get() end)
rpc.register("tell", function() return kept, tostring(kept) end)
rpc.register("same", function(ref) return ref == kept end)
rpc.register("again", function() return kept == kept:rpc_sync():me() end)
rpc.register("own", function() return rpc.rref(Thing(5)) end)
rpc.register("drop", function() kept = nil collectgarbage() collectgarbage() end)
rpc.register("slow", function(seconds) rpc.sleep(seconds) return true end)
rpc.register("busy", function(seconds)
  local over = os.clock() + seconds
  while os.clock() < over do end
end)
rpc.register("held", function()
  collectgarbage()
  collectgarbage()
  rpc.sleep(0)
  return rpc.refs()
end)
]]

describe("references that are passed on", function()
  local group
  before_each(function() group = workers.group() end)
  after_each(function() group:finish() end)

  local function start(name, more)
    return group:start(name, PLACE, ("listen = 'unix:%s/%s.sock', %s"):format(group.folder, name,
      more or ""))
  end

  local function nothing_left(owner)
    assert.is_true(workers.eventually(function()
      collectgarbage()
      collectgarbage()
      return #rpc.rpc_sync(owner, "held") == 0
    end, 10))
  end

  it("arrive while their owner has as many calls as it takes, or computes", function()
    start("a", "max_concurrent = 1")
    start("b")
    local x = rpc.remote("a", "Thing", 42):wait()
    local open = {}
    for i = 1, 64 do open[i] = rpc.rpc_async("a", "slow", i == 1 and 1 or 0) end
    rpc.rpc_sync("b", "keep", x)
    assert.matches('^Ref%(Thing', select(2, rpc.rpc_sync("b", "tell")))
    assert.is_true(workers.eventually(function()
      return #rpc.rpc_sync("b", "held") == 1 -- while the calls are open
    end, 5))
    assert.is_false(open[64]:done())
    assert.equal(42, rpc.rpc_sync("b", "use"))
    rpc.wait_all(open)
    rpc.rpc_sync("b", "drop")
    local computes = rpc.rpc_async("a", "busy", 1)
    rpc.sleep(0.05)
    rpc.rpc_sync("b", "keep", x)
    assert.is_true(workers.eventually(function()
      return #rpc.rpc_sync("b", "held") == 1
    end, 5))
    assert.is_false(computes:done())
    computes:wait()
    assert.equal(42, rpc.rpc_sync("b", "use"))
    rpc.rpc_sync("b", "drop")
    x:release()
    nothing_left "a"
  end)

  it("are good as soon as an owner that was stopped goes on", function()
    local a = start "a"
    start "b"
    local x = rpc.remote("a", "Thing", 42):wait()
    rpc.rpc_sync("b", "keep", rpc.remote("a", "Thing", 1):wait()) -- b knows the way
    assert.equal(1, rpc.rpc_sync("b", "use"))
    a:kill(signal.SIGSTOP)
    rpc.rpc_sync("b", "keep", x)
    local err = fails(rpc.rpc_sync, "b", "use", { timeout = 0.2 })
    assert.equal('DEADLINE_EXCEEDED: "get" on "a" was not started in time: "a" has not yet '
      .. "confirmed the reference, which another worker passed on (outcome: not executed)",
      tostring(err))
    a:kill(signal.SIGCONT)
    assert.equal(42, rpc.rpc_sync("b", "use"))
    rpc.rpc_sync("b", "drop")
    x:release()
    nothing_left "a"
  end)

  it("are of the class they are of, and the reference that is there already", function()
    start "a"
    start "b"
    local x = rpc.remote("a", "Thing", 7):wait()
    rpc.rpc_sync("b", "keep", x)
    local there, text = rpc.rpc_sync("b", "tell")
    assert.equal(x, there) -- which went to b and back
    assert.equal(x, x:rpc_sync():me())
    assert.is_true(workers.eventually(function()
      text = select(2, rpc.rpc_sync("b", "tell"))
      return not text:find "pending"
    end))
    assert.equal(tostring(x), text)
    local list = rpc.rpc_sync("b", "held")
    assert.equal(1, #list)
    assert.same({ "a", "Thing" }, { list[1].owner, list[1].class })
    for _ = 1, 5 do assert.is_true(rpc.rpc_sync("b", "same", x)) end
    assert.is_true(rpc.rpc_sync("b", "again")) -- straight from its owner
    rpc.rpc_sync("b", "drop")
    there = nil -- luacheck: ignore
    x:release()
    nothing_left "a" -- no ticket either
  end)

  it("may come back to life with a later use when their owner could not be reached", function()
    local a = group:start("a", PLACE) -- it does not listen
    start("b", "join_timeout = 0.2")
    local x = rpc.remote("a", "Thing", 3):wait()
    rpc.rpc_sync("b", "keep", x)
    local err = fails(rpc.rpc_sync, "b", "use")
    assert.matches('worker "a" has not joined in 0.200 s, "reference 1 to a Thing" was not sent',
      err.message)
    -- Somebody else tells b the way: a connects to it.
    rpc.rpc_sync("a", "keep", rpc.rpc_sync("b", "own"))
    assert.equal(5, rpc.rpc_sync("a", "use"))
    assert.equal(3, rpc.rpc_sync("b", "use"))
    rpc.rpc_sync("a", "drop")
    rpc.rpc_sync("b", "drop")
    x:release()
    nothing_left "a"
    assert.is_nil(a:output():find("unhandled", 1, true))
  end)
end)
