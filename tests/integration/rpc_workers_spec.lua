-- Workers: joining, leaving, dying, being busy; and what a worker's coroutines may do.
package.path = "tests/support/?.lua;" .. package.path
local rl = require "rlengine"
local fails = require "fails"
local core = require "rlengine.core"
local process = require "process"
local workers = require "workers"
local signal = require "posix.signal"
local rpc = rl.rpc

local BASIC = [[
rpc.register("echo", function(...) return ... end)
rpc.register("sleep", function(s) rpc.sleep(s) end)
rpc.register("busy", function(s)
  local t = require("posix.time")
  local function now() local v = t.clock_gettime(1) return v.tv_sec + v.tv_nsec * 1e-9 end
  local ends = now() + s
  while now() < ends do end
  return "done"
end)
]]

describe("a worker that dies", function()
  it("fails its calls at once and leaves the others alone", function()
    local group = workers.group()
    local w = group:start("w", BASIC)
    group:start("other", BASIC)
    for _ = 1, 3 do
      local to = rpc.to "w"
      local f, g = to:rpc_async():sleep(50), rpc.rpc_async("other", "sleep", 0.2)
      rpc.rpc_sync("w", "echo")
      local t0 = workers.now()
      w:kill(signal.SIGKILL)
      local err = fails(f.wait, f)
      assert.is_true(workers.now() - t0 < 5)
      assert.equal('UNAVAILABLE: worker "w" disconnected while "sleep" was running (outcome: ' ..
        "unknown)", tostring(err))
      assert.equal("unknown", err.outcome)
      assert.equal("w", err.worker)
      g:wait()
      err = fails(rpc.rpc_sync, "w", "echo")
      assert.equal("UNAVAILABLE", err.code)
      assert.equal("not executed", err.outcome)
      w:join()
      w = group:start("w", BASIC)
      assert.is_true(workers.eventually(function() return rpc.worker_info("w").connected end))
    end
    group:finish()
  end)

  it("cancels what it had asked for", function()
    local group = workers.group()
    local begun, ended
    rpc.register("long", function()
      begun = true
      local ok, err = pcall(rpc.sleep, 30)
      ended = { ok, err.code, rpc.cancelled() }
    end)
    local w = group:start("w", [[
      rpc.register("ask", function() return rpc.rpc_sync("test", "long") end)]])
    local f = rpc.rpc_async("w", "ask")
    assert.is_true(workers.eventually(function() return begun end))
    w:kill(signal.SIGKILL)
    fails(f.wait, f)
    assert.is_true(workers.eventually(function() return ended end))
    assert.same({ false, "CANCELLED", true }, ended)
    assert.equal(0, rpc.counters().calls)
    group:finish()
  end)
end)

describe("a worker that computes", function()
  it("is not taken for dead, and is named in the log", function()
    local group = workers.group { heartbeat = 0.1, timeout = 1, busy_after = 0.3 }
    local lines = group.folder .. "/log"
    process.write(lines, "")
    group:start("w", BASIC)
    assert.equal("done", rpc.rpc_sync("w", "busy", 2.5)) -- this one waits, that one computes
    -- And the other way round: this process computes, w watches.
    local path = group.folder .. "/watch.lua"
    process.write(path, ([[
local rpc = require("rlengine").rpc
rpc.init{ name = "watch", connect = %q, token = %q, heartbeat = 0.1, timeout = 1 }
print(rpc.rpc_sync("test", "busy", 2.5))
rpc.shutdown()
]]):format(group.address, workers.token))
    rpc.register("busy", function(s)
      local ends = workers.now() + s
      while workers.now() < ends do end -- luacheck: ignore
      return "computed"
    end)
    local watch = group:run(path, "watch")
    assert.is_true(workers.eventually(function() return watch:output():find "computed" end))
    assert.equal(0, watch:join())
    group:finish()
  end)

  it("is given up when its process is stopped", function()
    local group = workers.group { heartbeat = 0.1, timeout = 0.4 }
    local w = group:start("w", BASIC)
    rpc.rpc_sync("w", "echo")
    local f = rpc.rpc_async("w", "sleep", 30)
    w:kill(signal.SIGSTOP)
    local err = fails(f.wait, f)
    assert.matches('UNAVAILABLE: worker "w" did not answer for %d+%.%d s %(outcome: unknown%)',
      tostring(err))
    w:kill(signal.SIGKILL)
    w:kill(signal.SIGCONT)
    w:join()
    group:finish()
  end)
end)

describe("joining", function()
  it("works over IPv4, IPv6 and between two addresses of one machine", function()
    local group = workers.group { listen = { "tcp://127.0.0.1:0", "tcp://127.0.0.2:0",
      "tcp://[::1]:0" } }
    assert.equal(3, #group.addresses)
    for i, address in ipairs(group.addresses) do
      assert.matches("^tcp://.*:%d+$", address)
      assert.is_nil(address:find(":0$"))
      group.address = address
      group:start("w" .. i, BASIC .. [[
local Thing = rpc.class("Thing", { "get" })
function Thing:get() return NAME end
      ]])
    end
    for i = 1, 3 do
      local w = rpc.remote("w" .. i, "Thing")
      assert.equal("w" .. i, w:rpc_sync():get())
      local t = rl.arange(0, 100000)
      local back = rpc.rpc_sync("w" .. i, "echo", t)
      assert.is_true(back:eq(t):all():item())
    end
    assert.same({ "w1", "w2", "w3" }, { rpc.workers()[1].name, rpc.workers()[2].name,
      rpc.workers()[3].name })
    assert.matches("127.0.0.1:%d+$", rpc.worker_info("w1").address)
    group:finish { blocks = true }
  end)

  it("needs the token", function()
    local group = workers.group()
    local path = group.folder .. "/bad.lua"
    process.write(path, ([[
local rpc = require("rlengine").rpc
print(pcall(rpc.init, { name = "bad", connect = %q, token = ("1"):rep(32) }))
os.exit(3)
]]):format(group.address))
    local w = group:run(path, "bad")
    assert.is_true(workers.eventually(function() return w:output():find "false" end))
    assert.equal(3, w:join())
    assert.matches('UNAUTHENTICATED: "test" refused the token in the option token', w:output())
    assert.equal(0, #rpc.workers())
    local file = group.folder .. "/token"
    rpc.make_token(file)
    assert.equal("ALREADY_EXISTS", fails(rpc.make_token, file).code)
    group:finish()
    local folder = process.folder()
    local open = folder .. "/token"
    process.write(open, ("x"):rep(40))
    process.check { "chmod", "644", open }
    local err = fails(rpc.init, { name = "x", connect = group.address, token_file = open })
    process.remove(folder)
    assert.equal(("UNAUTHENTICATED: token file %s can be read by others (mode 0644); chmod 600 it")
      :format(open), tostring(err))
    assert.equal("INVALID_ARGUMENT", fails(rpc.init, { name = "x", connect = group.address,
      token = "short", token_file = "y" }).code)
  end)

  it("is refused under a name that is taken", function()
    local group = workers.group()
    local first = group:start("w", BASIC)
    rpc.rpc_sync("w", "echo")
    local path = group.folder .. "/second.lua"
    process.write(path, ([[
local rpc = require("rlengine").rpc
rpc.init{ name = "w", connect = %q, token = %q }
]]):format(group.address, workers.token))
    local second = group:run(path, "w")
    assert.is_true(workers.eventually(function() return second:output() ~= "" end))
    assert.is_true(second:join() ~= 0)
    assert.matches(('ALREADY_EXISTS: "w" is already connected from pid %d; pick another name')
      :format(first.pid), second:output())
    assert.equal(1, rpc.rpc_sync("w", "echo", 1))
    group:finish()
  end)

  it("may come before there is somebody to join", function()
    local folder = process.folder()
    local before = workers.held()
    local address = "unix:" .. folder .. "/late.sock"
    local path = folder .. "/early.lua"
    process.write(path, ([[
local rpc = require("rlengine").rpc
rpc.register("f", function() return "early" end)
rpc.init{ name = "early", connect = %q, token = %q }
rpc.serve()
]]):format(address, workers.token))
    local pid = require("posix.unistd").fork()
    if pid == 0 then
      require("posix.unistd").execp(process.program(), { path })
      require("posix.unistd")._exit(127)
    end
    os.execute "sleep 0.2"
    rpc.init { name = "late", listen = address, token = workers.token }
    assert.equal("early", rpc.rpc_sync("early", "f")) -- waits for it to join
    rpc.wait_for({ "early" }, { timeout = 5 })
    assert.equal("DEADLINE_EXCEEDED", fails(rpc.wait_for, { "nobody" }, { timeout = 0.02 }).code)
    local err = fails(function() rpc.to("nobody"):rpc_sync { timeout = 0.05 }:f() end)
    assert.matches('worker "nobody" has not joined', err.message)
    rpc.shutdown()
    local _, reason, code = require("posix.sys.wait").wait(pid)
    assert.same({ "exited", 0 }, { reason, code })
    process.remove(folder)
    assert.equal(before.fds, workers.held().fds)
    -- Nobody ever: UNAVAILABLE, and nothing stays.
    err = fails(rpc.init, { name = "x", connect = address, token = workers.token,
      connect_timeout = 0.05 })
    assert.equal("UNAVAILABLE", err.code)
    assert.matches("no worker at unix:", err.message)
    assert.equal("FAILED_PRECONDITION", fails(rpc.rpc_sync, "x", "f").code)
    assert.equal(before.fds, workers.held().fds)
    assert.equal(before.threads, workers.held().threads)
  end)

  it("refuses options it does not know", function()
    local function message(options) return fails(rpc.init, options).message end
    assert.matches('unknown option "nam"; did you mean "name"', message { nam = "x" })
    assert.matches("needs a name", message { listen = "unix:/x/y" })
    assert.matches("needs an address", message { name = "x", token = workers.token })
    assert.matches("letters, digits", message { name = "a b", listen = "unix:/nowhere/y",
      token = workers.token })
    assert.matches("address or a list", message { name = "x", listen = 5 })
    assert.matches("refusing to listen on 0.0.0.0:0 without tls", message { name = "x",
      listen = "tcp://0.0.0.0:0", token = workers.token })
    assert.is_nil(core.rpc.active() or nil)
  end)

  it("happens once", function()
    local group = workers.group()
    assert.matches('this worker is "test"', fails(rpc.init, { name = "x",
      listen = "unix:" .. group.folder .. "/x.sock", token = workers.token }).message)
    -- A forked child must not use its parent's connections.
    local path = group.folder .. "/forked"
    local pid = require("posix.unistd").fork()
    if pid == 0 then
      local ok, err = pcall(rpc.rpc_sync, "test", "f")
      process.write(path, tostring(ok) .. " " .. tostring(err))
      require("posix.unistd")._exit(0)
    end
    require("posix.sys.wait").wait(pid)
    assert.matches("^false FAILED_PRECONDITION: this process was forked", process.read(path))
    group:finish()
    group = workers.group() -- and again after the end
    group:start("w", BASIC)
    assert.equal(1, rpc.rpc_sync("w", "echo", 1))
    local ref = rpc.rref(rpc.class("Once", {})())
    local f = rpc.rpc_async("w", "echo")
    group:finish()
    assert.equal("FAILED_PRECONDITION", fails(rpc.rpc_sync, "w", "echo").code)
    assert.matches("closed", tostring(ref))
    assert.matches("closed", tostring(f))
    assert.equal("FAILED_PRECONDITION", fails(f.wait, f).code)
    rpc.shutdown()
  end)
end)

describe("leaving", function()
  it("ends those who serve, with their calls done", function()
    local group = workers.group()
    local w = group:start("w", BASIC .. [[
local serve = rpc.serve
rpc.serve = function() serve() print("served") end
    ]])
    rpc.rpc_sync("w", "echo")
    rpc.shutdown()
    assert.equal(0, w:join())
    assert.matches("served", w:output())
    assert.is_nil(w:output():find "lost")
    group:finish()
  end)

  it("waits for calls being served, and takes no new ones", function()
    local group = workers.group()
    local begun, finished
    rpc.register("slow", function()
      begun = true
      rpc.sleep(1)
      finished = true
      return "finished"
    end)
    local w = group:start("w", [[
rpc.register("go", function()
  local f = rpc.rpc_async("test", "slow")
  rpc.sleep(0.3)
  local ok, err = pcall(rpc.rpc_sync, "test", "slow")
  print(ok, err, err.outcome)
  print(f:wait())
end)
    ]])
    local f = rpc.rpc_async("w", "go")
    assert.is_true(workers.eventually(function() return begun end))
    rpc.shutdown { timeout = 5 }
    assert.is_true(finished)
    w:join()
    assert.matches('false\tUNAVAILABLE: "test" is stopping and did not run "slow" %(outcome: ' ..
      "not executed%)\tnot executed", w:output())
    assert.matches("\nfinished", w:output())
    assert.is_userdata(f)
    group:finish()
  end)

  it("ends when a handler says so, not when the loop next has something to do", function()
    local group, shortest = workers.group(), math.huge
    for i = 1, 5 do
      local name = "w" .. i
      local w = group:start(name, [[
        local clock, began, serve = require "posix.time", nil, rpc.serve
        local function now() local v = clock.clock_gettime(1) return v.tv_sec + v.tv_nsec * 1e-9 end
        rpc.register("stop", function() began = now() rpc.shutdown() end)
        rpc.serve = function() serve() print(now() - began) end
      ]], "heartbeat = 60, timeout = 200")
      rpc.wait_for { name }
      rpc.rpc_sync(name, "stop")
      assert.equal(0, (w:join()))
      shortest = math.min(shortest, tonumber(w:output():match "[%d.]+"))
    end
    assert.is_true(shortest < 0.4, shortest .. " s")
    group:finish()
  end)

  it("in a handler ends serve()", function()
    local group = workers.group()
    local w = group:start("w", [[rpc.register("stop", function() rpc.shutdown() return 1 end)]])
    assert.equal(1, rpc.rpc_sync("w", "stop"))
    assert.equal(0, w:join())
    group:finish()
  end)

  it("without a goodbye is told by serve()", function()
    local group = workers.group()
    local path = group.folder .. "/trainer.lua"
    process.write(path, ([[
local rpc = require("rlengine").rpc
rpc.init{ name = "trainer", listen = "unix:%s/trainer.sock", token = %q }
rpc.register("ready", function() end)
rpc.serve()
]]):format(group.folder, workers.token))
    local trainer = group:run(path, "trainer")
    group.address = "unix:" .. group.folder .. "/trainer.sock"
    local w = group:start("w", [[
local serve = rpc.serve
rpc.serve = function() print("joined") io.stdout:flush() serve() end
    ]], "reconnect_for = 0")
    assert.is_true(workers.eventually(function() return w:output():find "joined" end))
    trainer:kill(signal.SIGKILL)
    assert.is_true(w:join() ~= 0)
    assert.matches('UNAVAILABLE: worker "trainer" disconnected', w:output())
    group:finish()
  end)
end)

describe("coroutines", function()
  it("of a script keep working around remote calls", function()
    local group = workers.group()
    group:start("w", BASIC .. [[
rpc.register("inner", function(n)
  local produce = coroutine.wrap(function()
    for i = 1, n do coroutine.yield(rpc.rpc_sync("test", "double", i)) end
  end)
  local sum = 0
  for v in produce do
    sum = sum + v
    if sum >= 2 * n * (n + 1) / 2 then break end
  end
  return sum
end)
    ]])
    rpc.register("double", function(i) return 2 * i end)
    local values = {}
    local co = coroutine.wrap(function()
      for i = 1, 3 do coroutine.yield(rpc.rpc_sync("w", "echo", i)) end
    end)
    for i = 1, 3 do values[i] = co() end
    assert.same({ 1, 2, 3 }, values)
    local list = {}
    for i = 1, 10 do list[i] = rpc.rpc_async("w", "inner", 5) end
    for _, v in ipairs(rpc.wait_all(list)) do assert.equal(30, v) end
    group:finish()
  end)

  it("that serve may yield to let others go first, and sleep", function()
    local group = workers.group()
    group:start("w", BASIC .. [[
rpc.register("cooperate", function(n)
  for _ = 1, n do coroutine.yield() end
  return n
end)
    ]])
    local slow = rpc.rpc_async("w", "cooperate", 1000000000)
    assert.equal(1, rpc.rpc_sync("w", "echo", 1)) -- not behind the other
    slow:cancel()
    assert.equal(5, rpc.rpc_sync("w", "cooperate", 5))
    group:finish()
  end)

  it("cannot wait where they cannot be suspended", function()
    local group = workers.group()
    group:start("w", BASIC .. [[
rpc.register("sorted", function()
  local ok, err = pcall(table.sort, { 3, 1, 2 }, function(a, b)
    return rpc.rpc_sync("test", "f") and a < b
  end)
  return ok, tostring(err)
end)
rpc.register("collected", function()
  local said
  do
    local u = newproxy(true)
    getmetatable(u).__gc = function() said = { pcall(rpc.rpc_sync, "test", "f") } end
  end
  collectgarbage() collectgarbage()
  return said[1], tostring(said[2])
end)
    ]])
    rpc.register("f", function() return true end)
    local ok, text = rpc.rpc_sync("w", "sorted")
    assert.is_false(ok)
    assert.matches("^FAILED_PRECONDITION: rpc_sync inside a function that a C function calls", text)
    ok, text = rpc.rpc_sync("w", "collected")
    assert.is_false(ok)
    assert.equal("FAILED_PRECONDITION: rpc_sync inside a finalizer", text)
    -- In the script itself a callback may wait; a finalizer may not.
    local t = { 3, 1, 2 }
    table.sort(t, function(a, b) return rpc.rpc_sync("w", "echo", a) < b end)
    assert.same({ 1, 2, 3 }, t)
    local said
    do
      local u = newproxy(true) -- luacheck: ignore
      getmetatable(u).__gc = function() said = { pcall(rpc.rpc_sync, "w", "echo", 1) } end
    end
    collectgarbage()
    collectgarbage()
    assert.equal("FAILED_PRECONDITION: rpc_sync inside a finalizer", tostring(said[2]))
    group:finish()
  end)
end)

describe("a handler's engine state", function()
  it("is its own", function()
    local group = workers.group()
    group:start("w", [[
local inside_now
rpc.register("grad", function()
  local before = rl.is_grad_enabled()
  local inside = rl.no_grad(function()
    inside_now = true
    rpc.sleep(0.3)
    return rl.is_grad_enabled()
  end)
  return before, inside, rl.is_grad_enabled()
end)
rpc.register("modes", function() return rl.is_grad_enabled(), inside_now end)
    ]])
    local f = rpc.rpc_async("w", "grad")
    -- While the other is inside no_grad.
    assert.same({ true, true }, { rpc.rpc_sync("w", "modes") })
    assert.same({ true, false, true }, { f:wait() })
    group:finish()
  end)

  it("has random numbers that do not depend on the order of calls", function()
    local function draw(order)
      local group = workers.group()
      local result = {}
      rl.manual_seed(5)
      rpc.register("draw", function() return rl.rand(3):totable() end)
      for _, name in ipairs { "a", "b" } do
        group:start(name, [[rpc.register("go", function(n)
  local out = {}
  for i = 1, n do out[i] = rpc.rpc_sync("test", "draw") end
  return out
end)]])
      end
      for _, name in ipairs(order) do
        result[name] = result[name] or {}
        for _, row in ipairs(rpc.rpc_sync(name, "go", 2)) do table.insert(result[name], row) end
      end
      group:finish { blocks = true }
      return result
    end
    local one, two = draw { "a", "a", "b", "b" }, draw { "b", "a", "b", "a" }
    assert.same(one, two)
    assert.is_false(one.a[1][1] == one.a[2][1])
    assert.is_false(one.a[1][1] == one.b[1][1])
  end)
end)

describe("a spec that fails", function()
  -- Its first test leaves a process, which the second finds ended; that one leaves another, which
  -- computes, and is stopped besides.
  local SPEC = [[
package.path = "tests/support/?.lua;" .. package.path
local workers = require "workers"
local signal = require "posix.signal"
local first
it("one", function()
  first = workers.group():start("w", "rpc.register('f', function() end)").pid
  require("rlengine").rpc.rpc_sync("w", "f")
  error "failed"
end)
it("two", function()
  local group = workers.group()
  assert(signal.kill(first, 0) == nil)
  local worker = group:start("t", "print 'runs' io.stdout:flush() while true do end")
  assert(workers.eventually(function() return worker:output() ~= "" end, 30))
  print("left", worker.pid)
  worker:kill(signal.SIGSTOP)
  error "failed"
end)
]]
  it("leaves no process behind", function()
    local folder = process.folder()
    process.write(folder .. "/failing_spec.lua", SPEC)
    local r = process.run({ process.program(), "tests/support/run_busted.lua", "-o", "TAP",
      folder .. "/failing_spec.lua" })
    assert.equal(2, select(2, ("\n" .. r.out):gsub("\nnot ok", "")), r.out)
    local left = tonumber(r.out:match "left\t(%d+)")
    assert.is_number(left, r.out)
    assert.is_true(require("launched").eventually(function()
      local f = io.open("/proc/" .. left .. "/stat")
      local state = f and f:read "*a":match "%) (%a)"
      if f then f:close() end
      return not state or state == "Z"
    end, 10))
    process.remove(folder)
  end)
end)
