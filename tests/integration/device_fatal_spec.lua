-- A device that fails for good: one line that says where, exit code 70, no further call into
-- the driver, and the other workers are told.
package.path = "tests/support/?.lua;" .. package.path
local rl = require "rlengine"
local figure = require "figure"
local process = require "process"
local workers = require "workers"
local stdlib = require "posix.stdlib"
local rpc = rl.rpc

local there = pcall(rl.device, "emu")

--- Run fn with RLENGINE_EMU set for the processes it starts.
local function with_settings(settings, fn)
  local before = os.getenv "RLENGINE_EMU"
  stdlib.setenv("RLENGINE_EMU", settings)
  local results = { pcall(fn) }
  stdlib.setenv("RLENGINE_EMU", before)
  assert(results[1], results[2])
  return select(2, unpack(results))
end

local function lines_of(text)
  local lines = {}
  for line in text:gmatch "[^\n]+" do lines[#lines + 1] = line end
  return lines
end

-- The first launch is made when the device is opened; the second is ordered to fail.

--- The calls into the driver that a trace names after the last launch.
local function calls_after_launch(path)
  local calls, launched = {}, false
  for _, call in ipairs(lines_of(process.read(path))) do
    if call == "launch" then
      calls, launched = {}, true
    elseif launched then
      calls[#calls + 1] = call
    end
  end
  assert.is_true(launched)
  return calls
end

describe("a device beyond use", function()
  if not there then
    pending "needs the emulated device"
    return
  end

  -- What is called after the launch: the last of it is told of the error, and nothing follows.
  local calls = {
    eager = { "cudaEventSynchronize" },
    lazy = { "cudaEventSynchronize", "cudaMemcpyAsync", "cudaStreamSynchronize" },
  }
  for streams in pairs(calls) do
    it("F23: ends the process and says where, with " .. streams .. " streams", function()
      local folder = process.folder()
      local r = with_settings("fail_launch=2:700 streams=" .. streams .. " trace=" ..
        folder .. "/trace", function()
        return process.run { process.program(), "-e", [[
          local rl = require "rlengine"
          print "episode 1"
          local x = rl.full({ 4 }, 2, { device = "emu" })
          print(pcall(function() return x:to("cpu") end))
          print "not reached"]] }
      end)
      assert.equal(70, r.code)
      assert.equal("episode 1\n", r.out)
      assert.equal("rlengine: FATAL: GPU 0 is unusable (CUDA error 700: illegal memory access " ..
        "at fill)\n", r.err)
      assert.same(calls[streams], calls_after_launch(folder .. "/trace"))
      process.remove(folder)
    end)
  end

  it("is not what a fault outside of kernels makes of it", function()
    -- The program's own fault ends it as it would have without the device: by SIGSEGV, or by
    -- AddressSanitizer's report of one.
    local r = process.run { process.program(), "-e", [[
      local rl = require "rlengine"
      print(rl.full({ 4 }, 2, { device = "emu" }):sum():item())
      io.stdout:flush()
      require "ffi".cast("int *", 16)[0] = 1
      print "not reached"]] }
    assert.equal("8\n", r.out)
    assert.is_falsy(r.err:find("FATAL", 1, true))
    assert.is_truthy(r.signal == 11 or r.err:find("SEGV", 1, true), r.err)
  end)

  it("F23: is told to the other workers before the end", function()
    local group = workers.group()
    local w = with_settings("fail_launch=2:719 trace=" .. group.folder .. "/trace", function()
      return group:start("trainer", [[
        local device = rl.device "emu"
        rpc.register("ready", function() return true end)
        rpc.register("act", function()
          return rl.full({ 4 }, 2, { device = device }):to("cpu"):sum():item()
        end)]])
    end)
    assert.is_true(rpc.rpc_sync("trainer", "ready"))
    local before = workers.now()
    local f = rpc.rpc_async("trainer", "act")
    local ok, err = pcall(f.wait, f)
    local took = workers.now() - before
    assert.is_false(ok)
    assert.equal('UNAVAILABLE: worker "trainer" disconnected while "act" was running (outcome: ' ..
      "unknown)", tostring(err))
    assert.is_true(rpc.worker_info("trainer").left) -- it said goodbye
    assert.equal(70, (w:join()))
    assert.is_truthy(w:output():find("FATAL: GPU 0 is unusable (CUDA error 719: unspecified " ..
      "launch failure at fill)", 1, true))
    local calls_after = #calls_after_launch(group.folder .. "/trace")
    assert.equal(1, calls_after)
    figure("F23", "a worker that called knows %.1f ms later; exit code 70; after the launch that "
      .. "failed %d call into the driver, which said so", took * 1000, calls_after)
    group:finish()
  end)
end)
