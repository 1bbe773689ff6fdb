-- Batched functions on a device: how their rows get there, and what is kept from batch to batch.
package.path = "tests/support/?.lua;" .. package.path
local rl = require "rlengine"
local process = require "process"
local workers = require "workers"
local rpc = rl.rpc

-- act(obs, id) on the emulated device, eight rows a batch. `learn` keeps a graph of every batch, so
-- that somebody holds the rows' copy; `sums` keeps what was computed of them.
local TRAINER = [[
local w = rl.full({ 1 }, 2, { device = "emu" }):requires_grad_()
local graphs, sums = {}, {}
local learn, keep = %s, %s
rpc.register("act", rpc.batched(function(obs, id, batch)
  assert(obs.shape[1] == 8 and batch.rows == 8 and obs.device == rl.device "emu")
  if learn then graphs[#graphs + 1] = (obs * w):sum() end
  if keep then sums[#sums + 1] = obs:mean(-1) + id end
  return nil
end, { input = { "obs f32[5000]", "id i64" }, size = 8, delay = 5, device = "emu" }))
rpc.register("sums", function()
  local list = {}
  for i, t in ipairs(sums) do list[i] = t:totable() end
  return list
end)
rpc.register("gradient", function()
  rl.stack(graphs):sum():backward()
  return w.grad[1]:item()
end)
rpc.register("held", function()
  collectgarbage()
  collectgarbage()
  local bytes = 0
  for _, row in ipairs(rl.memory.report "cpu") do
    if row.owner == "rpc" then bytes = bytes + row.bytes end
  end
  return bytes, rl.memory.report("cpu").used - rl.memory.stats("cpu").reserved
end)
]]

local there = pcall(rl.device, "emu")

describe("batches for a device", function()
  if not there then
    pending "needs the emulated device"
    return
  end

  local group, trace, restore
  before_each(function() group = workers.group { call_timeout = 60 } end)
  after_each(function()
    if restore then restore() end
    restore = nil
    group:finish { blocks = true }
  end)

  local function start(settings, learn, keep)
    trace = group.folder .. "/trace"
    restore = workers.setenv { RLENGINE_EMU = settings .. " trace=" .. trace }
    group:start("trainer", TRAINER:format(learn, keep))
    rpc.wait_for { "trainer" }
  end

  --- So many batches, a call each; row k of batch i has the value 10 i + k, its number is 1000.
  local function batches(first, last)
    local id = rl.full({ 8 }, 1000, { dtype = "i64", device = "cpu" })
    for i = first, last do
      local rows = rl.tensor({ 1, 2, 3, 4, 5, 6, 7, 8 }, { device = "cpu" }) + 10 * i
      rpc.rpc_sync("trainer", "act", rows:unsqueeze(-1):expand(8, 5000):contiguous(), id)
    end
  end

  --- How often the driver was called by each name.
  local function calls()
    local count = setmetatable({}, { __index = function() return 0 end })
    for name in process.read(trace):gmatch "[^\n]+" do count[name] = count[name] + 1 end
    return count
  end

  it("take one copy for each of their tensors, which nobody waits for", function()
    start("streams=eager", "false", "false")
    batches(1, 3) -- buffers are made
    local before = calls()
    batches(4, 23)
    local after = calls()
    assert.equal(2 * 20, after.cudaMemcpyAsync - before.cudaMemcpyAsync)
    assert.equal(0, after.cudaStreamSynchronize - before.cudaStreamSynchronize)
    assert.equal(0, after.cudaHostAlloc - before.cudaHostAlloc)
    assert.equal(0, after.cudaMalloc - before.cudaMalloc)
  end)

  it("keep their rows in host memory while a graph holds the copy", function()
    start("streams=eager", "true", "false")
    batches(1, 3)
    local before = calls()
    batches(4, 12)
    local after = calls()
    assert.equal(0, after.cudaHostAlloc - before.cudaHostAlloc)
    assert.equal(0, after.cudaFreeHost - before.cudaFreeHost)
    local wanted = 0
    for i = 1, 12 do
      for k = 1, 8 do wanted = wanted + 5000 * (10 * i + k) end
    end
    assert.equal(wanted, (rpc.rpc_sync("trainer", "gradient")))
  end)

  it("write rows anew only when the device has read them", function()
    start("streams=lazy", "false", "true") -- nothing is copied before it is waited for
    batches(1, 6)
    local sums = rpc.rpc_sync("trainer", "sums")
    assert.equal(6, #sums)
    for i, list in ipairs(sums) do
      for k, v in ipairs(list) do assert.equal(10 * i + k + 1000, v) end
    end
  end)

  it("have their rows in the CPU's account", function()
    start("streams=eager", "false", "true")
    batches(1, 4)
    local bytes, unaccounted = rpc.rpc_sync("trainer", "held")
    local buffer = 8 * (5000 * 4 + 8)
    assert.is_true(bytes >= buffer and bytes % buffer == 0, bytes)
    assert.equal(0, unaccounted)
    batches(5, 24)
    assert.equal(bytes, (rpc.rpc_sync("trainer", "held")))
  end)

  it("do without page-locked memory where there is none", function()
    for nth = 3, 4 do -- the first two are the device's own
      start(("fail_host=%d"):format(nth), "false", "true")
      batches(1, 4)
      for i, list in ipairs(rpc.rpc_sync("trainer", "sums")) do
        for k, v in ipairs(list) do assert.equal(10 * i + k + 1000, v) end
      end
      assert.is_true(rpc.rpc_sync("trainer", "held") > 0)
      restore()
      group:finish { blocks = true }
      group = workers.group { call_timeout = 60 }
    end
  end)
end)
