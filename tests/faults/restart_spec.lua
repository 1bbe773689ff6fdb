-- F30, B43: environments that crash, end their process, hang or raise. Training goes on with those
-- that are left; what failed is started again and plays again, and the user reads what it was and
-- what was done about it.
local rl = require "rlengine"
local faults = require "faults"
local launched = require "launched"
local figure = require "figure"
local workers = require "workers"
local stdlib = require "posix.stdlib"

-- A segmentation fault is to be one, also where a sanitizer would rather report it.
stdlib.setenv("ASAN_OPTIONS", (os.getenv "ASAN_OPTIONS" or "") .. ":handle_segv=0")

local rpc = rl.rpc
local runs = {}

local function run(script, seconds)
  local started = launched.start(script)
  runs[#runs + 1] = started
  local code = started:wait(seconds or 60)
  return code, started:out(), started:err(), started
end

-- Two observers play ten steps an episode; FAILS is what the environment of one does at its
-- seventh step, once. The trainer counts what it is told, and ends after LATER more episodes of
-- both.
local SCRIPT = [[
  local rl = require "rlengine"
  local rpc = rl.rpc
  local folder = debug.getinfo(1, "S").source:match "^@(.*/)"
  local function once()
    local f = io.open(folder .. "happened")
    if f then f:close() return false end
    io.open(folder .. "happened", "w"):close()
    return true
  end
  local function step()
    FAILS
  end
  local Observer = rpc.class("Observer", { "run_episode" })
  function Observer:init(id, extra) self.id, self.extra = id, extra end
  function Observer:run_episode(agent)
    for n = 1, 10 do
      if n == 7 and self.id == 1 and once() then step() end
      agent:rpc_sync():report(self.id, n + self.extra.more)
    end
    return self.id
  end
  local Agent = rpc.class("Agent", { "report" })
  function Agent:init(ctx)
    self.steps, self.observers, self.dropped = { 0, 0 }, {}, 0
    for i, name in ipairs(ctx.observers) do
      self.observers[i] = rpc.remote(name, "Observer", i, { more = 0 })
    end
  end
  function Agent:report(id, n)
    self.steps[id] = self.steps[id] + 1
    assert(self.steps[id] == n, "a step of another episode")
  end
  rl.launch {
    observers_per_trainer = 2, restarts = RESTARTS,
    trainer = function(ctx)
      local agent = Agent(ctx)
      local both, alone = 0, 0
      local loop = rl.episode.new {
        observers = agent.observers, with = { rpc.rref(agent) }, LOOP
        drop = function(_, i) agent.dropped, agent.steps[i] = agent.dropped + agent.steps[i], 0 end,
        finish = function(self, results)
          for k, i in ipairs(self.finished) do
            assert(results[k] == i and agent.steps[i] == 10)
            agent.steps[i] = 0
          end
          if #results == 2 then both = both + 1 else alone = alone + 1 both = 0 end
        end,
        report = function() rpc.sleep(0.01) end,
      }
      repeat loop:run() until alone > 0 and both >= 5
      print("dropped", agent.dropped, "alone", alone > 0)
    end,
  }
]]

local function script(fails, restarts, loop)
  return (SCRIPT:gsub("FAILS", fails):gsub("RESTARTS", restarts or "{ backoff = 0.1 }")
    :gsub("LOOP", loop or ""))
end

local SEGFAULT = 'require("ffi").cast("int *", 0)[0] = 1'

local function has(text, part)
  assert.truthy(text:find(part, 1, true), part .. " not in:\n" .. text)
end

describe("an observer whose environment", function()
  after_each(function()
    for _, each in ipairs(runs) do
      for _, left in ipairs(each:processes()) do each:signal("KILL", left.pid) end
      each:remove()
    end
    runs = {}
  end)

  for what, case in pairs {
    ["crashes (segmentation fault)"] = { SEGFAULT, "died (signal 11)" },
    ["ends its process"] = { "os.exit(3)", "failed (exit code 3)" },
  } do
    it("F30, B43: " .. what .. " is started again, and plays again", function()
      local code, out, err, started = run(script(case[1]))
      assert.equal("dropped\t6\talone\ttrue\n", out, err)
      assert.equal(0, code, err)
      has(err, 'rlengine: observer "obs_0_for_0" ' .. case[2] .. "; restart 1 of 5 in 0.1 s\n")
      has(err, 'worker "obs_0_for_0" lost: end of stream; 1 call failed, 1 reference released')
      has(err, 'observer "obs_0_for_0" is lost; 1 of 2 play on\n')
      has(err, 'observer "obs_0_for_0" is back; 2 of 2 play\n')
      figure("B43", "%s", err:match '(observer "obs_0_for_0" [df][^\n]*)')
      assert.is_true(launched.eventually(function() return #started:processes() == 0 end, 10))
      assert.equal("", started:leftovers())
    end)
  end

  it("F30, B43: hangs is killed, started again, and plays again", function()
    local code, out, err = run((script('rpc.note "playing by heart" while true do end',
      nil, "timeout = 1, patience = 0.5,"):gsub("restarts =", "rpc = { heartbeat = 0.2 }, %0")))
    assert.equal("dropped\t6\talone\ttrue\n", out, err)
    assert.equal(0, code, err)
    assert.matches('"run_episode" on "obs_0_for_0" took longer than 1.000 s %(outcome: unknown%); '
      .. "its episode is dropped %(pid %d+, playing by heart%)\n", err)
    has(err, 'rlengine: observer "obs_0_for_0" killed: no reply after deadline + 0.5 s; restart 1 '
      .. "of 5 in 0.1 s\n")
    has(err, 'observer "obs_0_for_0" is back; 2 of 2 play\n')
  end)

  it("F30: hangs is killed though its connection comes back meanwhile", function()
    -- The connection is cut by stopping the process; its engine joins again, its script does not.
    local code, out, err = run((script([[
        local pid = require("posix.unistd").getpid()
        os.execute("( sleep 0.3; kill -STOP " .. pid .. "; sleep 1.5; kill -CONT " .. pid .. " ) &")
        while true do end]], nil, "timeout = 2, patience = 0.5,")
      :gsub("restarts =", "rpc = { heartbeat = 0.2, timeout = 0.8 }, %0")))
    assert.equal("dropped\t6\talone\ttrue\n", out, err)
    assert.equal(0, code, err)
    has(err, 'worker "obs_0_for_0" lost: did not answer for')
    has(err, 'observer "obs_0_for_0" killed: no reply after deadline + 0.5 s; restart 1 of 5')
    has(err, 'observer "obs_0_for_0" is back; 2 of 2 play\n')
  end)

  it("F30: hangs is left out, where nobody starts it again, until it hears", faults.row(
    function(world)
    local let_go = world.group.folder .. "/go"
    local body = [[
      local Observer = rpc.class("Observer", { "run_episode" })
      function Observer:init(id, file) self.id, self.file = id, file end
      function Observer:run_episode()
        if self.id == 1 then while not io.open(self.file) do end end
        return self.id
      end]]
    world:start("obs_1", body)
    world:start("obs_2", body)
    world:join("obs_1", "obs_2")
    local list = { rpc.remote("obs_1", "Observer", 1, let_go),
      rpc.remote("obs_2", "Observer", 2, let_go) }
    local loop = rl.episode.new { observers = list, timeout = 0.5, patience = 0.3,
      report = function() end }
    assert.same({ 2 }, loop:run())
    assert.same({ 2 }, loop.finished)
    assert.is_true(workers.eventually(function()
      assert.same({ 2 }, loop:run())
      return world:count 'observer "obs_1" hangs: no reply after deadline + 0.3 s' == 1
    end))
    require("process").write(let_go, "")
    assert.is_true(workers.eventually(function() return #loop:run() == 2 end))
    assert.same({ 1, 2 }, loop.finished)
    assert.equal(1, world:count 'observer "obs_1" is back; 2 of 2 play')
    for _, observer in ipairs(list) do observer:release() end
  end))

  it("F30: is made again with what it was made with", faults.row(function(world)
    local body = [[
      local Thing = rpc.class("Thing", { "all" })
      function Thing:init(...) self.list, self.n = { ... }, select("#", ...) end
      function Thing:all() return unpack(self.list, 1, self.n) end]]
    local w = world:start("w", body)
    world:join "w"
    local Mine = rpc.class("Mine", {})
    local mine = rpc.rref(Mine())
    local thing = rpc.remote("w", "Thing", 1, nil, "three", { 4 }, mine, nil)
    local function check(n, ...)
      assert.equal(6, n)
      local a, b, c, d, e, f = ...
      assert.same({ 1, nil, "three", { 4 } }, { a, b, c, d })
      assert.equal(mine, e)
      assert.is_nil(f)
    end
    local function all() return thing:rpc_sync():all() end
    check(select("#", all()), all())
    w:kill()
    w:join()
    assert.equal("UNAVAILABLE", faults.fails(all).code)
    world:start("w", body)
    assert.is_true(workers.eventually(function() return rpc.worker_info("w").connected end))
    faults.fails(all)
    thing = thing:remake()
    check(select("#", all()), all())
    local err = faults.fails(mine.remake, mine)
    assert.equal("FAILED_PRECONDITION", err.code)
    local tensor = rpc.remote("w", "Thing", rl.zeros(1))
    assert.matches("cannot be made again: that takes a reference from rpc.remote, with no tensor",
      faults.fails(tensor.remake, tensor).message)
    for _, ref in ipairs { mine, thing, tensor } do ref:release() end
  end))

  it("F30: takes longer than its deadline, and hears again, is left alone", function()
    local code, out, err = run(script("rpc.sleep(1.2)", nil, "timeout = 1, patience = 5,"))
    assert.equal("dropped\t6\talone\ttrue\n", out, err)
    assert.equal(0, code, err)
    has(err, "its episode is dropped (pid ")
    assert.falsy(err:find("killed", 1, true), err)
    assert.falsy(err:find("restart", 1, true), err)
  end)

  it("F30, B43: raises loses that episode alone", function()
    local code, out, err = run(script('error("pole fell off")'))
    assert.equal("dropped\t6\talone\ttrue\n", out, err)
    assert.equal(0, code, err)
    assert.matches('UNKNOWN: "run_episode" on "obs_0_for_0" failed: [^\n]*script.lua:11: pole fell '
      .. "off; its episode is dropped\n", err)
    assert.falsy(err:find("lost", 1, true), err)
  end)

  it("B43: raises for every observer ends the run, with the way there", function()
    local code, out, err = run((script('error("pole fell off")')
      :gsub("self.id == 1 and once%(%)", "true")))
    assert.equal("", out)
    assert.equal(1, code)
    has(err, 'failed: ')
    has(err, "script.lua:11: pole fell off")
    has(err, "in function 'step'")
    has(err, 'trainer "agent_0" failed (exit code 1)')
  end)

  it("F30: keeps crashing is given up, and training goes on with the other one", function()
    local started = launched.start((script(SEGFAULT, "{ max = 2, backoff = 0.02 }")
      :gsub("and once%(%)", "") -- always
      :gsub("repeat loop:run%(%) until [^\n]*", [[
        repeat loop:run() until agent.dropped == 3 * 6
        for _ = 1, 20 do loop:run() end
        rpc.sleep(0.5)
        assert(#loop:run() == 1)]])))
    runs[#runs + 1] = started
    local code = started:wait(60)
    local err = started:err()
    assert.equal("dropped\t18\talone\ttrue\n", started:out(), err)
    assert.equal(0, code, err)
    has(err, 'rlengine: observer "obs_0_for_0" died (signal 11); restart 2 of 2 in 0.0 s\n')
    has(err, 'rlengine: observer "obs_0_for_0" failed 3 times in 60 s; giving up on it\n')
  end)

  it("F30: keeps crashing, when there is no other one, ends the run", function()
    local code, _, err = run((script(SEGFAULT, "{ max = 2, backoff = 0.02 }")
      :gsub("and once%(%)", ""):gsub("observers_per_trainer = 2", "observers_per_trainer = 1")))
    assert.equal(139, code, err)
    has(err, 'observer "obs_0_for_0" failed 3 times in 60 s; giving up on it\n')
    has(err, 'rlengine: observer "obs_0_for_0" died (signal 11)\n')
  end)

  it("F30: is started again when its trainer says so", function()
    local code, out, err = run [[
      local rl = require "rlengine"
      local rpc = rl.rpc
      rpc.register("pid", function() return require("posix.unistd").getpid() end)
      rl.launch {
        restarts = 3,
        trainer = function(ctx)
          local name = ctx.observers[1]
          local before = rpc.rpc_sync(name, "pid")
          ctx:restart(name, "it has done\nenough")
          while true do
            local ok, now = pcall(rpc.rpc_sync, name, "pid")
            if ok and now ~= before then break end
            rpc.sleep(0.02)
          end
          local ok, why = pcall(ctx.restart, ctx, "obs_7")
          print(ok, why)
        end,
      }
      local script = { restarts = false, exit = false }
      function script.trainer(ctx) print(pcall(ctx.restart, ctx, ctx.observers[1])) end
      rl.launch(script)
    ]]
    assert.equal(0, code, err)
    assert.equal('false\tNOT_FOUND: "agent_0" has no observer "obs_7"\n'
      .. "false\tFAILED_PRECONDITION: rl.launch was told to start nobody again (restarts)\n", out)
    has(err, 'rlengine: observer "obs_0_for_0" killed: it has done enough; restart 1 of 3 in 0.5 s')
  end)

  it("F30: fails before it has joined ends the run at once", function()
    local code, _, err = run [[
      local rl = require "rlengine"
      local file = io.open(debug.getinfo(1, "S").source:match "^@(.*/)" .. "lives", "a")
      rl.launch { trainer = function() rl.rpc.sleep(60) end, rpc = { bad = 1 } }
    ]]
    assert.equal(1, code)
    assert.falsy(err:find("restart", 1, true), err)
  end)

  it("F30: is started again as often as it was killed by a user", function()
    local started = launched.start(script("", "{ backoff = 0.05 }")
      :gsub("repeat loop:run%(%) until [^\n]*", [[
        print "begun"
        for _ = 1, 1000000 do
          loop:run()
          local f = io.open(folder .. "stop")
          if f then f:close() break end
        end]]):gsub("rpc.sleep%(0.01%)", ""), nil)
    runs[#runs + 1] = started
    assert.is_true(started:says "begun", started:err())
    local now = workers.now
    local worst = 0
    for n = 1, 3 do
      local pid
      assert.is_true(launched.eventually(function()
        pid = started:process "obs_1_for_0"
        return pid
      end), started:err())
      local began = now()
      started:signal("KILL", pid)
      assert.is_true(launched.eventually(function()
        local _, times = started:err():gsub('"obs_1_for_0" is back', "")
        return times == n
      end), started:err())
      worst = math.max(worst, now() - began)
    end
    require("process").write(started.folder .. "/stop", "")
    assert.equal(0, started:wait(20), started:err())
    has(started:err(), 'observer "obs_1_for_0" died (signal 9); restart 3 of 5 in 0.2 s')
    figure("F30", "an observer that was killed plays again after at most %.1f s (3 kills, begun "
      .. "again after 0.05, 0.1 and 0.2 s)", worst)
  end)
end)
