-- Calls that call back, and back again, between workers that serve few calls at once and may have
-- few open: they end, without a thread more, however many there are.
package.path = "tests/support/?.lua;" .. package.path
local dirent = require "posix.dirent"
local figure = require "figure"
local rl = require "rlengine"
local workers = require "workers"

local rpc = rl.rpc
local full = os.getenv "RLE_FULL"
local AT_ONCE, DEPTH = full and 10000 or 1000, 8

local FEW = "max_calls = 4, max_concurrent = 2"

-- Each level asks the worker next to it, a random time later so that orders differ.
local DOWN = [[
local NEXT = %q
rpc.register("down", function(depth)
  if depth == 0 then return 1 end
  if depth %% 3 == 0 and math.random(4) == 1 then rpc.sleep(0) end
  return 1 + rpc.rpc_sync(NEXT, "down", depth - 1)
end)
]]

describe("F40: nested calls", function()
  local group
  before_each(function() group = workers.group { max_calls = 4, max_concurrent = 2 } end)
  after_each(function() group:finish() end)

  local next_worker -- of the test process, in the round
  rpc.register("down", function(depth)
    if depth == 0 then return 1 end
    return 1 + rpc.rpc_sync(next_worker, "down", depth - 1)
  end)

  local function threads_of(pid) return #dirent.dir(("/proc/%d/task"):format(pid)) - 2 end

  -- All at once to `first`; every one comes back having been DEPTH deep.
  local function run(first, label)
    for _, worker in ipairs(group.workers) do
      assert.is_true(workers.eventually(function()
        return rpc.worker_info(worker.name) and pcall(rpc.rpc_sync, worker.name, "down", 0)
      end), worker:output())
    end
    local before, most = {}, 0
    for i, worker in ipairs(group.workers) do before[i] = threads_of(worker.pid) end
    local start, futures = workers.now(), {}
    for i = 1, AT_ONCE do
      futures[i] = rpc.to(first):rpc_async{ timeout = 300 }:down(DEPTH)
    end
    for i = 1, AT_ONCE do
      assert.equal(DEPTH + 1, (futures[i]:wait()))
      if i % 100 == 0 then
        for _, worker in ipairs(group.workers) do
          most = math.max(most, threads_of(worker.pid))
        end
      end
    end
    for i, worker in ipairs(group.workers) do
      assert.equal(before[i], threads_of(worker.pid), worker.name)
      assert.is_true(most <= before[i], ("%d threads, %d before"):format(most, before[i]))
    end
    figure("F40", "%d calls at once, %d deep, %s: all end in %.1f s, %d threads each throughout",
      AT_ONCE, DEPTH, label, workers.now() - start, most)
  end

  it("between two workers never wait for each other", function()
    next_worker = "b"
    group:start("b", DOWN:format "test", FEW)
    run("b", "two workers that serve 2 at once")
  end)

  it("between two others, too", function()
    local b = ("unix:%s/b.sock"):format(group.folder)
    group:start("b", DOWN:format "c", FEW .. (", listen = %q"):format(b))
    group:start("c", DOWN:format "b" .. ("options.connect = { ADDRESS, %q }"):format(b), FEW)
    run("b", "between two others that serve 2 at once")
  end)

  it("around three workers come home", function()
    local b = ("unix:%s/b.sock"):format(group.folder)
    next_worker = "b"
    group:start("b", DOWN:format "c", FEW .. (", listen = %q"):format(b))
    group:start("c", DOWN:format "test" .. ("options.connect = { ADDRESS, %q }"):format(b), FEW)
    run("b", "around three workers that serve 2 at once")
  end)
end)
