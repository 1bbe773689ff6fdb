-- Faults: a call is lost on its way, or its answer, or it comes twice.
package.path = "tests/support/?.lua;" .. package.path
local rl = require "rlengine"
local faults = require "faults"
local figure = require "figure"
local workers = require "workers"
local rpc = rl.rpc

-- An observer that asks the trainer which key to count next, and tells how that went.
local CALLER = [[
local rpc = require("rlengine").rpc
rpc.init { name = "obs_3", connect = %q, token = %q, heartbeat = 0.3, timeout = 5,
  reconnect_for = 20 }
local key, told
while true do
  local ok, again, timeout = pcall(rpc.rpc_sync, "trainer", "next", key, told)
  if ok and not again then break end
  if ok then
    key = again
    local to = rpc.to("trainer"):rpc_sync { timeout = timeout }
    local counted, err = pcall(to.count, to, key)
    told = { counted, err and err.code, err and err.outcome, err and tostring(err) }
  end
end
rpc.shutdown()
]]

-- A trainer's end: world.executed[key] is how often that was counted. Returns a line that can
-- be broken, and call(key, timeout, break_it), which gives how that went at the observer;
-- break_it runs when the observer's next call is the one in question.
local function setup(world)
  local proxy = world:proxy()
  local wanted, answer, over
  world.executed = {}
  rpc.register("count", function(key)
    world.executed[key] = (world.executed[key] or 0) + 1
    if world.counted then world.counted(key) end
  end)
  -- A key may be told to a line that has broken, and is told again then.
  rpc.register("next", function(key, told)
    if wanted and not answer and key == wanted.key then answer = told end
    while not over and (not wanted or answer) do rpc.sleep(0.002) end
    if over then return nil end
    if wanted.break_it then wanted.break_it() end
    return wanted.key, wanted.timeout
  end)
  local obs = world:run(CALLER:format(proxy.address, workers.token), "obs_3")
  world:join "obs_3"
  local function call(key, timeout, break_it)
    answer, wanted = nil, { key = key, timeout = timeout or 5, break_it = break_it }
    assert.is_true(world:eventually(function() return answer end))
    return answer
  end
  function world.finish()
    over = true
    assert.is_true(world:eventually(function() return obs:poll() end))
  end
  return proxy, call
end

local function lost(world)
  world:allow "lost: "
  world:allow "reconnect"
end

describe("a call runs at most once", function()
  it("F39: when the request is lost", faults.row(function(world)
    local proxy, call = setup(world)
    assert.same({ false, "DEADLINE_EXCEEDED", "unknown",
      'DEADLINE_EXCEEDED: "count" on "trainer" took longer than 0.200 s (outcome: unknown)' },
      call("a", 0.2, function() proxy:drop("up", "CALL", 1) end))
    assert.is_nil(world.executed.a)
    assert.same({ true }, call "b")
    assert.equal(1, world.executed.b)
    world.finish()
    figure("F39", "request lost: outcome unknown, ran 0 times")
  end))

  it("F39: when the answer is lost", faults.row(function(world)
    local proxy, call = setup(world)
    world.counted = function(key)
      if key == "a" then proxy:drop("down", "RESULT", 1) end
    end
    assert.same({ false, "DEADLINE_EXCEEDED", "unknown" },
      { unpack(call("a", 1), 1, 3) })
    assert.equal(1, world.executed.a)
    assert.same({ true }, call "b")
    world.finish()
    figure("F39", "answer lost: outcome unknown, ran once")
  end))

  it("F39: when the line breaks in flight", faults.row(function(world)
    local proxy, call = setup(world)
    local words = 'UNAVAILABLE: worker "trainer" disconnected while "count" was running ' ..
      "(outcome: unknown)"
    world.counted = function(key)
      if key == "ran" then
        proxy:close()
        world:eventually(function() return proxy:stat().links == 0 end)
      end
    end
    assert.same({ false, "UNAVAILABLE", "unknown", words }, call "ran")
    assert.equal(1, world.executed.ran)
    assert.same({ false, "UNAVAILABLE", "unknown", words },
      call("cut", 5, function() proxy:cut("up", "CALL", 70) end))
    assert.is_nil(world.executed.cut)
    assert.same({ true }, call "b")
    world.finish()
    lost(world)
    figure("F39", "line broken in flight: outcome unknown, ran once; inside the request: unknown, "
      .. "ran 0 times")
  end))

  it("F39: when the request comes again", faults.row(function(world)
    local proxy, call = setup(world)
    proxy:record "up"
    assert.same({ true }, call "a")
    proxy:replay "up"
    local _, line = world:logged 'closed "obs_3": request '
    assert.matches('closed "obs_3": request %d+ repeated$', line)
    assert.equal(1, world.executed.a)
    assert.same({ true }, call "b")
    assert.equal(1, world.executed.b)
    assert.equal(1, world.executed.a)
    world.finish()
    lost(world)
    figure("F39", "request replayed: connection closed, ran once")
  end))
end)
