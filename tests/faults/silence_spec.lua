-- Faults: a worker that is there but does not answer, or a line that says nothing any more.
package.path = "tests/support/?.lua;" .. package.path
local rl = require "rlengine"
local faults = require "faults"
local figure = require "figure"
local rpc = rl.rpc
local fails = faults.fails

describe("an observer that is stopped", function()
  it("F04: is given up in time, hears of it, and comes back", faults.row(function(world)
    local obs = world:start("obs_3", faults.SERVE .. [[
      rpc.register("ask", function()
        local ok, err = pcall(rpc.rpc_sync, "trainer", "hold")
        print(ok, err)
        io.stdout:flush()
      end)]])
    world:join "obs_3"
    local life = 0
    rpc.register("hold", function() life = life + 1 rpc.sleep(60) end)
    local f = world:watch(rpc.rpc_async("obs_3", "sleep", 60))
    local g = world:watch(rpc.rpc_async("obs_3", "ask"))
    assert.is_true(world:eventually(function() return life == 1 end))
    local stopped = obs:stop()
    local err = fails(f.wait, f)
    local took = faults.clock() - stopped
    assert.matches('UNAVAILABLE: worker "obs_3" did not answer for %d+%.%d s %(outcome: unknown%)',
      tostring(err))
    assert.equal("unknown", err.outcome)
    fails(g.wait, g)
    world:events('worker "obs_3" lost: did not answer for', 1)
    world:events('; 2 calls failed', 1)
    assert.is_true(took >= 0.99 and took < 5, took)
    rpc.sleep(math.max(0, faults.count(2, 5) - took))
    local continued = obs:continue()
    obs:said 'UNAVAILABLE: session ended by "trainer"; reconnecting'
    assert.is_true(world:eventually(function() return rpc.worker_info("obs_3").connected end))
    local back = faults.clock() - continued
    assert.equal(1, rpc.rpc_sync("obs_3", "echo", 1))
    assert.is_true(back < 5, back)
    assert.equal(1, life) -- nothing of the life before is asked for again
    figure("F04", "noticed after %.2f s (timeout 1 s), back %.2f s after it went on", took, back)
  end, { timeout = 1 }))
end)

describe("an observer that computes", function()
  it("F05: is not taken for dead, and the log says once what it does", faults.row(function(world)
    local many, span = faults.count(4, 20), faults.count(3, 30)
    local list = {}
    for i = 1, many do
      world:start("obs_" .. i, faults.SERVE)
      world:join("obs_" .. i)
      list[i] = world:watch(rpc.rpc_async("obs_" .. i, "busy", span))
    end
    for _, f in ipairs(list) do assert.equal("done", (f:wait { timeout = 2 * span + 20 })) end
    assert.equal(0, world:count "lost")
    for i = 1, many do
      world:events(('worker "obs_%d" is alive but "busy" has run for'):format(i), 1)
      assert.matches("has run for %d+%.%d s %(pid %d+",
        select(2, world:logged(('worker "obs_%d" is alive but'):format(i))))
    end
    figure("F05", "%d observers compute for %d s each, peer timeout 1 s: 0 disconnects", many, span)
  end, { timeout = 1, busy_after = faults.count(1, 20), seconds = 120 }))
end)

-- An observer that asks for something long, again and again, and says how that went.
local ASKER = faults.SERVE .. [[
rpc.register("ask", function()
  local ok, err = pcall(rpc.rpc_sync, "trainer", "hold")
  print(ok, err)
  io.stdout:flush()
end)
]]

describe("a line that says nothing any more", function()
  it("F10: is noticed at both ends, and its descriptors go", faults.row(function(world)
    local proxy = world:proxy()
    local held = 0
    rpc.register("hold", function() held = held + 1 rpc.sleep(60) end)
    local fds = require("workers").held().fds
    local obs = world:start("obs_3", ASKER, nil, proxy.address)
    world:join "obs_3"
    local f = world:watch(rpc.rpc_async("obs_3", "sleep", 60))
    local g = world:watch(rpc.rpc_async("obs_3", "ask"))
    assert.is_true(world:eventually(function() return held == 1 end))
    local broken = faults.clock()
    proxy:swallow "both"
    local err = fails(f.wait, f)
    local here = faults.clock() - broken
    assert.matches('UNAVAILABLE: worker "obs_3" did not answer for %d+%.%d s %(outcome: unknown%)',
      tostring(err))
    fails(g.wait, g)
    world:events('worker "obs_3" lost: did not answer for', 1)
    world:events('; 2 calls failed', 1)
    local there = obs:said 'worker "trainer" lost: did not answer for' - broken
    obs:said 'UNAVAILABLE: worker "trainer" did not answer for'
    assert.is_true(world:eventually(function() return require("workers").held().fds <= fds end))
    assert.is_true(here >= 0.65 and here < 5, here)
    assert.is_true(there >= 0.65 and there < 5, there)
    proxy:release "both"
    proxy:close() -- what it half forwarded
    assert.is_true(world:eventually(function() return rpc.worker_info("obs_3").connected end, 15))
    assert.equal(1, rpc.rpc_sync("obs_3", "echo", 1))
    figure("F10", "half-open TCP: noticed after %.2f s here, %.2f s there (timeout 1 s, ping "
      .. "after 0.3 s)", here, there)
  end, { timeout = 1, listen = "tcp://127.0.0.1:0" }))

  it("F13: is slow, uneven and narrow, and nobody is lost", faults.row(function(world)
    local function run(proxy)
      local list = {}
      local n = faults.count(20, 200)
      local name = proxy and "obs_2" or "obs_1"
      world:start(name, [[
        rpc.register("learn", function(n)
          local x = 1
          for i = 1, n do x = rpc.rpc_sync("trainer", "next", x, i) end
          return x
        end)]], nil, proxy and proxy.address)
      world:join(name)
      if proxy then
        proxy:delay("both", 50, 20, 1)
        proxy:rate("both", 125000)
      end
      rpc.register("next", function(x, i)
        list[#list + 1] = x
        return (x * 16807 + i) % 2147483647
      end)
      local f = world:watch(rpc.rpc_async(name, "learn", n))
      list[#list + 1] = f:wait()
      return list
    end
    local plain = run()
    local began = faults.clock()
    local slow = run(world:proxy())
    assert.same(plain, slow)
    assert.equal(0, world:count "lost")
    figure("F13", "delay 50±20 ms, 1 %% of pieces 200 ms later, 1 Mbit/s, for %.0f s: no "
      .. "disconnect, the same trace", faults.clock() - began)
  end, { listen = "tcp://127.0.0.1:0" }))
end)
