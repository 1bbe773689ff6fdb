-- Faults: an observer's process is gone, or its connection ends, at any moment.
package.path = "tests/support/?.lua;" .. package.path
local rl = require "rlengine"
local faults = require "faults"
local figure = require "figure"
local workers = require "workers"
local rpc = rl.rpc
local fails = faults.fails

local Thing = rpc.class("Thing", {})

describe("an observer that is killed", function()
  it("F02: fails its call at once and is named in the log", faults.row(function(world)
    local most, times = 0, faults.count(5, 100)
    for _ = 1, times do
      local obs = world:start("obs_3", faults.SERVE .. [[
        local kept
        rpc.register("keep", function(...) kept = { ... } end)]])
      world:join "obs_3"
      rpc.rpc_sync("obs_3", "keep", rpc.rref(Thing()), rpc.rref(Thing()))
      local f = world:watch(rpc.rpc_async("obs_3", "sleep", 60))
      rpc.rpc_sync("obs_3", "echo", 1) -- the other has begun
      local killed = obs:kill()
      local err = fails(f.wait, f)
      most = math.max(most, faults.clock() - killed)
      assert.equal('UNAVAILABLE: worker "obs_3" disconnected while "sleep" was running ' ..
        "(outcome: unknown)", tostring(err))
      assert.equal("unknown", err.outcome)
      obs:join()
    end
    world:events('worker "obs_3" lost: end of stream; 1 call failed, 2 references released', times)
    assert.is_true(most < 5)
    figure("F02", "error at most %.1f ms after the kill, %d of %d", most * 1e3, times, times)
  end))

  it("F02: leaves nothing of its unfinished episode", faults.row(function(world)
    local rewards = rl.rewards.new { observers = 2 }
    local Store = rpc.class("Store", { "report" })
    function Store:report(id, reward) rewards:report(id, reward) end
    local observers = {}
    for i = 1, 2 do
      world:start("obs_" .. i, [[
        local Observer = rpc.class("Observer", { "run_episode" })
        function Observer:init(id) self.id = id end
        function Observer:run_episode(store)
          for _ = 1, 217 do store:rpc_sync():report(self.id, 1) end
          if self.id == 2 then rpc.sleep(60) end
          return "done"
        end]])
      world:join("obs_" .. i)
      observers[i] = rpc.remote("obs_" .. i, "Observer", i)
    end
    world.loop = rl.episode.new {
      observers = observers, with = { rpc.rref(Store()) }, report = function() end,
      drop = function(_, i) return rewards:drop(i) end,
    }
    local killer = require("rlengine.rpc.futures").spawn(function()
      while rewards:totals()[2] < 217 do rpc.sleep(0.01) end
      world.group.workers[2]:kill()
    end)
    assert.same({ "done" }, world.loop:run())
    killer:wait()
    assert.same({ 217, 0 }, rewards:totals())
    world:events('worker "obs_2" lost: end of stream; 1 call failed, 1 reference released', 1)
    world:events('worker "obs_2": 217 steps of an unfinished episode dropped', 1)
    world.loop = nil -- which holds a reference
  end))

  it("F02: does not slow the others down", faults.row(function(world)
    local names, rates = { "obs_0", "obs_1", "obs_2", "obs_3" }, {}
    for _, name in ipairs(names) do world:start(name) end
    world:join(unpack(names))
    local calls = {}
    for i, name in ipairs(names) do
      calls[i] = world:watch(rpc.rpc_async(name, "steps", "long", 1e9))
    end
    local function count()
      local n = 0
      for key in pairs(world.applied) do
        if not key:find "^obs_3" then n = n + 1 end
      end
      return n
    end
    local span = faults.count(0.5, 5)
    local function measure()
      rpc.sleep(0.1)
      local before, began = count(), workers.now()
      rpc.sleep(span)
      return (count() - before) / (workers.now() - began)
    end
    rates[1] = measure()
    for _, worker in ipairs(world.group.workers) do
      if worker.name == "obs_3" then worker:kill() end
    end
    for _ = 1, 8 do -- on a machine that may be busy with something else for a moment
      rates[2] = measure()
      if rates[2] > 0.2 * rates[1] then break end
    end
    for i = 1, 3 do assert.is_false(calls[i]:done()) end
    for _, worker in ipairs(world.group.workers) do worker:kill() end
    for _, f in ipairs(calls) do fails(f.wait, f) end
    world:events("lost: end of stream; 1 call failed", 4)
    local _, _, unheard = world:steps()
    assert.is_true(unheard <= 4)
    assert.is_true(rates[2] > 0.2 * rates[1], rates[2])
    figure("F02", "the other observers go on at %.0f %% of their steps a second",
      100 * rates[2] / rates[1])
  end))

  it("F02: leaves nothing behind, whenever it happens", faults.row(function(world)
    local times, random = faults.count(15, 1000), 12345
    local calls, done = 0, 0
    for i = 1, times do
      local obs, f = world:start("obs_3", faults.SERVE), nil
      random = (random * 1103515245 + 12345) % 2 ^ 31
      if i % 3 > 0 then -- in its episode; else while it starts and joins
        world:join "obs_3"
        f, calls = world:watch(rpc.rpc_async("obs_3", "steps", i, 2000)), calls + 1
      end
      rpc.sleep(random % (f and 10 or 30) * 1e-3)
      obs:kill()
      if f then
        local ok, err = pcall(f.wait, f)
        if ok then
          done = done + 1
        else
          assert.equal('UNAVAILABLE: worker "obs_3" disconnected while "steps" was running ' ..
            "(outcome: unknown)", tostring(err))
        end
      end
      obs:join()
      world:eventually(function() return not (rpc.worker_info "obs_3" or {}).connected end)
    end
    world:allow "lost: "
    local applied, acked, unheard = world:steps()
    assert.is_true(unheard <= times)
    figure("F02", "%d kills at random: 0 hangs; of %d episodes %d were through; %d steps applied, "
      .. "%d of them acknowledged, none twice", times, calls, done, applied, acked)
  end, { seconds = 120 }))
end)

-- An observer that asks for the next cut, then sends three tensors into it, again and again.
local SENDER = [[
local rpc = require("rlengine").rpc
local rl = require "rlengine"
local address, token = %q, %q
while true do
  rpc.init { name = "obs_3", connect = address, token = token, reconnect_for = 0,
    heartbeat = 0.3, timeout = 5 }
  local more = rpc.rpc_sync("trainer", "next")
  if more then
    print(pcall(rpc.rpc_sync, "trainer", "take", rl.arange(0, 4), rl.ones(2, 3), rl.zeros(5)))
    io.stdout:flush()
  end
  rpc.shutdown { timeout = 0.01 }
  if not more then break end
end
]]

describe("a connection that ends inside a frame", function()
  for _, kind in ipairs { "unix", "tcp" } do
    it("F03: shows nothing of it, over " .. kind, faults.row(function(world)
      local proxy = world:proxy()
      local cuts, taken, size, at = 0, 0, nil, nil
      rpc.register("take", function() taken = taken + 1 end)
      rpc.register("next", function()
        if not at then
          at = 0
        elseif at == 0 then
          at = 1
        else
          if at >= 64 and not size then -- of the frame: its header has arrived
            local _, line = world:logged(("inside a frame (%d of"):format(at))
            size = tonumber(line:match " of (%d+) bytes")
          end
          at = at + 1
          if size and at >= size then return false end
        end
        cuts = cuts + 1
        proxy:cut("up", "CALL", at)
        return true
      end)
      local sender = world:run(SENDER:format(proxy.address, workers.token), "obs_3")
      assert.is_true(world:eventually(function() return sender:poll() end, 25), sender:output())
      assert.equal(0, taken)
      world:events('worker "obs_3" lost: end of stream', cuts)
      world:events('worker "obs_3" lost: end of stream;', 1) -- behind byte 0
      for k = 1, size - 1 do
        world:events(('worker "obs_3" lost: end of stream inside a frame (%d of %d bytes)')
          :format(k, k < 64 and 64 or size), 1)
      end
      assert.equal(cuts, select(2, sender:output():gsub("false\t[^\n]*outcome: unknown", "")))
      world:allow "outcome: unknown"
      world:allow 'worker "trainer" lost'
      figure("F03", "%s: cut behind each byte of a call with 3 tensors, %d of %d: the call fails, "
        .. "nothing of it is seen", kind, cuts, cuts)
    end, { listen = kind == "tcp" and "tcp://127.0.0.1:0" or nil }))
  end

  it("F03: also when the process is killed while it sends", faults.row(function(world)
    local proxy, taken = world:proxy(), 0
    rpc.register("take", function() taken = taken + 1 end)
    local obs = world:start("obs_3", [[
      rpc.register("send", function() rpc.rpc_sync("trainer", "take", rl.zeros(5e6)) end)]],
      nil, proxy.address)
    world:join "obs_3"
    proxy:rate("up", 1e6) -- it has 20 MB to send
    local before = proxy:stat().up
    local f = world:watch(rpc.rpc_async("obs_3", "send"))
    -- The proxy holds 4 MiB and takes little by little: whoever sends is stuck within a frame.
    assert.is_true(world:eventually(function() return proxy:stat().up > before + 4.5e6 end))
    obs:kill()
    proxy:rate("up", 0)
    fails(f.wait, f)
    assert.matches("inside a frame %(%d+ of %d+ bytes%); 1 call failed",
      select(2, world:logged 'worker "obs_3" lost: end of stream'))
    assert.equal(0, taken)
  end))
end)
