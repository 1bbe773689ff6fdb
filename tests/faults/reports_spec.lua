-- What users of other systems reported, and how it is here: leaks over many calls and
-- connections, actors that go on for ever without a learner, heartbeats that say nothing.
package.path = "tests/support/?.lua;" .. package.path
local rl = require "rlengine"
local faults = require "faults"
local figure = require "figure"
local process = require "process"
local workers = require "workers"
local rpc = rl.rpc

describe("a worker", function()
  it("B04: holds after many calls and connections what it held before", faults.row(function(world)
    local calls, joins = faults.count(6000, 1000000), faults.count(100, 10000)
    -- Joins and leaves, over and over.
    local function come_and_go(name, times)
      return world:run(([[
local rl = require "rlengine"
local rpc = rl.rpc
rpc.register("echo", function(...) return ... end)
for i = 1, %d do
  rpc.init{ name = %q, connect = %q, token = %q }
  assert(rpc.rpc_sync("trainer", "echo", i) == i)
  rpc.shutdown()
end
print(rl.memory.allocated())
]]):format(times, name, world.group.address, workers.token), name)
    end
    rpc.register("echo", function(...) return ... end)
    world:start("obs", faults.SERVE)
    world:join "obs"
    local tensor = rl.zeros(4)
    local function call(n)
      for i = 1, n do
        if i % 2 == 0 then rpc.rpc_sync("obs", "echo", tensor) else rpc.rpc_sync("obs", "echo") end
      end
    end
    call(2000)
    local first = come_and_go("first", 5)
    assert.is_true(workers.eventually(function() return first:poll() end, 20))
    assert.equal(0, first:join(), first:output())
    do -- as many at once as the engine keeps the structures of for later
      local list = {}
      for i = 1, 5000 do list[i] = rl.zeros(1) end
    end
    local before = workers.held()
    local device = rl.memory.allocated()
    local began = workers.now()
    call(calls)
    local rate = calls / (workers.now() - began)
    local guest = come_and_go("guest", joins)
    assert.is_true(workers.eventually(function() return guest:poll() end, faults.count(30, 280)))
    assert.equal(0, guest:join(), guest:output())
    assert.matches("^0\n$", guest:output())
    local now
    workers.eventually(function()
      now = workers.held()
      return now.fds <= before.fds and now.blocks <= before.blocks + 4
    end)
    assert.equal(before.fds, now.fds)
    assert.equal(before.threads, now.threads)
    assert.is_true(now.blocks <= before.blocks + 4, now.blocks .. " blocks, " .. before.blocks)
    assert.is_true(rl.memory.allocated() <= device + 64)
    figure("B04", "%d calls (%.0f a second) and %d times joined and left: %d descriptors, %d "
      .. "blocks and %d bytes more", calls, rate, joins, now.fds - before.fds,
      now.blocks - before.blocks, now.bytes - before.bytes)
  end, { seconds = 120 }))

  it("B12: whose trainer is gone for good ends, and says so", faults.row(function(world)
    local path = world.group.folder .. "/learner.sock"
    local learner = world:run(([[
local rpc = require("rlengine").rpc
rpc.init{ name = "learner", listen = "unix:%s", token = %q, heartbeat = 0.3, timeout = 1 }
rpc.register("select_action", function() print "asked" io.stdout:flush() rpc.sleep(60) end)
rpc.serve()
]]):format(path, workers.token), "learner")
    local actor = world:run(([[
local rpc = require("rlengine").rpc
rpc.init{ name = "actor", connect = "unix:%s", token = %q, heartbeat = 0.3, timeout = 1,
  reconnect_for = 1 }
local ok, err = pcall(rpc.rpc_sync, "learner", "select_action")
print(ok, err)
io.stdout:flush()
rpc.serve()
]]):format(path, workers.token), "actor")
    learner:said("asked", 10)
    local killed = learner:kill()
    assert.is_true(workers.eventually(function() return actor:poll() end, 15), actor:output())
    local took = faults.clock() - killed
    local code = actor:join()
    assert.is_true(code ~= 0)
    assert.matches('false\tUNAVAILABLE: worker "learner" disconnected while "select_action" was '
      .. "running %(outcome: unknown%)\n", actor:output())
    figure("B12", "an actor whose learner was killed ended %.1f s later (it looked for it for 1 s) "
      .. "with exit code %d", took, code)
  end))

  it("B14: that hangs is named, with its process, its call and the last it noted",
    faults.row(function(world)
    local let_go = world.group.folder .. "/go"
    world:start("obs_3", ([[
      local function hang()
        while not io.open(%q) do end
        collectgarbage()
      end
      local env = rl.env.make "CartPole-v1"
      rpc.register("run_episode", function(how)
        env:reset { seed = 1 }
        for n = 1, 5 do env:step(n %% 2) end
        if how == "words" then rpc.note("level 3") end
        hang()
      end)
      rl.env.register("Stuck-v0", {
        observation_space = rl.env.Discrete(2), action_space = rl.env.Discrete(2),
        reset = function(self) self.n = 0 return 0 end,
        step = function(self)
          self.n = self.n + 1
          if self.n == 3 then hang() end
          return 0, 0, false
        end,
      })
      rpc.register("stuck", function()
        rpc.note()
        local stuck = rl.env.make "Stuck-v0"
        stuck:reset()
        for _ = 1, 3 do stuck:step(0) end
      end)]]):format(let_go))
    world:join "obs_3"
    local pid, heard = rpc.worker_info("obs_3").pid, nil
    for n, case in ipairs {
      { "run_episode", "steps", "after step 5 of its environment" },
      { "run_episode", "words", "level 3, after step 5 of its environment" },
      { "stuck", "", "in step 3 of its environment" },
    } do
      local f = rpc.rpc_async("obs_3", case[1], case[2])
      local said = {}
      assert.is_true(workers.eventually(function()
        said = {}
        for _, line in ipairs(world:lines()) do
          if line.text:find("is alive but", 1, true) then said[#said + 1] = line.text end
        end
        return #said == n
      end))
      assert.matches(('worker "obs_3" is alive but "%s" has run for %%d+%%.%%d s %%(pid %d, %s%%)$')
        :format(case[1], pid, case[3]), said[n])
      heard = said[n]
      assert.equal(case[3], rpc.worker_info("obs_3").doing)
      process.write(let_go, "")
      f:wait()
      os.remove(let_go)
      -- A ping later it is known to hear again.
      assert.is_true(workers.eventually(function()
        return rpc.worker_info("obs_3").doing == ""
      end))
    end
    figure("B14", "%s", heard)
  end, { busy_after = 0.5 }))
end)
