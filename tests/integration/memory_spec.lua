-- Memory that a user sees from outside: --memory-report, RLENGINE_DEVICE_LIMIT, out of
-- memory across remote calls, injected failures, processes started after a device was used.
local rl = require "rlengine"
local figure = require "figure"
local process = require "process"
local unistd = require "posix.unistd"

local devices = { "cpu" }
if pcall(rl.device, "emu") then devices[2] = "emu" end
local own = { cpu = 0, emu = 2 } -- MiB that a device has for its own work from the start

local function run(script, options, ...)
  local folder = process.folder()
  local path = folder .. "/train.lua"
  process.write(path, 'local rl = require "rlengine"\n' .. script)
  local argv = { process.program() }
  for _, word in ipairs { ... } do argv[#argv + 1] = word end
  argv[#argv + 1] = "train.lua"
  options = options or {}
  options.cwd = folder
  -- Scripts say where their tensors are; what they do not say is on the CPU.
  options.env = options.env or {}
  if options.env.RLENGINE_DEVICE == nil then options.env.RLENGINE_DEVICE = false end
  local r = process.run(argv, options)
  process.remove(folder)
  return r
end

describe("--memory-report", function()
  local hold = [[
    held = { rl.zeros(1000, { device = "%s" }), rl.zeros(500) }
    local t = rl.ones(10, { device = "%s" }):requires_grad_()
  ]]

  for _, device in ipairs(devices) do
    it("prints each device that was used, at the end: " .. device, function()
      local r = run(hold:format(device, device), nil, "--memory-report")
      assert.equal(0, r.code, r.err)
      assert.equal("", r.out)
      assert.matches("memory of " .. device .. ".-tensors +%d+ +[12]  train.lua:2\n.-sum +%d+",
        r.err)
      assert.matches("memory of cpu", r.err)
      assert.equal(#devices > 1 and device == "emu" and 2 or 1,
        select(2, r.err:gsub("memory of ", "")))
    end)
  end

  it("prints after an error and at os.exit too, and leaves the exit code", function()
    local r = run("held = rl.zeros(1000)\nerror 'oops'", nil, "--memory-report")
    assert.equal(1, r.code)
    assert.matches("oops.*memory of cpu: 3.9 KiB.*train.lua:2", r.err)
    for _, close in ipairs { "", ", true" } do
      -- Without `true` Lua leaves everything as it is: a leak checker would say so.
      r = run("held = rl.zeros(1000)\nos.exit(3" .. close .. ")",
        { env = { ASAN_OPTIONS = close == "" and "detect_leaks=0" or nil } }, "--memory-report")
      assert.equal(3, r.code)
      assert.matches("memory of cpu: 3.9 KiB.*train.lua:2", r.err)
      assert.equal(1, select(2, r.err:gsub("memory of ", "")))
    end
  end)

  it("says nothing of devices that were not used", function()
    local r = run("", nil, "--memory-report")
    assert.equal("", r.out .. r.err)
  end)

  it("tells of every process of a launch", function()
    local r = run([[
      rl.rpc.register("hold", function() held = rl.zeros(2000) end)
      rl.launch { observers_per_trainer = 2, trainer = function(ctx)
        held = rl.zeros(1000)
        for _, name in ipairs(ctx.observers) do rl.rpc.rpc_sync(name, "hold") end
      end }
    ]], nil, "--memory-report")
    assert.equal(0, r.code, r.err)
    assert.matches("\nmemory of cpu: 3.9 KiB", "\n" .. r.err)
    assert.matches("obs_0_for_0 | memory of cpu: 7.8 KiB", r.err)
    assert.matches("obs_1_for_0 | memory of cpu: 7.8 KiB", r.err)
  end)
end)

-- A script with everything a training script has, on `device`; prints owners and their bytes.
local training = [[
  local device = rl.device "%s"
  rl.default_device(device)
  local rpc = rl.rpc
  rpc.register("observe", function() return rl.ones({ 2, 4 }, { device = "cpu" }) end)
  rl.launch { trainer = function(ctx)
    local policy = rl.nn.Sequential(rl.nn.Linear(4, 64), rl.nn.Tanh(), rl.nn.Linear(64, 2))
    policy:to(device)
    local optimizer = rl.optim.Adam(policy:parameters(), { lr = 1e-2 })
    local env = rl.env.make "CartPole-v1"
    local held = { env:reset { seed = 1 }, rpc.rpc_sync(ctx.observers[1], "observe") }
    local loss = policy(held[2]):log_softmax(-1):sum()
    loss:backward()
    optimizer:step()
    held[3] = policy(held[2]):exp()
    held[4] = rl.zeros(1000)
    local report, owned = rl.memory.report(device), {}
    for _, row in ipairs(report) do owned[row.owner] = (owned[row.owner] or 0) + row.bytes end
    local names = {}
    for name, bytes in pairs(owned) do names[#names + 1] = name .. "=" .. bytes end
    table.sort(names)
    print(table.concat(names, " "), #held)
    print(report)
  end }
]]

describe("the owners of a training script", function()
  for _, device in ipairs(devices) do
    it("are all there: " .. device, function()
      local r = run(training:format(device))
      assert.equal(0, r.code, r.err)
      local owned = {}
      for owner, bytes in r.out:match "^[^\n]*":gmatch "(%a+)=(%d+)" do
        owned[owner] = tonumber(bytes)
      end
      local weights = (4 * 64 + 64 + 64 * 2 + 2) * 4
      assert.equal(weights, owned.weights)
      assert.equal(weights, owned.gradients)
      assert.equal(2 * weights, owned.optimizer)
      assert.is_true(owned.graph >= 2 * 64 * 4) -- what tanh keeps
      assert.equal(4 * 4, owned.env)
      assert.equal(2 * 4 * 4, owned.rpc)
      assert.is_true(owned.tensors >= 4000)
      if device ~= "cpu" then assert.matches("\n  workspace +%d+ ", r.out) end
    end)
  end
end)

-- Runs a script of scripts/ on `device`; after each line that its trainer prints, what the
-- driver was asked for by then.
local watched = [[
  local script, device = "%s", "%s"
  arg = { [0] = script, "--device=" .. device, "--episodes=12", "--observers=2", %s }
  local launch = rl.launch
  function rl.launch(given)
    local trainer, say = given.trainer, print
    function given.trainer(ctx)
      function print()
        local stats = rl.memory.stats(device)
        say(stats.from_driver, stats.reserved)
      end
      trainer(ctx)
    end
    launch(given)
  end
  dofile(script)
]]

describe("the steady state of", function()
  for _, script in ipairs { "seed_program", "cartpole_reinforce" } do
    it(script .. " asks the driver for nothing", function()
      if not devices[2] then return pending "there is no emulated device" end
      local more = script == "cartpole_reinforce" and '"--log-every=1"' or ""
      local path = unistd.getcwd() .. "/scripts/" .. script .. ".lua"
      local r = run(watched:format(path, "emu", more))
      assert.equal(0, r.code, r.err)
      local first, lines = r.out:match "^([^\n]*)\n", 0
      for line in r.out:gmatch "[^\n]+" do
        assert.equal(first, line)
        lines = lines + 1
      end
      assert.is_true(lines >= 12)
    end)
  end
end)

describe("out of memory", function()
  for _, device in ipairs(devices) do
    it("F22: is one line with the numbers, and the report behind it: " .. device, function()
      local r = run(([[
        local held = {}
        local ok, err = pcall(function()
          for i = 1, 100 do
            held[i] = rl.zeros(256, 1024, { device = "%s" })
          end
        end)
        print(ok, err)
        io.stderr:write(err.report)
      ]]):format(device), { env = { RLENGINE_DEVICE_LIMIT = "16MiB" } })
      assert.equal(0, r.code, r.err)
      local room = 16 - own[device]
      assert.equal(("false\tRESOURCE_EXHAUSTED: out of device memory: wanted 1.0 MiB, 0 bytes free "
        .. "of 16.0 MiB; most held by train.lua:5 (%d tensors, %.1f MiB)\n")
        :format(room, room), r.out)
      assert.matches(("hold most:\n +%.1f MiB  tensors +%d tensors train.lua:5\n")
        :format(room, room), r.err)
    end)

    it("F22: crosses a remote call with its report and the worker, and the rpc goes on: " .. device,
      function()
        local r = run(([[
          local rpc = rl.rpc
          local Agent = rpc.class("Agent", { "hold", "count" })
          function Agent:init() self.held = {} end
          function Agent:hold()
            self.held[#self.held + 1] = rl.zeros(256, 1024, { device = "%s" })
            return #self.held
          end
          function Agent:count() return #self.held end
          local Observer = rpc.class("Observer", { "fill" })
          function Observer:init() end
          function Observer:fill(agent)
            local ok, err = pcall(function()
              for _ = 1, 100 do agent:rpc_sync():hold() end
            end)
            return ok, err.code, err.worker, err.message, err.report, agent:rpc_sync():count()
          end
          rl.launch { trainer = function(ctx)
            rl.memory.limit("%s", "%dMiB")
            local agent = Agent()
            local observer = rpc.remote(ctx.observers[1], "Observer")
            for round = 1, 2 do
              print(observer:rpc_sync():fill(rpc.rref(agent)))
              agent.held = {}
            end
            print("goes on", #rl.zeros(2000, 1000, { device = "%s" }))
          end }
        ]]):format(device, device, 8 + own[device], device))
        assert.equal(0, r.code, r.err)
        assert.equal(2, select(2, r.out:gsub("false\tRESOURCE_EXHAUSTED\tagent_0\tout of device "
          .. "memory: wanted 1.0 MiB, 0 bytes free of " .. 8 + own[device] .. ".0 MiB; most held "
          .. "by train.lua:6 %(8 tensors, 8.0 MiB%)\t", "")), r.out .. r.err)
        assert.equal(2, select(2, r.out:gsub("\nhold most:\n", "")))
        assert.equal(2, select(2, r.out:gsub("\t8\n", "")))
        assert.matches("goes on\t2000", r.out)
      end)
  end

  it("F01: is not what threads are for: a number of them is accepted, not used, and said so once",
    function()
      for _, key in ipairs { "io_threads", "num_worker_threads", "worker_threads" } do
        local r = run(([[
          rl.launch { observers_per_trainer = 3, rpc = { %s = 1024 }, trainer = function()
            print(require("rlengine.core").launch.usage().threads <= 2)
          end }
        ]]):format(key))
        assert.equal(0, r.code, r.err)
        assert.equal("true\n", r.out)
        assert.equal("rlengine: config: worker threads 1024 asked, not used: calls need no "
          .. "threads\n", r.err)
      end
    end)

  it("refuses a limit that is none, with the variable's name", function()
    local r = run("rl.zeros(1)", { env = { RLENGINE_DEVICE_LIMIT = "lots" } })
    assert.equal(1, r.code)
    assert.matches('INVALID_ARGUMENT: RLENGINE_DEVICE_LIMIT: "lots" is no size', r.err)
    for _, nothing in ipairs { "0", "0.5", "0GiB" } do
      r = run("rl.zeros(1)", { env = { RLENGINE_DEVICE_LIMIT = nothing } })
      assert.equal(1, r.code)
      assert.truthy(r.err:find(('INVALID_ARGUMENT: RLENGINE_DEVICE_LIMIT: "%s" is less than a '
        .. "byte; leave it unset for no limit"):format(nothing), 1, true), r.err)
    end
  end)
end)

-- In others every thread of the remote calls that multiplies matrices gets a workspace.
describe("B02: memory of a device", function()
  local device = os.getenv "RLENGINE_TEST_DEVICE" or devices[2] or "cpu"
  local steps = os.getenv "RLE_FULL" == "1" and 500 or 20
  -- The CPU's cache also has what came in messages; a GPU's driver counts other processes too.
  local figures = device == "cpu" and 0
    or "report.reserved, report.workspace" .. (device:match "^emu" and ", report.used" or "")

  --- Bytes that a trainer holds on its device, with so many threads asked for, after that many
  -- observers called it at once.
  local function held(threads, observers)
    local r = run(([[
      local rpc, device = rl.rpc, "%s"
      local weight, open, most = nil, 0, 0
      rpc.register("act", function(obs)
        open = open + 1
        most = math.max(most, open)
        local sum = rl.scope(function() return obs:to(device):matmul(weight):sum():item() end)
        rpc.sleep(0.002) -- the others' calls run meanwhile
        open = open - 1
        return sum
      end)
      rpc.register("play", function(trainer, steps)
        for i = 1, steps do
          assert(rpc.rpc_sync(trainer, "act", rl.full({ 2, 400 }, i)) == i * 2 * 400 * 400)
        end
        return steps
      end)
      rl.launch { observers_per_trainer = %d, rpc = { worker_threads = %d }, trainer = function(ctx)
        weight = rl.ones(400, 400, { device = device }) -- large enough for cuBLAS
        local futures = {}
        for i, name in ipairs(ctx.observers) do
          futures[i] = rpc.rpc_async(name, "play", ctx.name, %d)
        end
        for _, played in ipairs(rpc.wait_all(futures)) do assert(played == %d) end
        collectgarbage()
        collectgarbage()
        local report = rl.memory.report(device)
        print(report.allocated, %s, most)
      end }
    ]]):format(device, observers, threads, steps, steps, figures))
    assert.equal(0, r.code, r.err)
    local bytes, most = r.out:match "^(.*)\t(%d+)\n$"
    return bytes, tonumber(most)
  end

  it("is the same bytes with 1, 4 and 16 threads, and with as many callers at once", function()
    local wanted = held(1, 1)
    assert.truthy(wanted:match "^640000\t")
    for _, n in ipairs { 4, 16 } do
      assert.equal(wanted, (held(n, 1)))
      local bytes, most = held(n, n)
      assert.equal(wanted, bytes)
      assert.is_true(most > 1, most)
      figure("B02", "%d threads asked, %d calls at once: %s bytes on %s, as with 1", n, most,
        bytes:match "^%d+", device)
    end
  end)
end)

if devices[2] then
  describe("the emulated device", function()
    it("has the memory it is given, and is refused beyond it", function()
      local r = run([[
        local held = {}
        local ok, err = pcall(function()
          for i = 1, 100 do held[i] = rl.zeros(512, 1024, { device = "emu" }) end
        end)
        print(ok, err)
        held = nil
        print(#rl.zeros(4000000, { device = "emu" }))
        print(rl.memory.report("emu").total)
      ]], { env = { RLENGINE_EMU = "memory=64MiB" } })
      assert.equal(0, r.code, r.err)
      assert.matches("wanted 2.0 MiB, 0 bytes free of 64.0 MiB; most held by train.lua:4 "
        .. "%(29 tensors, 58.0 MiB%)\n4000000\n67108864\n$", r.out)
    end)

    it("refuses memory that would not do for its start", function()
      for setting, message in pairs {
        ["memory=0"] = "memory=0: a device in use takes 4194304 for itself (context), and more is "
          .. "wanted",
        ["memory=2MiB context=3MiB"] = "memory=2097152: a device in use takes 3145728 for itself",
      } do
        local r = run('rl.device "emu"', { env = { RLENGINE_EMU = setting } })
        assert.equal(1, r.code)
        assert.truthy(r.err:find("INVALID_ARGUMENT", 1, true), r.err)
        assert.truthy(r.err:find("RLENGINE_EMU: " .. message, 1, true), r.err)
      end
    end)

    it("says when it is cuBLAS's workspace that has no room, and of what would never have any",
      function()
        local r = run([[
          local on = { device = "emu" }
          local x, held = rl.full({ 400, 400 }, 1, on), {}
          print(pcall(rl.cuda.matmul, { device = "emu", workspace = "1GiB" }))
          rl.memory.limit("emu", "16MiB")
          print(pcall(rl.cuda.matmul, { device = "emu", workspace = "17MiB" }))
          rl.cuda.matmul { device = "emu", tf32 = true } -- its own workspace is no matter
          rl.memory.limit("emu", false)
          rl.cuda.matmul { device = "emu", workspace = "16MiB" }
          for i = 1, 7 do held[i] = rl.zeros(512, 1024, on) end
          local ok, err = pcall(x.matmul, x, x)
          print(ok, err)
          print(err.report:find("wanted 16.0 MiB", 1, true) ~= nil, #held)
          rl.cuda.matmul { device = "emu", workspace = "64KiB" }
          print(x:matmul(x)[1][1]:item(), rl.cuda.matmul({ device = "emu" }).backend ~= nil)
        ]], { env = { RLENGINE_EMU = "memory=32MiB" } })
        assert.equal(0, r.code, r.err)
        assert.matches("^false\tINVALID_ARGUMENT: emu:0: a workspace of 1.0 GiB for products of "
          .. "matrices is more than the device's memory of 32.0 MiB\n"
          .. "false\tINVALID_ARGUMENT: emu:0: a workspace of 17.0 MiB for products of matrices is "
          .. "more than the limit of 16.0 MiB\n"
          .. "false\tRESOURCE_EXHAUSTED: out of device memory: wanted 16.0 MiB, [%d.]+ MiB free of "
          .. "32.0 MiB; [^\n]*; that was for the workspace of cuBLAS, rl.cuda.matmul{workspace = "
          .. "%.%.%.} makes it smaller\ntrue\t7\n400\ttrue\n$", r.out)
      end)

    it("tells what its driver takes from what is its own", function()
      for _, context in ipairs { 4, 8 } do
        local r = run([[
          local report = rl.memory.report "emu"
          print(report.context / 2 ^ 20, report.workspace / 2 ^ 20, report.used / 2 ^ 20,
            report.unaccounted)
        ]], { env = { RLENGINE_EMU = ("context=%dMiB"):format(context) } })
        assert.equal(("%d\t2\t%d\t0\n"):format(context, context + 2), r.out, r.err)
      end
    end)

    it("gives its cache to the workspace of an operation, and refuses that as any block",
      function()
        local r = run([[
          local on = { device = "emu" }
          local x, small, held = rl.full({ 200000 }, 1, on), rl.ones(2, on), {}
          repeat
            local ok, t = pcall(rl.zeros, 512, 1024, on)
            held[#held + 1] = ok and t or nil
          until not ok
          print(pcall(x.sort, x))
          for _, t in ipairs(held) do t:free() end
          print(#x:sort(), rl.memory.stats "emu".retries)
          local report = rl.memory.report "emu"
          print(report.workspace > 2 ^ 20, report.unaccounted)
        ]], { env = { RLENGINE_EMU = "memory=32MiB" } })
        assert.equal(0, r.code, r.err)
        assert.matches("^false\tRESOURCE_EXHAUSTED: out of device memory: wanted [%d.]+ MiB, "
          .. "[%d.]+ %a+ free of 32.0 MiB.-; most held by train.lua:5 %(12 tensors, 24.0 MiB%)\n"
          .. "200000\t%d\ntrue\t0\n$", r.out)
      end)

    it("F22: asks once more when the driver fails once, whichever allocation that is", function()
      for nth = 1, 4 do
        local r = run([[
          local held = {}
          for i = 1, 3 do held[i] = rl.full({ 3e6 }, i, { device = "emu" }) end
          local stats = rl.memory.stats "emu"
          print(stats.retries, stats.refused, held[3]:to("cpu")[3000000]:item())
        ]], { env = { RL_FAULT = "cuda:" .. nth } })
        assert.equal(0, r.code, r.err)
        assert.equal(("%d\t0\t3\n"):format(nth <= 3 and 1 or 0), r.out)
      end
      figure("F22", "the driver fails once at each of 3 allocations: asked once more, none refused")
    end)

    it("serves observers that are started after it was used", function()
      local r = run([[
        local t = rl.ones(3, { device = "emu" })
        local rpc = rl.rpc
        rpc.register("ten", function() return rl.full({ 3 }, 10, { device = "emu" }):to "cpu" end)
        rl.launch { observers_per_trainer = 2, trainer = function(ctx)
          for _, name in ipairs(ctx.observers) do
            print((rpc.rpc_sync(name, "ten"):to "emu" + t):to("cpu")[3]:item())
          end
        end }
      ]])
      assert.equal(0, r.code, r.err)
      assert.equal("11\n11\n", r.out)
    end)

    it("refuses a fork that did not start a program of its own", function()
      local r = run([[
        local t = rl.ones(3, { device = "emu" })
        local unistd, wait = require "posix.unistd", require "posix.sys.wait"
        local pid = unistd.fork()
        if pid == 0 then
          print(pcall(rl.ones, 3, { device = "emu" }))
          print(pcall(function() return t + 1 end))
          io.stdout:flush()
          unistd._exit(0)
        end
        wait.wait(pid)
        print((t + 1):to("cpu")[1]:item())
      ]])
      assert.equal(0, r.code, r.err)
      assert.matches("^false\tFAILED_PRECONDITION: .*forked from one that had "
        .. "used the device.*\nfalse\tFAILED_PRECONDITION: emu:0: .*forked.*\n2\n$", r.out)
    end)
  end)
end
