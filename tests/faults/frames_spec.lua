-- Faults: bytes that no worker sends, flipped ones, and ones that come very slowly.
package.path = "tests/support/?.lua;" .. package.path
local rl = require "rlengine"
local core = require "rlengine.core"
local faults = require "faults"
local figure = require "figure"
local workers = require "workers"
local socket = require "posix.sys.socket"
local time = require "posix.time"
local unistd = require "posix.unistd"
local rpc = rl.rpc

local function connect(address)
  local fd = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0)
  local port = tonumber(address:match ":(%d+)$")
  assert(socket.connect(fd, { family = socket.AF_INET, addr = "127.0.0.1", port = port }))
  return fd, socket.getsockname(fd).port
end

-- Processor seconds of this process.
local function cpu()
  local t = time.clock_gettime(time.CLOCK_PROCESS_CPUTIME_ID)
  return t.tv_sec + t.tv_nsec * 1e-9
end

describe("bad frames", function()
  it("F16: of somebody who speaks something else end the connection", faults.row(function(world)
    local fd, port = connect(world.group.address)
    assert(socket.send(fd, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"))
    world:logged(('closed 127.0.0.1:%d: not an rlengine peer (first bytes "GET ")'):format(port))
    assert.equal("", socket.recv(fd, 100) or "")
    unistd.close(fd)
    world:events("not an rlengine peer", 1)
  end, { listen = "tcp://127.0.0.1:0" }))

  -- Any bit of a call's header, and of its body over TCP, where there is a checksum of it.
  it("F16: with a flipped bit end the connection, and nothing of them is run",
    faults.row(function(world)
      local proxy, ran, bit = world:proxy(), 0, nil
      rpc.register("take", function(n, t)
        assert(n == 17 and t:sum():item() == 6)
        ran = ran + 1
      end)
      local step = faults.count(29, 1)
      local flips, size = 0, 8 * 64
      rpc.register("next", function()
        bit = bit and bit + step or 0
        if bit >= size then return false end
        flips = flips + 1
        proxy:flip("up", "CALL", bit)
        return true
      end)
      rpc.register("size", function() size = 8 * proxy:stat().up end)
      -- Its frame's size: what goes up for a second call of the kind.
      local obs = world:run(([[
local rpc = require("rlengine").rpc
local rl = require "rlengine"
local function init()
  rpc.init { name = "obs_3", connect = %q, token = %q, reconnect_for = 0, heartbeat = 0.3,
    timeout = 5 }
end
init()
local function take()
  rpc.to("trainer"):rpc_sync { timeout = 5 }:take(17, rl.arange(0, 4))
end
rpc.rpc_sync("trainer", "up")
take()
rpc.rpc_sync("trainer", "up")
rpc.rpc_sync("trainer", "up")
while rpc.rpc_sync("trainer", "next") do
  local ok, err = pcall(take)
  print(ok, err)
  rpc.shutdown { timeout = 0.01 }
  init()
end
rpc.shutdown()
]]):format(proxy.address, workers.token), "obs_3")
      local ups = {}
      rpc.register("up", function()
        ups[#ups + 1] = proxy:stat().up
        if #ups == 3 then size = 8 * (2 * ups[2] - ups[1] - ups[3]) end
      end)
      assert.is_true(world:eventually(function() return obs:poll() end, 25))
      assert.equal(1, ran) -- the one that was whole
      assert.is_true(flips > 10)
      local _, fails = obs:output():gsub("false\tUNAVAILABLE[^\n]*outcome: unknown", "")
      assert.equal(flips, fails, obs:output())
      world:allow "outcome: unknown"
      world:allow "lost: "
      world:allow "session ended"
      world:allow "checksum mismatch"
      world:allow "not an rlengine peer"
      local mismatch, magic
      world:eventually(function()
        mismatch = world:count 'closed "obs_3": frame checksum mismatch'
        magic = world:count 'closed "obs_3": not an rlengine peer (first bytes "'
        return mismatch + magic >= flips
      end)
      assert.equal(flips, mismatch + magic)
      figure("F16", "%d bits of a call of %d bytes flipped over TCP: %d connections closed, "
        .. "nothing of them ran", flips, size / 8, flips)
    end, { listen = "tcp://127.0.0.1:0", seconds = 120 }))
end)

-- A process that opens 64 connections and sends a byte over each every 100 ms, until it is ended.
local DRIBBLE = [[
local signal = require "posix.signal"
local socket = require "posix.sys.socket"
local time = require "posix.time"
signal.signal(signal.SIGPIPE, signal.SIG_IGN) -- the first that is closed is not the end of all
local bytes = "RLE1\1\1" .. ("\0"):rep(500)
local list = {}
for i = 1, 64 do
  list[i] = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0)
  assert(socket.connect(list[i], { family = socket.AF_INET, addr = "127.0.0.1", port = %d }))
end
print "connected"
io.stdout:flush()
for n = 1, 500 do
  for i = 1, 64 do
    if list[i] then socket.send(list[i], bytes:sub(n, n)) end
  end
  time.nanosleep { tv_sec = 0, tv_nsec = 100000000 }
end
]]

describe("somebody who sends a byte now and then", function()
  it("F17: is not waited for, and costs next to nothing", faults.row(function(world)
    local before = core.host_memory()
    local idle_cpu, idle_began = cpu(), workers.now()
    rpc.sleep(0.5)
    local idle = (cpu() - idle_cpu) / (workers.now() - idle_began)
    local busy, began = cpu(), workers.now()
    local slow = world:run(DRIBBLE:format(world.group.address:match ":(%d+)$"), "slow")
    slow:said "connected"
    rpc.sleep(3)
    local held = core.host_memory() - before
    local share = (cpu() - busy) / (workers.now() - began)
    -- A worker that means it is served while they are at it.
    world:logged("handshake not finished in 5 s", 10)
    world:events("handshake not finished in 5 s", 64)
    for _, line in ipairs(world:lines()) do
      assert.matches("^rlengine: closed 127%.0%.0%.1:%d+: handshake not finished in 5 s$",
        line.text)
    end
    world:start "obs_3"
    world:join "obs_3"
    slow:kill()
    slow:join()
    assert.is_true(held / 64 <= 4096, held / 64)
    figure("F17", "64 connections at 10 bytes a second: %.1f %% of a processor (%.1f %% without), "
      .. "%.1f KiB a connection, all closed after 5 s", 100 * share, 100 * idle, held / 64 / 1024)
  end, { listen = "tcp://127.0.0.1:0" }))
end)
