-- rl.launch as a user meets it: whole programs, their output, their end.
local launched = require "launched"
local process = require "process"
local pty = require "pty"

local runs = {}

local function start(script, given)
  local run = launched.start(script, given)
  runs[#runs + 1] = run
  return run
end

local function run(script, given)
  local started = start(script, given)
  local code = started:wait()
  return code, started:out(), started:err(), started
end

-- Whatever happened: no process and no private folder is left.
local function nothing_is_left(started)
  assert.is_true(launched.eventually(function() return #started:processes() == 0 end, 10),
    "processes are left")
  assert.equal("", started:leftovers())
end

local function lines(text)
  local list = {}
  for line in text:gmatch "[^\n]+" do list[#list + 1] = line end
  table.sort(list)
  return list
end

-- The trainer waits for two observers that compute for ever without calling the engine.
local endless = [[
  local rl = require "rlengine"
  local rpc = rl.rpc
  rpc.register("compute", function() print "computing" while true do end end)
  rl.launch {
    observers_per_trainer = 2,
    trainer = function(ctx)
      local futures = {}
      for i, name in ipairs(ctx.observers) do futures[i] = rpc.rpc_async(name, "compute") end
      rpc.wait_all(futures)
      print "not reached"
    end,
  }
  print "not reached"
]]

local function start_endless()
  local started = start(endless)
  assert.is_true(started:says "obs_0_for_0 | computing", started:err())
  assert.is_true(started:says "obs_1_for_0 | computing", started:err())
  assert.equal(4, #started:processes())
  return started
end

describe("rl.launch", function()
  after_each(function()
    for _, each in ipairs(runs) do
      for _, left in ipairs(each:processes()) do each:signal("KILL", left.pid) end
      each:remove()
    end
    runs = {}
  end)

  it("runs a trainer and its observers, and returns in the launcher alone", function()
    local code, out, err, started = run([[
      local rl = require "rlengine"
      local args = rl.args{ word = {"none"} }
      rl.launch {
        observers_per_trainer = 2, args = args,
        trainer = function(ctx)
          print(ctx.role, ctx.name, ctx.rank, ctx.args.word, table.concat(ctx.observers, " "))
          for _, name in ipairs(ctx.observers) do print(rl.rpc.rpc_sync(name, "square", 7)) end
        end,
        observer = function(ctx)
          print(ctx.role, ctx.name, ctx.rank, ctx.index, ctx.trainer, ctx.args.word)
          rl.rpc.register("square", function(x) return x * x end)
          rl.rpc.serve()
          print("told to end")
        end,
      }
      print("after")
    ]], { args = { "--word=given" } })
    assert.equal("", err)
    assert.equal(0, code)
    assert.same({
      "49", "49", "after",
      "obs_0_for_0 | observer\tobs_0_for_0\t1\t0\tagent_0\tgiven",
      "obs_0_for_0 | told to end",
      "obs_1_for_0 | observer\tobs_1_for_0\t2\t1\tagent_0\tgiven",
      "obs_1_for_0 | told to end",
      "trainer\tagent_0\t0\tgiven\tobs_0_for_0 obs_1_for_0",
    }, lines(out))
    assert.equal("after\n", out:sub(-6))
    nothing_is_left(started)
  end)

  it("gives every trainer observers of its own", function()
    local code, out, err, started = run [[
      local rl = require "rlengine"
      local me
      rl.rpc.register("who", function() return me.name, me.rank end)
      rl.launch {
        trainers = 2, observers_per_trainer = 2,
        trainer = function(ctx)
          for _, name in ipairs(ctx.observers) do
            print(ctx.rank, ctx.trainers, name, rl.rpc.rpc_sync(name, "who"))
          end
        end,
        observer = function(ctx) me = ctx rl.rpc.serve() end,
      }
    ]]
    assert.equal("", err)
    assert.equal(0, code)
    assert.same({
      "agent_0 | 0\t2\tobs_0_for_0\tobs_0_for_0\t2", "agent_0 | 0\t2\tobs_1_for_0\tobs_1_for_0\t3",
      "agent_1 | 1\t2\tobs_0_for_1\tobs_0_for_1\t4", "agent_1 | 1\t2\tobs_1_for_1\tobs_1_for_1\t5",
    }, lines(out))
    nothing_is_left(started)
  end)

  it("lets observers call at once what a trainer's function registers", function()
    local code, out, err, started = run [[
      local rl = require "rlengine"
      local rpc = rl.rpc
      -- The second observer joins late, so that the first one calls long before.
      local role = require("rlengine.core").launch.handoff() or ""
      if role:find "index=1" then os.execute "sleep 0.4" end
      rl.launch {
        observers_per_trainer = 2,
        trainer = function()
          local n = 0
          rpc.register("count", function() n = n + 1 return n end)
          local Thing = rpc.class("Thing", { "get" })
          function Thing:get() return "thing" end
          local input = { "x f32[1]" }
          rpc.register("twice", rpc.batched(function(x) return x * 2 end, { input = input }))
          while n < 2 do rpc.sleep(0.01) end
          rpc.sleep(0.1)
        end,
        observer = function(ctx)
          local trainer = rpc.to(ctx.trainer)
          local got = { trainer:rpc_async():twice(rl.ones(1)), trainer:rpc_async():count() }
          print(trainer:remote():Thing():rpc_sync():get(), rpc.wait_all(got)[1]:item())
        end,
      }
    ]]
    assert.equal("", err)
    assert.equal(0, code)
    assert.same({ "obs_0_for_0 | thing\t2", "obs_1_for_0 | thing\t2" }, lines(out))
    nothing_is_left(started)
  end)

  it("runs trainers whose observers are done before anybody looks", function()
    for _ = 1, 5 do
      local code, out, err, started = run [[
        require("rlengine").launch {
          trainers = 2,
          trainer = function(ctx) print("trained by " .. ctx.rank) end,
          observer = function() end,
        }
      ]]
      assert.equal("", err)
      assert.equal(0, code)
      assert.same({ "agent_0 | trained by 0", "agent_1 | trained by 1" }, lines(out))
      nothing_is_left(started)
    end
  end)

  it("prefixes all lines or none when told so", function()
    local script = [[
      local rl = require "rlengine"
      rl.launch {
        prefix = %s,
        trainer = function(ctx) io.write("a\nb") rl.rpc.rpc_sync(ctx.observers[1], "speak") end,
      }
    ]]
    local register = [[
      require("rlengine").rpc.register("speak", function() io.stderr:write "spoken\n" end)
    ]]
    local _, out, err = run(register .. script:format "true")
    assert.equal("agent_0 | a\nagent_0 | b\n", out)
    assert.equal("obs_0_for_0 | spoken\n", err)
    _, out, err = run(register .. script:format "false")
    assert.equal("a\nb", out)
    assert.equal("spoken\n", err)
  end)

  it("says where a trainer failed, ends the others and takes its exit code", function()
    local code, out, err, started = run [[
      local rl = require "rlengine"
      rl.launch {
        observers_per_trainer = 3,
        trainer = function()
          local nothing
          return nothing.field
        end,
      }
      print "not reached"
    ]]
    assert.equal(1, code)
    assert.equal("", out)
    assert.truthy(err:find("script.lua:6: attempt to index local 'nothing'", 1, true), err)
    assert.truthy(err:find "stack traceback")
    assert.truthy(err:find('\nrlengine: trainer "agent_0" failed (exit code 1)\n', 1, true), err)
    nothing_is_left(started)
  end)

  it("takes an observer's own exit code", function()
    local code, _, err, started = run [[
      local rl = require "rlengine"
      rl.rpc.register("leave", function() os.exit(7) end)
      rl.launch {
        restarts = false,
        trainer = function(ctx)
          pcall(rl.rpc.rpc_sync, ctx.observers[1], "leave")
          while true do end
        end,
      }
    ]]
    assert.equal(7, code)
    assert.truthy(err:find('rlengine: observer "obs_0_for_0" failed (exit code 7)', 1, true), err)
    nothing_is_left(started)
  end)

  it("raises instead of ending the launcher when told so", function()
    local code, out, err, started = run [[
      local rl = require "rlengine"
      local ok, err = pcall(rl.launch, { exit = false, trainer = function() os.exit(5) end })
      print(ok, err.code, err.message, err.exit_code, err.worker)
    ]]
    assert.equal(0, code)
    assert.falsy(err:find "agent_0\" failed", err) -- the script says what it wants to
    assert.equal('false\tABORTED\ttrainer "agent_0" failed (exit code 5)\t5\tagent_0\n', out)
    nothing_is_left(started)
  end)

  it("sleeps while others compute", function()
    local started = start_endless()
    local function used() -- hundredths of a second
      local stat = process.read(("/proc/%d/stat"):format(started:pid()))
      local user, system = stat:match "%) %a %S+ %S+ %S+ %S+ %S+ %S+ %S+ %S+ %S+ %S+ (%d+) (%d+)"
      return user + system
    end
    local before = used()
    os.execute "sleep 1"
    assert.is_true(used() - before < 10, used() - before)
    started:signal "TERM"
    assert.equal(143, started:wait(20))
  end)

  it("ends all when an observer is killed", function()
    local started = start_endless()
    started:signal("KILL", started:process "obs_1_for_0")
    assert.equal(137, started:wait(20))
    assert.truthy(started:err():find('rlengine: observer "obs_1_for_0" died (signal 9)', 1, true),
      started:err())
    assert.falsy(started:out():find "not reached")
    nothing_is_left(started)
  end)

  it("ends all when the trainer is killed", function()
    local started = start_endless()
    started:signal("KILL", started:process "agent_0")
    assert.equal(137, started:wait(20))
    assert.truthy(started:err():find('rlengine: trainer "agent_0" died (signal 9)', 1, true))
    nothing_is_left(started)
  end)

  for signal, code in pairs { INT = 130, TERM = 143, HUP = 129 } do
    it("passes SIG" .. signal .. " on and ends as it would have", function()
      local started = start_endless()
      started:signal(signal)
      assert.equal(code, started:wait(20))
      assert.falsy(started:out():find "not reached")
      assert.equal("", started:err()) -- nobody blames anybody
      nothing_is_left(started)
    end)
  end

  it("ends all on Ctrl-C at a terminal, without a word", function()
    local folder = process.folder()
    process.write(folder .. "/script.lua", endless)
    local term = pty.spawn({ process.program(), folder .. "/script.lua" },
      { env = { TMPDIR = folder, XDG_RUNTIME_DIR = "" } })
    term:expect "computing"
    term:expect "computing"
    term:send "\3"
    assert.same({ "killed", 2 }, { term:finish() })
    assert.equal("^C", term.text:gsub("obs_%d_for_0 | computing", ""):gsub("%s", ""))
    local left = process.check { "find", folder, "-mindepth", "1", "-name", "rlengine-*" }
    assert.equal("", left)
    process.remove(folder)
  end)

  it("ends all on Ctrl-C without a word where scripts have yet to come to rl.launch", function()
    local folder = process.folder()
    process.write(folder .. "/script.lua", ([[
      local rl = require "rlengine"
      if io.open "FOLDER/launcher" then
        io.stdout:setvbuf "no"
        print "loading"
        local from = os.clock()
        while os.clock() - from < 20 do end
      end
      io.open("FOLDER/launcher", "w"):close()
      rl.launch { trainer = function() end, observers_per_trainer = 2 }
    ]]):gsub("FOLDER", folder))
    local term = pty.spawn({ process.program(), folder .. "/script.lua" },
      { env = { TMPDIR = folder, XDG_RUNTIME_DIR = "" } })
    for _ = 1, 3 do term:expect "loading" end
    term:send "\3"
    assert.same({ "killed", 2 }, { term:finish() })
    assert.equal("^C", (term.text:gsub("obs_%d_for_0 | loading", ""):gsub("loading", "")
      :gsub("%s", "")))
    process.remove(folder)
  end)

  for _, moment in ipairs { "token", "run", "marked", "remove_folder" } do
    it("leaves no folder on Ctrl-C in the launcher's " .. moment, function()
      local code, out, err, started = run((([[
        local ffi, launch = require "ffi", require("rlengine.core").launch
        local rl = require "rlengine"
        ffi.cdef "int raise(int);"
        local real = launch.MOMENT
        function launch.MOMENT(...)
          launch.MOMENT = real
          ffi.C.raise(2)
          return real(...)
        end
        rl.launch { trainer = function() end }
        print "not reached"
      ]]):gsub("MOMENT", moment)))
      assert.same({ 130, "" }, { code, out })
      assert.truthy(err:find("CANCELLED: interrupted", 1, true), err)
      nothing_is_left(started)
    end)
  end

  it("leaves no process when the launcher is killed", function()
    local started = start_endless()
    started:signal "KILL"
    assert.equal(137, started:wait(20))
    assert.is_true(launched.eventually(function() return #started:processes() == 0 end, 10))
  end)

  for what, work in pairs {
    ["in a call into the engine"] =
      'local env = rl.env.make "CartPole-v1" while true do env:reset() end',
    ["in a remote call"] = 'rl.rpc.rpc_sync(ctx.observers[1], "compute")',
  } do
    it("interrupts a trainer " .. what .. " and gives it the time it was promised", function()
      local script = [[
        local rl = require "rlengine"
        rl.rpc.register("compute", function() print "computing" while true do end end)
        rl.launch {
          grace = 20,
          trainer = function(ctx)
            local saving = rl.rpc.rpc_async(ctx.observers[1], "compute")
            local ok, err = pcall(function() print "at work" WORK end)
            print(ok, err.code)
            local function now()
              local t = require("posix.time").clock_gettime(1)
              return t.tv_sec + t.tv_nsec * 1e-9
            end
            local start = now()
            while now() - start < 1.2 do end -- longer than without `grace`
            print "saved"
            os.exit(0, true)
          end,
        }
      ]]
      local started = start((script:gsub("WORK", work)))
      assert.is_true(started:says "computing", started:err())
      assert.is_true(started:says "at work", started:err())
      started:signal("TERM", started:process "agent_0")
      assert.is_true(started:says "false\tCANCELLED", started:err())
      assert.is_true(started:says "saved")
      assert.equal(0, started:wait(20))
      nothing_is_left(started)
    end)
  end

  it("shows its token to nobody", function()
    local code, out, err = run [[
      local rl = require "rlengine"
      local function secret_in(path)
        local f = io.open(path, "rb")
        local text = f:read "*a"
        f:close()
        return text:find "token" or text:find "HANDOFF_FD" or text:find(("%x"):rep(64))
      end
      rl.launch {
        trainer = function(ctx)
          print(secret_in "/proc/self/cmdline", os.getenv "RLENGINE_HANDOFF_FD")
          local pipe = io.popen "ls -l /proc/self/fd /proc/$PPID/fd"
          print(pipe:read "*a":find "handoff")
          pipe:close()
          pipe = io.popen("stat -c %a " .. ctx.folder)
          print(pipe:read "*a")
          pipe:close()
        end,
      }
    ]]
    assert.equal("", err)
    assert.equal(0, code)
    assert.equal("nil\tnil\nnil\n700\n\n", out)
  end)

  it("starts processes after files were opened and memory was used", function()
    local code, out, err = run [[
      local rl = require "rlengine"
      local file = io.open("/dev/null")
      local ballast = ("x"):rep(5e7)
      local product = rl.randn(300, 300):matmul(rl.randn(300, 300))
      rl.launch {
        trainer = function()
          assert(rl.ones(300, 300):matmul(rl.ones(300, 300)):sum():item() == 300 ^ 3)
          local pipe = io.popen "ls -l /proc/$PPID/fd"
          local _, count = pipe:read "*a":gsub("/dev/null", "")
          pipe:close()
          print(count)
        end,
      }
      assert(#ballast == 5e7 and file and product:matmul(product).shape[1] == 300)
    ]]
    assert.equal("", err)
    assert.equal(0, code)
    assert.equal("1\n", out) -- its own, opened by the script in this process, and no other
  end)

  it("runs one experiment after the other", function()
    local code, out, err, started = run [[
      local rl = require "rlengine"
      for n = 1, 3 do
        rl.launch { trainer = function(ctx) print(n, ctx.name, #ctx.observers) end }
      end
      print "after"
    ]]
    assert.equal("", err)
    assert.equal(0, code)
    assert.equal("1\tagent_0\t1\n2\tagent_0\t1\n3\tagent_0\t1\nafter\n", out)
    nothing_is_left(started)
  end)

  it("runs a script given with -e", function()
    local code, out, err = run([[
      local rl = require "rlengine"
      rl.launch { trainer = function(ctx) print(ctx.name) end }
    ]], { text = "-e" })
    assert.equal("", err)
    assert.equal(0, code)
    assert.equal("agent_0\n", out)
  end)

  it("runs a script given on standard input", function()
    local code, out, err = run([[
      local rl = require "rlengine"
      rl.launch { trainers = 2, trainer = function(ctx) print(#ctx.observers) end }
    ]], { text = "-" })
    assert.equal("", err)
    assert.equal(0, code)
    assert.same({ "agent_0 | 1", "agent_1 | 1" }, lines(out))
  end)

  it("gives a single trainer the standard input", function()
    local code, out = run([[
      local rl = require "rlengine"
      rl.launch { trainer = function() print(io.read()) end,
        observer = function() print(io.read()) rl.rpc.serve() end }
    ]], { stdin = "typed\n" })
    assert.equal(0, code)
    assert.same({ "obs_0_for_0 | nil", "typed" }, lines(out))
  end)

  it("tells when the script does not come to rl.launch again", function()
    local code, _, err, started = run [[
      local rl = require "rlengine"
      if not os.getenv "RLE_TEST_AGAIN" then
        package.loaded.ffi = require "ffi"
        package.loaded.ffi.cdef "int setenv(const char *, const char *, int);"
        package.loaded.ffi.C.setenv("RLE_TEST_AGAIN", "1", 1)
        rl.launch { trainer = print }
      end
    ]]
    assert.equal(1, code)
    assert.truthy(err:find('trainer "agent_0" ended before it came to this rl.launch', 1, true),
      err)
    nothing_is_left(started)
  end)

  it("refuses options that make no sense", function()
    local rl = require "rlengine"
    local function message(given)
      local ok, err = pcall(rl.launch, given)
      assert.is_false(ok)
      assert.equal("INVALID_ARGUMENT", err.code)
      return err.message
    end
    assert.equal("rl.launch: the option trainer, a function, is missing", message {})
    assert.equal("rl.launch: the option trainer, a function, is missing", message(nil))
    assert.equal('rl.launch: unknown option "observers"; did you mean "observer"?',
      message { trainer = print, observers = 2 })
    assert.equal("rl.launch: trainers must be a whole number from 1, got 0",
      message { trainer = print, trainers = 0 })
    assert.equal("rl.launch: observers_per_trainer must be a whole number from 0, got 1.5",
      message { trainer = print, observers_per_trainer = 1.5 })
    assert.equal("rl.launch: restarts must be a whole number from 0 to 1000, got -1",
      message { trainer = print, restarts = -1 })
    assert.equal('rl.launch, restarts: unknown option "maximum"; did you mean "max"?',
      message { trainer = print, restarts = { maximum = 3 } })
    assert.equal('rl.launch: option "args" must be a table, got string',
      message { trainer = print, args = "x" })
    for _, grace in ipairs { -1, 0 / 0, 1e300 } do
      assert.matches("^rl.launch: grace must be a number of seconds from 0 to 3600, got ",
        message { trainer = print, grace = grace })
    end
    for _, key in ipairs { "name", "listen", "connect", "token", "token_fd", "token_file" } do
      assert.matches(('^rl.launch, rpc: option "%s" cannot be given: '):format(key),
        message { trainer = print, rpc = { heartbeat = 1, [key] = "x" } })
    end
  end)

  it("cannot be called where it was called already", function()
    local code, out = run [[
      local rl = require "rlengine"
      rl.launch { trainer = function()
        local ok, err = pcall(rl.launch, { trainer = print })
        print(ok, err.code)
      end }
    ]]
    assert.equal(0, code)
    assert.equal("false\tFAILED_PRECONDITION\n", out)
  end)
end)

describe("rl.args in a program", function()
  after_each(function()
    for _, each in ipairs(runs) do each:remove() end
    runs = {}
  end)

  local script = [[
    local rl = require "rlengine"
    local args = rl.args{ episodes = {500, "episodes to run"} }
    print(args.episodes, args[1])
  ]]

  it("reads the script's arguments", function()
    local code, out = run(script, { args = { "--episodes=3", "word" } })
    assert.equal(0, code)
    assert.equal("3\tword\n", out)
  end)

  it("ends with 0 after --help", function()
    local code, out, err = run(script, { args = { "--help" } })
    assert.equal(0, code)
    assert.equal("", err)
    assert.truthy(out:find("^usage: %S+ %S+script.lua %[options%]\n\n"
      .. "  %-%-episodes INTEGER  episodes to run"), out)
  end)

  it("ends with 2 after a wrong word", function()
    local code, out, err = run(script, { args = { "--epsiodes=3" } })
    assert.equal(2, code)
    assert.equal("", out)
    assert.truthy(err:find("script.lua: unknown option --epsiodes; did you mean --episodes? "
      .. "(--help lists the options)", 1, true), err)
  end)
end)
