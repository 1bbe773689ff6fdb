-- Joining when something is in the way: a line that breaks, a trainer that is slow, names nobody
-- has; and leaving without a word of the script's.
package.path = "tests/support/?.lua;" .. package.path
local rl = require "rlengine"
local fails = require "fails"
local launched = require "launched"
local process = require "process"
local proxies = require "proxy"
local workers = require "workers"
local rpc = rl.rpc

-- A script that joins, calls, and says what became of it.
local JOIN = [[
local rpc = require("rlengine").rpc
local ok, err = pcall(rpc.init, { name = "w", connect = %q, token = %q, %s })
print(ok and rpc.rpc_sync("test", "f") or tostring(err))
rpc.shutdown()
]]

local function joins(group, address, more)
  local path = group.folder .. "/join.lua"
  process.write(path, JOIN:format(address, workers.token, more or ""))
  local w = group:run(path, "w")
  assert.is_true(workers.eventually(function() return w:poll() end, 20))
  return w:output()
end

describe("a first connection", function()
  it("that is cut in any part of its handshake is made again", function()
    local group = workers.group { listen = "tcp://127.0.0.1:0" }
    rpc.register("f", function() return "here" end)
    local proxy = proxies.new(group.address)
    for _, cut in ipairs { { "up", "HELLO", 0 }, { "up", "HELLO", 100 }, { "down", "HELLO_ACK", 1 },
      { "down", "HELLO_ACK", 90 }, { "up", "AUTH", 0 }, { "up", "AUTH", 64 }, { "down", "AUTH", 0 },
      { "down", "AUTH", 80 } } do
      proxy:cut(unpack(cut))
      assert.equal("here\n", joins(group, proxy.address), table.concat(cut, " "))
    end
    assert.equal(8, proxy:stat().fired)
    proxy:finish()
    group:finish()
  end)

  it("that nobody answers is given up when its time is over, with the reason", function()
    local group = workers.group { listen = "tcp://127.0.0.1:0" }
    local proxy = proxies.new(group.address)
    proxy:hold "both"
    assert.matches("^UNAVAILABLE: no worker at 127.0.0.1:%d+ for 0.6 s %(handshake not finished " ..
      "in 0.[56]%d* s%)\n$", joins(group, proxy.address, "connect_timeout = 0.6"))
    proxy:finish()
    assert.matches("^UNAVAILABLE: no worker at 127.0.0.1:%d+ for 0.2 s %(Connection refused%)\n$",
      joins(group, proxy.address, "connect_timeout = 0.2"))
    group:finish()
  end)

  it("of an observer that is started again costs no second start", function()
    local started = launched.start [[
      package.path = "tests/support/?.lua;" .. package.path
      local rl = require "rlengine"
      local rpc = rl.rpc
      rpc.register("pid", function() return require("posix.unistd").getpid() end)
      rl.launch {
        restarts = { backoff = 0.05 }, observers_per_trainer = 1,
        trainer = function(ctx)
          local at, real = ctx.folder .. "/agent_0.sock", ctx.folder .. "/real.sock"
          local observer = ctx.observers[1]
          local pid = rpc.rpc_sync(observer, "pid")
          assert(os.rename(at, real))
          local line = require("proxy").new("unix:" .. real, "unix:" .. at)
          line:cut("down", "HELLO_ACK", 30)
          require("posix.signal").kill(pid, 9)
          repeat rpc.sleep(0.01) until not rpc.worker_info(observer).connected
          rpc.wait_for { observer }
          print(rpc.rpc_sync(observer, "pid") ~= pid, line:stat().fired)
          rpc.shutdown()
          line:finish()
        end,
      }]]
    assert.equal(0, started:wait(30), started:err())
    assert.equal("true\t1\n", started:out())
    assert.matches('observer "obs_0_for_0" died %(signal 9%); restart 1 of 5', started:err())
    assert.is_nil(started:err():find("restart 2 of 5", 1, true))
    started:remove()
  end)
end)

describe("a worker that is not there", function()
  it("is waited for as long as join_timeout, then NOT_FOUND names those who are", function()
    local group = workers.group { join_timeout = 0.3 }
    local t0 = workers.now()
    local err = fails(rpc.rpc_sync, "obs_1", "f")
    assert.is_true(workers.now() - t0 >= 0.3 and workers.now() - t0 < 5)
    assert.equal('NOT_FOUND: worker "obs_1" has not joined in 0.300 s, "f" was not sent ' ..
      "(outcome: not executed); no other worker is here", tostring(err))
    assert.equal("not executed", err.outcome)
    group:start("obs_0", "")
    group:start("player", "")
    rpc.wait_for { "obs_0", "player" }
    assert.equal('worker "playr" has not joined in 0.300 s, "f" was not sent (outcome: not ' ..
      'executed); here are "obs_0", "player"; did you mean "player"?',
      fails(rpc.rpc_sync, "playr", "f").message)
    assert.equal('worker "trainer" has not joined in 0.300 s, "f" was not sent (outcome: not ' ..
      'executed); here are "obs_0", "player"', fails(rpc.rpc_sync, "trainer", "f").message)
    -- A deadline that is over before says so, in the same words.
    err = fails(function() rpc.to("playr"):rpc_sync { timeout = 0.05 }:f() end)
    assert.equal("DEADLINE_EXCEEDED", err.code)
    assert.matches('^worker "playr" has not joined in 0.050 s, .*did you mean "player"%?$',
      err.message)
    err = fails(rpc.wait_for, "playr", { timeout = 0.02 })
    assert.equal('DEADLINE_EXCEEDED: worker "playr" has not joined in 0.020 s; here are ' ..
      '"obs_0", "player"; did you mean "player"?', tostring(err))
    assert.equal("INVALID_ARGUMENT", fails(rpc.wait_for, 5).code)
    group:finish()
  end)

  it("may join while it is called, and then has the whole deadline", function()
    local group = workers.group { join_timeout = 8, max_calls = 1 }
    local futures = {}
    for i = 1, 20 do futures[i] = rpc.rpc_async("late", "double", i) end
    group:start("late", "rpc.register('double', function(i) rpc.sleep(0.01) return 2 * i end)",
      "max_calls = 1")
    for i, result in ipairs(rpc.wait_all(futures)) do assert.equal(2 * i, result) end
    group:finish()
    -- Calls that wait for credit when the time to join is over.
    group = workers.group { join_timeout = 1.5 }
    local slow = {}
    for i = 1, 3 do slow[i] = rpc.rpc_async("late", "slow", i) end
    group:start("late", "rpc.register('slow', function(i) rpc.sleep(1) return i end)",
      "max_calls = 1")
    assert.same({ 1, 2, 3 }, rpc.wait_all(slow))
    group:finish()
  end)

  it("has left, or nobody can join: that is said at once", function()
    local group = workers.group { join_timeout = 30 }
    local w = group:start("w", "rpc.register('stop', function() rpc.shutdown() end)")
    rpc.rpc_sync("w", "stop")
    assert.equal(0, w:join())
    assert.is_true(workers.eventually(function() return rpc.worker_info("w").address == "" end))
    local t0 = workers.now()
    assert.equal('UNAVAILABLE: worker "w" has left, "f" was not sent (outcome: not executed)',
      tostring(fails(rpc.rpc_sync, "w", "f")))
    assert.is_true(workers.now() - t0 < 5)
    rpc.register("f", function() return "here" end)
    local path = group.folder .. "/only.lua"
    process.write(path, ([[
      local rpc = require("rlengine").rpc
      rpc.init{ name = "w", connect = %q, token = %q }
      print(pcall(rpc.rpc_sync, "tests", "f"))
      rpc.shutdown()]]):format(group.address, workers.token))
    local only = group:run(path, "only")
    assert.is_true(workers.eventually(function() return only:poll() end, 20))
    assert.equal('false\tNOT_FOUND: no worker "tests" is known here; this worker does not ' ..
      'listen, so none can join; here are "test"; did you mean "test"?\n', only:output())
    group:finish()
  end)

  it("is told of among many by the first eight and how many more", function()
    local group = workers.group { join_timeout = 0.1 }
    local names = {}
    for i = 1, 10 do
      names[i] = ("obs_%02d"):format(i)
      group:start(names[i], "")
    end
    rpc.wait_for(names)
    assert.matches('; here are "obs_01", "obs_02", "obs_03", "obs_04", "obs_05", "obs_06", ' ..
      '"obs_07", "obs_08" and 2 more$', fails(rpc.rpc_sync, "obs_11", "f").message)
    group:finish()
  end)
end)

describe("a program that ends without rpc.shutdown", function()
  local HEAD = [[
    local rpc = require("rlengine").rpc
    rpc.init{ name = "w", connect = %q, token = %q }
    rpc.register("f", function(v) return v end)
    rpc.register("hang", function() rpc.sleep(60) end)
    rpc.rpc_sync("test", "here")
  ]]

  -- Runs a script that ends like that; what its peers are told of it.
  local function ended(how, arguments)
    local group = workers.group()
    local told, called
    local stop = rpc.on_leave(function(name, _, goodbye) told = { name, goodbye } end)
    rpc.register("here", function() end)
    rpc.register("call", function()
      local ok, err = pcall(rpc.rpc_sync, "w", "hang")
      called = tostring(err)
      return ok
    end)
    local path = group.folder .. "/w.lua"
    process.write(path, HEAD:format(group.address, workers.token) .. how)
    local w = group:run(path, "w", arguments)
    assert.is_true(workers.eventually(function() return told and w:poll() end, 20), w:output())
    local code, killed = w:join()
    local text = w:output()
    stop()
    assert.is_true(workers.eventually(function() return rpc.worker_info("w").address == "" end))
    assert.equal("w", told[1])
    assert.equal(rpc.worker_info("w").left, told[2])
    group:finish()
    return told[2], code or killed, text, called
  end

  it("says goodbye when it ends well: by its script's end, os.exit, in a handler", function()
    for _, how in ipairs { "", "os.exit()", "os.exit(0)", "os.exit(true)", "os.exit(0, true)",
      "rpc.register('quit', function() os.exit(0) end) rpc.rpc_async('test', 'x') rpc.sleep(0) " ..
      "coroutine.wrap(function() os.exit(0) end)()" } do
      local goodbye, code, text = ended(how)
      assert.same({ true, 0, "" }, { goodbye, code, text }, how)
    end
  end)

  it("is lost when it fails, is interrupted or killed", function()
    for how, code in pairs { ["error('wrong')"] = 1, ["os.exit(3)"] = 3, ["os.exit(false)"] = 1,
      ["os.exit(4, true)"] = 4, ["require('posix.unistd')._exit(0)"] = 0,
      ["require('posix.signal').kill(require('posix.unistd').getpid(), 9)"] = 9,
      ["require('posix.signal').kill(require('posix.unistd').getpid(), 2) rpc.sleep(5)"] = 130 } do
      local goodbye, got = ended(how)
      assert.same({ false, code }, { goodbye, got }, how)
    end
  end)

  it("waits for nobody", function()
    local t0 = workers.now()
    local goodbye, code, _, called = ended "rpc.rpc_async('test', 'call') rpc.sleep(0.2)"
    assert.same({ true, 0 }, { goodbye, code })
    assert.equal('UNAVAILABLE: "w" stopped while it ran "hang" (outcome: unknown)', called)
    assert.is_true(workers.now() - t0 < 15)
  end)

  it("ends those who serve it", function()
    local group = workers.group()
    local path = group.folder .. "/trainer.lua"
    process.write(path, ([[
      local rpc = require("rlengine").rpc
      rpc.init{ name = "trainer", listen = "unix:%s/trainer.sock", token = %q }
      print(rpc.rpc_sync("obs", "f", 5))
    ]]):format(group.folder, workers.token))
    local trainer = group:run(path, "trainer")
    group.address = "unix:" .. group.folder .. "/trainer.sock"
    local obs = group:start("obs", "rpc.register('f', function(v) return v end)")
    assert.equal(0, trainer:join())
    assert.equal("5\n", trainer:output())
    assert.same({ 0, "" }, { obs:join(), obs:output() })
    group:finish()
  end)

  it("says nothing in a child that it has forked", function()
    local group = workers.group()
    group:start("w", "rpc.register('f', function(v) return v end)")
    assert.equal(1, rpc.rpc_sync("w", "f", 1))
    local unistd = require "posix.unistd"
    local pid = unistd.fork()
    if pid == 0 then
      io.stdout:setvbuf "no"
      os.exit(0)
    end
    require("posix.sys.wait").wait(pid)
    assert.equal(2, rpc.rpc_sync("w", "f", 2))
    group:finish()
  end)
end)
