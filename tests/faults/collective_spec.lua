-- Collectives beside remote calls, and with members that die or are silent.
package.path = "tests/support/?.lua;" .. package.path
local faults = require "faults"
local figure = require "figure"
local rl = require "rlengine"
local core = require "rlengine.core"

local rpc = rl.rpc

-- A group of the test process and two workers, b and c; c finds b by its address.
local GROUP = [[
local function group_of_three(addresses)
  return rl.comm.group{ "trainer", "b", "c", addresses = addresses, timeout = 20 }
end
]]

-- What every rank does in a round, in whatever order the machine has it: call others, who call
-- back, while its own collective and that of others wait.
local ROUNDS = GROUP .. [[
local calls = 0
rpc.register("ping", function(from, depth)
  calls = calls + 1
  if depth == 0 then return 1 end
  return 1 + rpc.rpc_sync(from, "ping", NAME, depth - 1)
end)
local others = { trainer = { "b", "c" }, b = { "trainer", "c" }, c = { "trainer", "b" } }
function rounds(group, count)
  local answered = 0
  for round = 1, count do
    local futures = {}
    for i = 1, 4 do
      futures[i] = rpc.rpc_async(others[NAME][i % 2 + 1], "ping", NAME, i % 3)
    end
    if math.random(3) == 1 then rpc.sleep(math.random() * 0.003) end
    -- Of one element, or long enough for every rank to own a part of it.
    local n = round % 5 == 0 and 50000 or 1
    local x = rl.full({ n }, group.rank + round)
    if round % 2 == 0 then
      local sum = group:all_reduce(x, { name = "grads", async = true })
      rpc.wait_all(futures)
      sum:wait()
    else
      group:all_reduce(x, { name = "grads" })
    end
    assert(x[1]:item() == 3 + 3 * round and x[n]:item() == 3 + 3 * round)
    for i = 1, 4 do
      assert(futures[i]:wait() == 1 + i % 3)
      answered = answered + 1
    end
  end
  return answered, calls
end
]]

local MEMBER = ROUNDS .. [[
local group
rpc.register("group", function(addresses) group = group_of_three(addresses) end)
rpc.register("rounds", function(count) return rounds(group, count) end)
rpc.register("reduce", function(n, timeout)
  local x = rl.full({ n }, group.rank + 1)
  local ok, err = pcall(group.all_reduce, group, x, { name = "grads", timeout = timeout })
  assert(x[1]:item() == (ok and 6 or group.rank + 1), "a failed collective changed its tensor")
  return ok and "done" or tostring(err)
end)
rpc.register("works", function() collectgarbage() return require("rlengine.core").comm.works() end)
]]

-- The same functions in this process, as "trainer".
local function here(text, result)
  local env = setmetatable({ rl = rl, rpc = rpc, NAME = "trainer" }, { __index = _G })
  local chunk = assert((loadstring or load)(text .. "return " .. result))
  return (setfenv and setfenv(chunk, env) or chunk)()
end

local function start(world)
  local folder = world.group.folder
  local addresses = { trainer = world.group.address, b = ("unix:%s/b.sock"):format(folder) }
  local members = {}
  for _, name in ipairs { "b", "c" } do
    members[name] = world:start(name, MEMBER, ("listen = 'unix:%s/%s.sock'"):format(folder, name))
  end
  world:join("b", "c")
  for _, name in ipairs { "b", "c" } do rpc.rpc_sync(name, "group", addresses) end
  return here(GROUP, "group_of_three")(), members
end

local function nothing_is_left(...)
  collectgarbage()
  assert.equal(0, core.comm.works())
  for _, name in ipairs { ... } do assert.equal(0, (rpc.rpc_sync(name, "works"))) end
end

local function reduce(group, n, timeout)
  local x = rl.full({ n }, group.rank + 1)
  local ok, err = pcall(group.all_reduce, group, x, { name = "grads", timeout = timeout })
  assert.equal(ok and 6 or group.rank + 1, x[1]:item())
  return ok and "done" or tostring(err)
end

describe("collectives", function()
  it("F44: beside calls of all kinds they end, every time", faults.row(function(world)
    local group = start(world)
    local count = faults.count(100, 1000)
    local since = faults.clock()
    local theirs = {}
    for i, name in ipairs { "b", "c" } do
      theirs[i] = world:watch(rpc.to(name):rpc_async{ timeout = 600 }:rounds(count))
    end
    local answered = here(ROUNDS, "rounds")(group, count)
    for _, future in ipairs(theirs) do answered = answered + future:wait() end
    local took = faults.clock() - since
    assert.equal(3 * 4 * count, answered)
    nothing_is_left("b", "c")
    figure("F44", "%d collectives of 3 workers beside %d calls that call back: 0 hangs, %.2f ms "
      .. "each", count, answered, took / count * 1000)
  end))

  it("F14: a rank that is silent is named at every other one", faults.row(function(world)
    local group = start(world)
    local words = 'DEADLINE_EXCEEDED: allreduce "grads" not finished after 0.5 s (rank 1 silent?)'
    for _, n in ipairs { 1, 100000 } do
      local since = faults.clock()
      local theirs = world:watch(rpc.rpc_async("c", "reduce", n, 0.5))
      assert.equal(words, reduce(group, n, 0.5))
      assert.equal(words, (theirs:wait()))
      local took = faults.clock() - since
      assert.is_true(took >= 0.5 and took < 5, took)
      -- It comes too late, and hears of it at once; then all goes on.
      assert.equal(words, (rpc.rpc_sync("b", "reduce", n, 10)))
      theirs = { rpc.rpc_async("b", "reduce", n), rpc.rpc_async("c", "reduce", n) }
      assert.equal("done", reduce(group, n))
      assert.equal("done", (theirs[1]:wait()))
      assert.equal("done", (theirs[2]:wait()))
      if n > 1 then
        figure("F14", "a silent rank is named by both others %.2f s after they came, who had 0.5 s",
          took)
      end
    end
    nothing_is_left("b", "c")
  end))

  it("F15: a rank that is killed is named at every other one", faults.row(function(world)
    local group, members = start(world)
    local words = 'UNAVAILABLE: allreduce "grads": rank 1 (worker "b") was lost: end of stream'
    local theirs = world:watch(rpc.rpc_async("c", "reduce", 100000))
    local own = world:watch(group:all_reduce(rl.zeros(100000), { name = "grads", async = true }))
    rpc.sleep(0.05) -- both wait for b by now
    local killed = members.b:kill()
    assert.equal(words, tostring(faults.fails(own.wait, own)))
    assert.equal(words, (theirs:wait()))
    figure("F15", "both others know %.1f ms after the kill", (faults.clock() - killed) * 1000)
    world:logged('worker "b" lost: end of stream')
    -- It stays so, at once, until there is another group.
    assert.equal(words, reduce(group, 1))
    nothing_is_left("c")
  end))
end)
