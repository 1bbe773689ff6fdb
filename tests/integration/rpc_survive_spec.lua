-- Connections that break: who comes back, what is told, what is never applied twice. Real
-- processes, stopped and killed.
package.path = "tests/support/?.lua;" .. package.path
local rl = require "rlengine"
local fails = require "fails"
local figure = require "figure"
local process = require "process"
local workers = require "workers"
local signal = require "posix.signal"
local rpc = rl.rpc

local full = os.getenv "RLE_FULL"

local function count(text, part)
  local n, at = 0, 1
  while true do
    local from, to = text:find(part, at, true)
    if not from then return n end
    n, at = n + 1, to + 1
  end
end

-- Quick to notice.
local QUICK = "heartbeat = 0.3, timeout = 1"
local quick = { heartbeat = 0.3, timeout = 1 }

local function connected(name)
  local info = rpc.worker_info(name)
  return info and info.connected
end

-- Those who do not know this process would not end with it.
local function kill_all(group)
  for _, worker in ipairs(group.workers) do
    if not worker.over then worker:kill(signal.SIGKILL) end
  end
end

local TRAINER = [[
local rl = require "rlengine"
local rpc = rl.rpc
local N, EPISODES = %d, %d
rpc.init { name = "trainer", listen = %q, token = %q }
local Agent = rpc.class("Agent", { "select_action" })
function Agent:init() self.steps = 0 end
function Agent:select_action(obs)
  self.steps = self.steps + 1
  rpc.sleep(0.01) -- so that the end finds some waiting for it
  return obs %% 2
end
local agent = Agent()
local me, episodes, there = rpc.rref(agent), 0, 0
local function say(...) print(...) io.stdout:flush() end
rpc.on_join(function(name)
  there = there + 1
  if there == N then say("all there") end
  local observer = rpc.remote(name, "Observer")
  while true do
    observer:rpc_sync():run_episode(me)
    episodes = episodes + 1
    if episodes == EPISODES then say("learned", agent.steps) end
  end
end)
rpc.on_leave(function() there = there - 1 end)
rpc.register("finish", function() rpc.shutdown() end)
rpc.serve()
]]

local OBSERVER = [[
local Observer = rpc.class("Observer", { "run_episode" })
function Observer:run_episode(agent)
  for step = 1, 10 do
    local ok, err = pcall(function() return agent:rpc_sync():select_action(step) end)
    if not ok then
      print(err)
      io.stdout:flush()
      error(err, 0)
    end
  end
end
]]

-- All observers have joined, which those who came first do not wait for, and play.
local function under_way(trainer)
  return workers.eventually(function()
    local text = trainer:output()
    return text:find "all there" and text:find "learned"
  end, 60)
end

describe("a trainer that is killed and started again", function()
  it("F08: gets its observers back, and training goes on", function()
    local group = workers.group()
    local n = full and 64 or 8
    group.address = "unix:" .. group.folder .. "/trainer.sock"
    local function start(script)
      process.write(script, TRAINER:format(n, 2 * n, group.address, workers.token))
      return group:run(script, "trainer")
    end
    local trainer = start(group.folder .. "/trainer.lua")
    local observers = {}
    for i = 1, n do observers[i] = group:start("obs_" .. i, OBSERVER) end
    assert.is_true(under_way(trainer), trainer:output())
    trainer:kill(signal.SIGKILL)
    trainer:join()
    local t0 = workers.now()
    trainer = start(group.folder .. "/again.lua")
    assert.is_true(workers.eventually(function()
      return trainer:output():find "all there"
    end, 60), trainer:output())
    local back = workers.now() - t0
    assert.is_true(workers.eventually(function()
      return trainer:output():find "learned"
    end, 60), trainer:output())
    figure("F08", "%d observers back %.2f s after the restart, and training", n, back)
    local interrupted, attempts = 0, 0
    for _, observer in ipairs(observers) do
      local text = observer:output()
      assert.equal(1, count(text, 'reconnected to "trainer"'), text)
      assert.equal(1, count(text, 'worker "trainer" lost: end of stream'), text)
      assert.matches('reconnecting to "trainer" in %d+%.%d%d s %(attempt 1%)', text)
      interrupted = interrupted + count(text, 'UNAVAILABLE: worker "trainer" disconnected while '
        .. '"select_action" was running (outcome: unknown)')
      attempts = attempts + count(text, "reconnecting")
    end
    assert.is_true(interrupted > 0, observers[1]:output())
    figure("F08", "%.1f attempts of each observer", attempts / n)
    -- And when it says goodbye, they end.
    local asker = group.folder .. "/finish.lua"
    process.write(asker, ([[
local rpc = require("rlengine").rpc
rpc.init { name = "asker", connect = %q, token = %q }
pcall(rpc.rpc_sync, "trainer", "finish")
]]):format(group.address, workers.token))
    group:run(asker, "asker"):join()
    assert.equal(0, trainer:join())
    for _, observer in ipairs(observers) do assert.equal(0, observer:join(), observer:output()) end
    group:finish()
  end)

  it("F09: and one that is not, is given up", function()
    local group = workers.group()
    local patience = full and 60 or 1
    group.address = "unix:" .. group.folder .. "/trainer.sock"
    local script = group.folder .. "/trainer.lua"
    process.write(script, TRAINER:format(1, 1, group.address, workers.token))
    local trainer = group:run(script, "trainer")
    local observer = group:start("obs_1", OBSERVER, "reconnect_for = " .. patience)
    assert.is_true(workers.eventually(function() return trainer:output():find "learned" end, 20))
    trainer:kill(signal.SIGKILL)
    trainer:join()
    local t0 = workers.now()
    assert.equal(69, observer:join())
    local took = workers.now() - t0
    figure("B12", "ended with an error %.2f s after its trainer was killed", took)
    figure("F09", "process ended %.2f s after the loss (%d s asked)", took, patience)
    assert.is_true(took > patience - 0.1)
    local words = ('no worker "trainer" at %s for %d s (Connection refused); giving up')
      :format(group.address, patience)
    local text = observer:output()
    assert.is_truthy(text:find("UNAVAILABLE: " .. words, 1, true), text)
    assert.is_truthy(text:find("rlengine: " .. words, 1, true), text)
    group:finish()
  end)

  for _, over in ipairs { "a Unix socket", "TLS" } do
    it("finds calls waiting that were made meanwhile, over " .. over, function()
      local group = workers.group()
      local listen = "unix:" .. group.folder .. "/trainer.sock"
      local options = ""
      if over == "TLS" then listen, options = "tcp://127.0.0.1:0", [[, tls = "psk"]] end
      local function start(number, address)
        local script = group.folder .. "/trainer" .. number .. ".lua"
        process.write(script, ([[
local rpc = require("rlengine").rpc
local bound = rpc.init { name = "trainer", listen = %q, token = %q%s }
rpc.register("twice", function(x) return 2 * x end)
rpc.register("finish", function() rpc.shutdown() end)
print("at " .. bound[1])
io.stdout:flush()
rpc.serve()
]]):format(address, workers.token, options))
        local trainer = group:run(script, "trainer")
        assert.is_true(workers.eventually(function() return trainer:output():find "at .*\n" end))
        return trainer, trainer:output():match "at (%S+)"
      end
      local trainer, address = start(1, listen)
      local caller = group.folder .. "/caller.lua"
      process.write(caller, ([[
local rl = require "rlengine"
local rpc = rl.rpc
rpc.init { name = "caller", connect = %q, token = %q%s }
print("before", rpc.rpc_sync("trainer", "twice", 1))
io.stdout:flush()
local trainer = rpc.to "trainer"
while rpc.worker_info("trainer").connected do rpc.sleep(0.01) end
print("reconnecting", rpc.worker_info("trainer").reconnecting)
local late = trainer:rpc_async{timeout = 0.05}:twice(2)
print(pcall(late.wait, late))
print("held")
io.stdout:flush()
print("after", trainer:rpc_sync():twice(3))
rpc.wait_for({ "trainer" })
pcall(function() trainer:rpc_sync():finish() end)
]]):format(address, workers.token, options))
      local asker = group:run(caller, "caller")
      assert.is_true(workers.eventually(function() return asker:output():find "before\t2" end))
      trainer:kill(signal.SIGKILL)
      trainer:join()
      assert.is_true(workers.eventually(function() return asker:output():find "held" end))
      start(2, address)
      assert.equal(0, asker:join(), asker:output())
      assert.matches('false\tDEADLINE_EXCEEDED: "twice" on "trainer" was not started in time '
        .. "%(outcome: not executed%)", asker:output())
      assert.matches("reconnecting\ttrue", asker:output())
      assert.matches("after\t6", asker:output())
      group:finish()
    end)
  end
end)

describe("weights that are followed", function()
  it("are those of the trainer that was started again", function()
    local group = workers.group()
    group.address = "unix:" .. group.folder .. "/trainer.sock"
    local function start(number, versions)
      local script = group.folder .. "/trainer" .. number .. ".lua"
      process.write(script, ([[
local rl = require "rlengine"
local rpc = rl.rpc
rpc.init { name = "trainer", listen = %q, token = %q }
local net = { w = rl.zeros(4) }
net.w:fill_(%d)
local weights = rpc.weights("policy", net)
for version = 2, %d do
  net.w:fill_(%d + version / 100)
  weights:publish()
end
rpc.serve()
]]):format(group.address, workers.token, number, versions, number))
      return group:run(script, "trainer")
    end
    local trainer = start(1, 5)
    local observer = group:start("obs_1", [[
local serve = rpc.serve
rpc.serve = function()
  local net = { w = rl.zeros(4) }
  local weights = rpc.follow("trainer", "policy", net)
  local last
  while true do
    weights:update()
    local now = ("%.2f"):format(net.w[1]:item())
    if now ~= last then print("acts with " .. now) io.stdout:flush() end
    last = now
    rpc.sleep(0.01)
  end
end
]])
    assert.is_true(workers.eventually(function() return observer:output():find "with 1.05" end),
      observer:output())
    trainer:kill(signal.SIGKILL)
    trainer:join()
    start(2, 3)
    assert.is_true(workers.eventually(function() return observer:output():find "with 2.03" end),
      observer:output())
    assert.is_nil(observer:output():find "with 0.00")
    kill_all(group)
    group:finish()
  end)
end)

describe("a trainer that is stopped", function()
  it("F04: is given up by its observers, and has them back when it goes on", function()
    local group = workers.group()
    local n = full and 64 or 4
    group.address = "unix:" .. group.folder .. "/trainer.sock"
    local script = group.folder .. "/trainer.lua"
    process.write(script, (TRAINER:format(n, 2 * n, group.address, workers.token)
      :gsub("rpc.init {", "rpc.init { " .. QUICK .. ", ")))
    local trainer = group:run(script, "trainer")
    local observers = {}
    for i = 1, n do observers[i] = group:start("obs_" .. i, OBSERVER, QUICK) end
    assert.is_true(under_way(trainer), trainer:output())
    trainer:kill(signal.SIGSTOP)
    local function all(text)
      return workers.eventually(function()
        for _, observer in ipairs(observers) do
          if not observer:output():find(text, 1, true) then return false end
        end
        return true
      end, 30)
    end
    assert.is_true(all 'worker "trainer" lost: did not answer for')
    assert.is_true(all '(attempt 1)')
    rpc.sleep(0.5)
    trainer:kill(signal.SIGCONT)
    local t0 = workers.now()
    assert.is_true(all 'reconnected to "trainer"', observers[1]:output())
    figure("F04", "%d observers back %.2f s after their trainer went on", n, workers.now() - t0)
    assert.is_true(workers.eventually(function()
      return count(trainer:output(), "all there") == 2
    end, 30), trainer:output())
    assert.equal(n, count(trainer:output(), "lost: it ended the session"))
    kill_all(group)
    group:finish()
  end)
end)

describe("an observer that is stopped", function()
  it("F04: is given up, learns of it when it goes on, and is back", function()
    local group = workers.group(quick)
    local rounds = full and 10 or 1
    local old_life, told = 0, {}
    rpc.register("slow", function() rpc.sleep(30) end)
    rpc.register("row", function() old_life = old_life + 1 end)
    local stop = rpc.on_join(function(name, incarnation) told[#told + 1] = name .. incarnation end)
    local w = group:start("obs_3", [[
local Thing = rpc.class("Thing", { "get" })
function Thing:get() return "here" end
rpc.register("run_episode", function()
  local ok, err = pcall(rpc.rpc_sync, "test", "slow")
  print(err)
  io.stdout:flush()
  rpc.rpc_sync("test", "row") -- of a call nobody waits for any more
end)
]], QUICK)
    rpc.wait_for { "obs_3" }
    for round = 1, rounds do
      local thing = rpc.remote("obs_3", "Thing")
      assert.equal("here", thing:rpc_sync():get())
      local f = rpc.rpc_async("obs_3", "run_episode")
      assert.is_true(workers.eventually(function() return rpc.counters().calls == 1 end))
      w:kill(signal.SIGSTOP)
      local t0 = workers.now()
      local err = fails(f.wait, f)
      local noticed = workers.now() - t0
      assert.matches('UNAVAILABLE: worker "obs_3" did not answer for %d+%.%d s '
        .. '%(outcome: unknown%)', tostring(err))
      assert.is_true(noticed > 0.6 and noticed < 5, noticed)
      rpc.sleep(0.2)
      w:kill(signal.SIGCONT)
      t0 = workers.now()
      assert.is_true(workers.eventually(function() return connected "obs_3" end))
      figure("F04", "noticed after %.2f s, back %.2f s after SIGCONT", noticed, workers.now() - t0)
      assert.is_true(workers.eventually(function()
        return count(w:output(), 'UNAVAILABLE: session ended by "test"; reconnecting') == round
      end), w:output())
      assert.is_true(workers.eventually(function()
        return count(w:output(), 'reconnected to "test"') == round
      end), w:output())
      assert.equal(0, old_life)
      -- What was there before is gone, although the process is the same.
      err = fails(function() thing:rpc_sync():get() end)
      assert.equal('UNAVAILABLE: owner "obs_3" of this reference is gone', tostring(err))
      err = fails(rpc.rpc_sync, "obs_3", "run_episode", thing)
      assert.equal('UNAVAILABLE: owner "obs_3" of this reference is gone', tostring(err))
      assert.equal("here", rpc.remote("obs_3", "Thing"):rpc_sync():get())
    end
    assert.equal(rounds + 1, #told)
    assert.equal(told[1], told[#told])
    stop()
    group:finish()
  end)

  it("F39: reports each step once", function()
    local group = workers.group(quick)
    local store, reports = rl.rewards.new(), 0
    rpc.register("report", function(episode, step, reward)
      reports = reports + 1
      local _, _, incarnation = rpc.caller()
      store:report(1, reward, { incarnation = incarnation, episode = episode, step = step })
      if reports % 7 == 0 then rpc.sleep(0.3) end -- the caller has given up by then
    end)
    local w = group:start("obs_3", [[
local serve = rpc.serve
rpc.serve = function()
  local trainer = rpc.to "test"
  for step = 1, 40 do
    rpc.retry(function() trainer:rpc_sync{timeout = 0.15}:report(1, step, step) end,
      { idempotent = true, attempts = 100, backoff = 0.02 })
  end
  print("all reported")
  io.stdout:flush()
  serve()
end
]], QUICK)
    assert.is_true(workers.eventually(function() return reports > 20 end, 30))
    w:kill(signal.SIGSTOP)
    assert.is_true(workers.eventually(function() return not connected "obs_3" end, 30))
    w:kill(signal.SIGCONT)
    assert.is_true(workers.eventually(function() return w:output():find "all reported" end, 60),
      w:output())
    assert.same({ 40 * 41 / 2 }, store:totals())
    assert.is_true(reports > 40)
    figure("F39", "40 steps reported %d times over lost replies and a lost session: each once",
      reports)
    group:finish()
  end)
end)

describe("a name that is taken", function()
  it("F11, B13: is free for the next one when the old one is frozen", function()
    local group = workers.group()
    local old = group:start("obs_3", [[rpc.register("who", function() return "old" end)]])
    rpc.wait_for { "obs_3" }
    old:kill(signal.SIGSTOP)
    local f = rpc.rpc_async("obs_3", "who")
    rpc.sleep(0.05)
    local t0 = workers.now()
    local new = group:start("obs_3", [[rpc.register("who", function() return "new" end)]])
    assert.equal('UNAVAILABLE: worker "obs_3" was replaced while "who" was running (outcome: '
      .. "unknown)", tostring(fails(f.wait, f)))
    assert.equal("new", rpc.rpc_sync("obs_3", "who"))
    local served = workers.now() - t0
    figure("F11", "the new process serves %.2f s after its start", served)
    figure("B13", "a replacement serves after %.2f s, the frozen one is told", served)
    -- The old one goes on and finds its name taken.
    old:kill(signal.SIGCONT)
    assert.equal(65, old:join())
    assert.matches(('ALREADY_EXISTS: "obs_3" is already connected from pid %d; pick another name')
      :format(new.pid), old:output())
    assert.equal("new", rpc.rpc_sync("obs_3", "who"))
    group:finish()
  end)

  it("F31: stays with who is there", function()
    local group = workers.group()
    local first = group:start("obs_3", [[
rpc.register("busy", function()
  local t = require("posix.time")
  local function now() local v = t.clock_gettime(1) return v.tv_sec + v.tv_nsec * 1e-9 end
  local ends = now() + 1.2
  while now() < ends do end
  return "done"
end)]])
    rpc.wait_for { "obs_3" }
    local f = rpc.rpc_async("obs_3", "busy") -- its guard answers
    local second = group:start("obs_3", "")
    assert.is_true(workers.eventually(function() return second:output() ~= "" end))
    assert.equal(65, second:join())
    assert.matches(('ALREADY_EXISTS: "obs_3" is already connected from pid %d; pick another name')
      :format(first.pid), second:output())
    assert.equal("done", f:wait())
    group:finish()
  end)
end)

describe("a worker that computes", function()
  it("F05: is named once, and never lost", function()
    local group = workers.group()
    local n, seconds = full and 20 or 3, full and 30 or 1.5 -- more of them than processors
    local path = group.folder .. "/watch.lua"
    group.address = "unix:" .. group.folder .. "/watch.sock"
    process.write(path, ([[
local rpc = require("rlengine").rpc
rpc.init{ name = "watch", listen = %q, token = %q, %s, busy_after = 0.5 }
local names, futures = {}, {}
for i = 1, %d do names[i] = "busy_" .. i end
rpc.wait_for(names)
for i, name in ipairs(names) do
  futures[i] = rpc.to(name):rpc_async{timeout = 1000}:run_episode(%g)
end
print(#rpc.wait_all(futures) .. " done")
rpc.shutdown()
]]):format(group.address, workers.token, QUICK, n, seconds))
    local watch = group:run(path, "watch")
    for i = 1, n do
      group:start("busy_" .. i, [[
rpc.register("run_episode", function(seconds)
  local t = require("posix.time")
  local function now() local v = t.clock_gettime(1) return v.tv_sec + v.tv_nsec * 1e-9 end
  local ends = now() + seconds
  while now() < ends do end
  return "done"
end)]], QUICK)
    end
    assert.equal(0, watch:join(), watch:output())
    local text = watch:output()
    assert.is_truthy(text:find("\n" .. n .. " done\n", 1, true), text)
    assert.equal(n, count(text, "is alive but"))
    for i = 1, n do
      assert.matches(('worker "busy_%d" is alive but "run_episode" has run for %%d+%%.%%d s')
        :format(i), text)
    end
    assert.is_nil(text:find "lost")
    figure("F05", "%d workers busy for %.1f s with a timeout of 1 s: 1 line each, 0 disconnects",
      n, seconds)
    group:finish()
  end)
end)
