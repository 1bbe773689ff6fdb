-- Faults of what is around a worker: clocks that jump, signals without end, processes that a
-- script forks and starts. Nothing of that is noticed.
package.path = "tests/support/?.lua;" .. package.path
local figure = require "figure"
local process = require "process"

local full = os.getenv "RLE_FULL" == "1"

local function disturbed(how, script)
  local folder = process.folder()
  process.write(folder .. "/script.lua", script)
  local library = process.program():gsub("[^/]*$", "") .. "tests/fault_disturb.so"
  local r = process.run({ process.program(), folder .. "/script.lua" }, { env = {
    LD_PRELOAD = library, RLE_DISTURB = how, TMPDIR = folder, XDG_RUNTIME_DIR = false,
    -- Preloading is fine, and a forked child has not the threads that a search for leaks stops.
    ASAN_OPTIONS = (os.getenv "ASAN_OPTIONS" or "") .. ":verify_asan_link_order=0:detect_leaks=0",
  } })
  local left = process.check { "find", folder, "-mindepth", "1", "-name", "rlengine-*" }
  process.remove(folder)
  assert.equal("", r.err)
  assert.equal(0, r.code)
  assert.equal("", left)
  return r.out
end

-- What the trainer does besides, in each round, is `more`.
local function script(seconds, more)
  return (([[
    local rl = require "rlengine"
    local rpc = rl.rpc
    rpc.register("echo", function(...) return ... end)
    rpc.register("sleep", function(s) rpc.sleep(s) return s end)
    local function now()
      local t = require("posix.time").clock_gettime(1)
      return t.tv_sec + t.tv_nsec * 1e-9
    end
    rl.launch {
      observers_per_trainer = 3, rpc = { heartbeat = 0.2, timeout = 1.5, call_timeout = 10 },
      trainer = function(ctx)
        local began, jumps, last, calls, slept = now(), 0, os.time(), 0, 0
        local tensor = rl.arange(0, 300000)
        while now() - began < SECONDS do
          local list = {}
          for i, name in ipairs(ctx.observers) do list[i] = rpc.rpc_async(name, "sleep", 0.05) end
          for i = 1, 20 do
            assert(rpc.rpc_sync(ctx.observers[1], "echo", i) == i)
            assert(rpc.rpc_sync(ctx.observers[2], "echo", tensor):eq(tensor):all():item())
            calls = calls + 2
            if math.abs(os.time() - last) > 1000 then jumps = jumps + 1 end
            last = os.time()
          end
          local start = now()
          rpc.wait_all(list)
          rpc.sleep(0.2)
          local took = now() - start
          assert(took > 0.19 and took < 5, took)
          slept = math.max(slept, took)
          MORE
        end
        print(jumps, calls, slept)
      end,
    }
  ]]):gsub("%u%u%u%u+", { SECONDS = tostring(seconds), MORE = more }))
end

describe("a worker", function()
  it("F26: does not notice that the wall clock jumps", function()
    local seconds = full and 60 or 4
    local out = disturbed("clock", script(seconds, ""))
    local jumps, calls, slept = out:match "^(%d+)\t(%d+)\t(%S+)\n$"
    assert.is_true(tonumber(jumps) >= 2, out)
    figure("F26", "clock off by an hour, forth and back: %d jumps in %d s, %d calls, 0 errors, "
      .. "0 disconnects; a sleep of 0.2 s took at most %.2f s", jumps, seconds, calls, slept)
  end)

  it("F47: loses nothing to signals without end, and to processes of the script", function()
    local seconds = full and 60 or 3
    -- What the script starts has the standard descriptors and its own look at them; what it
    -- forks may end as it likes.
    local out = disturbed("storm", script(seconds, [[
      local unistd, wait = require "posix.unistd", require "posix.sys.wait"
      assert(os.execute "test $(ls /proc/self/fd | wc -l) = 4" == 0)
      local pid = unistd.fork()
      if pid == 0 then os.exit(0, calls % 80 == 0) end
      while not wait.wait(pid) do end
    ]]))
    local _, calls, slept = out:match "^(%d+)\t(%d+)\t(%S+)\n$"
    assert.is_true(tonumber(calls) >= 40, out)
    figure("F47", "SIGALRM 1000 times a second in four processes for %d s, with forks and execs: "
      .. "%d calls, half of them with 1.2 MB there and back, 0 errors; a sleep of 0.2 s took at "
      .. "most %.2f s", seconds, calls, slept)
  end)

  it("F47: survives writing to one that has gone, though SIGPIPE kills", function()
    local folder = process.folder()
    process.write(folder .. "/script.lua", [[
      local rl = require "rlengine"
      local rpc = rl.rpc
      rpc.register("leave", function() require("posix.unistd")._exit(0) end)
      rpc.register("echo", function(...) return ... end)
      rl.launch {
        restarts = false, observer = function() rpc.serve() end,
        trainer = function(ctx)
          local signal = require "posix.signal"
          signal.signal(signal.SIGPIPE, signal.SIG_DFL)
          local list, tensor = {}, rl.zeros(300000)
          for i = 1, 30 do
            if i == 10 then rpc.rpc_async(ctx.observers[1], "leave") end
            list[i] = rpc.rpc_async(ctx.observers[1], "echo", tensor)
          end
          local failed = 0
          for _, f in ipairs(list) do
            local ok, err = pcall(f.wait, f)
            if not ok then failed = failed + 1 assert(err.code == "UNAVAILABLE") end
          end
          assert(failed > 0)
          print "alive"
          io.stdout:flush()
          os.exit(0, true)
        end,
      }
    ]])
    local r = process.run { process.program(), folder .. "/script.lua" }
    process.remove(folder)
    assert.equal("alive\n", r.out, r.err)
    assert.equal(0, r.code, r.err)
  end)
end)
