-- Joining when something is in the way: a line that breaks, a trainer that is slow, names nobody
-- has; and leaving without a word of the script's.
package.path = "tests/support/?.lua;" .. package.path
local rl = require "rlengine"
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
