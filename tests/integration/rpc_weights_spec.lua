-- Weights for many observers: versions that are published and followed, pieces that come back,
-- and large messages beside small ones.
package.path = "tests/support/?.lua;" .. package.path
local rl = require "rlengine"
local fails = require "fails"
local core = require "rlengine.core"
local workers = require "workers"
local figure = require "figure"
local signal = require "posix.signal"
local rpc = rl.rpc

local full = os.getenv "RLE_FULL"

local OBSERVER = [[
local net = rl.nn.Linear(4, 2)
local weights
rpc.register("follow", function(name)
  weights = rpc.follow("test", name or "policy", net)
end)
rpc.register("update", function()
  local changed = weights:update()
  return weights.version, changed, net.weight:sum():item(), net.bias[1]:item()
end)
rpc.register("look", function() return weights.version, net.weight:sum():item() end)
rpc.register("wait", function(timeout) return weights:wait { timeout = timeout } end)
rpc.register("close", function() weights:close() end)
rpc.register("spin", function(seconds)
  local until_ = os.clock() + seconds
  while os.clock() < until_ do end
end)
rpc.register("nothing", function() end)
]]

local function fill(net, value)
  rl.no_grad(function()
    for _, p in ipairs(net:parameters()) do p:fill_(value) end
  end)
end

-- A net of about that many bytes.
local function large(bytes)
  return { a = rl.zeros(math.floor(bytes / 8)), b = rl.zeros(math.floor(bytes / 8)) }
end

local LARGE = [[
local net = { a = rl.zeros(%d), b = rl.zeros(%d) }
local weights
rpc.register("update", function()
  weights = weights or rpc.follow("test", "large", net)
  weights:update()
  return weights.version, net.a[1]:item(), net.b[-1]:item()
end)
rpc.register("nothing", function() end)
]]

local function large_observer(bytes)
  return LARGE:format(math.floor(bytes / 8), math.floor(bytes / 8))
end

describe("weights", function()
  local group
  before_each(function() group = workers.group() end)
  -- Script lines that make tensors stay known.
  after_each(function() group:finish { blocks = true } end)

  it("are put into the net when it says so, the newest of them", function()
    local net = rl.nn.Linear(4, 2)
    fill(net, 1)
    local weights = rpc.weights("policy", net)
    assert.equal(1, weights.version)
    assert.equal('Weights("policy", version 1)', tostring(weights))
    for i = 1, 2 do
      group:start("o" .. i, OBSERVER)
      rpc.rpc_sync("o" .. i, "follow")
      assert.same({ 1, true, 8, 1 }, { rpc.rpc_sync("o" .. i, "update") })
    end
    for version = 2, 20 do
      fill(net, version)
      assert.equal(version, weights:publish())
    end
    assert.is_true(workers.eventually(function() return weights:info().waiting == 2 end))
    assert.same({ 1, 8 }, { rpc.rpc_sync("o1", "look") }) -- not by itself
    for i = 1, 2 do
      local version, changed, sum = rpc.rpc_sync("o" .. i, "update")
      assert.same({ 20, true, 160 }, { version, changed, sum })
      assert.same({ 20, false, 160, 20 }, { rpc.rpc_sync("o" .. i, "update") })
    end
    local info = weights:info()
    assert.equal(20, info.version)
    assert.is_true(info.sent <= 40)
    -- Another net under the same name goes on counting.
    local other = rl.nn.Linear(4, 2)
    fill(other, -1)
    weights = rpc.weights("policy", other)
    assert.equal(21, weights.version)
    assert.equal(21, rpc.rpc_sync("o1", "wait", 5))
    assert.same({ 21, -8 }, { rpc.rpc_sync("o1", "look") })
    weights:close()
    assert.equal("FAILED_PRECONDITION", fails(weights.publish, weights).code)
  end)

  it("wait for the first version, and say when none comes", function()
    group:start("o", OBSERVER)
    rpc.rpc_sync("o", "follow", "later")
    local future = rpc.rpc_async("o", "update")
    rpc.sleep(0.05)
    assert.is_false(future:done())
    rpc.weights("later", rl.nn.Linear(4, 2))
    assert.equal(1, (future:wait()))
    local err = fails(rpc.rpc_sync, "o", "wait", 0.1)
    assert.matches('worker "test" has published no newer "later" in 0.100 s', err.message)
    rpc.rpc_sync("o", "follow", "never")
    err = fails(rpc.rpc_sync, "o", "wait", 0.1)
    assert.matches('DEADLINE_EXCEEDED: .*worker "test" has published no "never" in 0.100 s',
      tostring(err))
    err = fails(rpc.follow, "test", "policy", rl.nn.Linear(1, 1))
    assert.equal("FAILED_PRECONDITION", err.code)
    assert.equal("INVALID_ARGUMENT", fails(rpc.weights, "policy", 7).code)
    assert.matches("tensors under names", fails(rpc.weights, "policy", { 7 }).message)
  end)

  it("that do not fit are refused whole, with what does not", function()
    local cases = {
      { { weight = rl.zeros(2, 4), bias = rl.zeros(3) }, '"bias" is f32[3] there and f32[2] here' },
      { { weight = rl.zeros(2, 4, { dtype = "f64" }), bias = rl.zeros(2) },
        '"weight" is f64[2,4] there and f32[2,4] here' },
      { { weight = rl.zeros(2, 4) }, 'they have no "bias", which is in the net here' },
      { { bias = rl.zeros(2) }, 'they have no "weight", which is in the net here' },
      { { weight = rl.zeros(2, 4), bias = rl.zeros(2), more = rl.zeros(1) },
        'they have "more" of f32[1], which is not in the net here' },
    }
    group:start("o", OBSERVER)
    for i, case in ipairs(cases) do
      rpc.weights("case" .. i, case[1])
      rpc.rpc_sync("o", "follow", "case" .. i)
      local err = fails(rpc.rpc_sync, "o", "update")
      assert.equal("INVALID_ARGUMENT", err.code)
      assert.is_truthy(tostring(err):find(('weights "case%d" of "test": %s'):format(i, case[2]), 1,
        true), tostring(err))
      assert.equal(0, (rpc.rpc_sync("o", "look")))
    end
    -- The next version that fits is taken.
    local good = rl.nn.Linear(4, 2)
    fill(good, 3)
    rpc.weights("case1", good)
    rpc.rpc_sync("o", "follow", "case1")
    assert.equal(24, (select(3, rpc.rpc_sync("o", "update"))))
    -- From whom, and how much.
    rpc.weights("ours", good, { from = "trainer_*" })
    rpc.rpc_sync("o", "follow", "ours")
    local err = fails(rpc.rpc_sync, "o", "update")
    assert.equal('"o" may not follow "ours" of "test"', err.message:match '"o" may.*')
    group:start("small", large_observer(1e6), "max_message = 100000,")
    rpc.weights("large", large(1e6))
    err = fails(rpc.rpc_sync, "small", "update")
    assert.matches('over the limit of 100000 bytes of worker "small" %(max_message%)', err.message)
  end)

  it("reach a worker that computes, and come to who is back", function()
    local net = rl.nn.Linear(4, 2)
    local weights = rpc.weights("policy", net)
    local o = group:start("o", OBSERVER)
    rpc.rpc_sync("o", "follow")
    local busy = rpc.rpc_async("o", "spin", 0.5)
    for version = 2, 30 do
      fill(net, version)
      weights:publish()
      rpc.sleep(0.01)
    end
    assert.is_true(workers.eventually(function() return weights:info().waiting == 1 end, 5))
    busy:wait()
    assert.equal(30, (rpc.rpc_sync("o", "update")))
    o:kill()
    assert.is_true(workers.eventually(function() return weights:info().waiting == 0 end))
    weights:publish()
    o:join()
    assert.is_true(workers.eventually(function()
      return not rpc.worker_info("o").connected
    end))
    group:start("o", OBSERVER)
    rpc.wait_for { "o" }
    rpc.rpc_sync("o", "follow")
    assert.equal(31, (rpc.rpc_sync("o", "update")))
    assert.equal(30 * 8, (select(3, rpc.rpc_sync("o", "update"))))
    rpc.rpc_sync("o", "close")
    assert.is_true(workers.eventually(function() return weights:info().waiting == 0 end))
  end)

  it("of a publisher that died and was started again count anew", function()
    local PUBLISHER = [[
      local net = { w = rl.zeros(100000) }
      local weights
      rpc.register("publish", function(value, times)
        net.w:fill_(value)
        weights = weights or rpc.weights("policy", net)
        for _ = 1, times do weights:publish() end
        return weights.version
      end)
    ]]
    local net = { w = rl.zeros(100000) }
    local weights = rpc.follow("p", "policy", net) -- before it is there
    local p = group:start("p", PUBLISHER)
    assert.equal(4, rpc.rpc_sync("p", "publish", 1, 3))
    assert.is_true(workers.eventually(function() return weights:update() and weights.version == 4
    end))
    assert.equal(1, net.w[-1]:item())
    p:kill()
    p:join()
    assert.is_true(workers.eventually(function() return not rpc.worker_info("p").connected end))
    assert.is_false(weights:update())
    assert.equal(1, net.w[-1]:item())
    group:start("p", PUBLISHER)
    rpc.wait_for { "p" }
    assert.equal(2, rpc.rpc_sync("p", "publish", 7, 1))
    assert.is_true(workers.eventually(function() return weights:update() and weights.version == 2
    end))
    assert.equal(7, net.w[-1]:item())
    weights:close()
    assert.equal("FAILED_PRECONDITION", fails(weights.update, weights).code)
  end)

  it("B21: cost nothing more after hundreds of versions, joins and deaths", function()
    local bytes = 200000
    local net = large(bytes)
    local weights = rpc.weights("large", net)
    group:start("stays", large_observer(bytes))
    rpc.rpc_sync("stays", "update")
    local held, most
    local rounds = full and 2000 or 300
    local comes
    for i = 1, rounds do
      net.a:fill_(i)
      weights:publish()
      if i % 50 == 0 then
        comes = group:start("comes" .. i, large_observer(bytes))
        if i % 100 == 0 then rpc.rpc_sync("comes" .. i, "update") end
        comes:kill()
        comes:join()
      end
      if i % 7 == 0 then
        local version, first = rpc.rpc_sync("stays", "update")
        assert.is_true(version <= i + 1 and first == version - 1)
      end
      if i > rounds / 2 then
        if i % 25 == 0 then collectgarbage() end
        local now = core.host_memory()
        held, most = held or now, math.max(most or 0, now)
      end
    end
    assert.is_true(workers.eventually(function()
      return weights:info().waiting == 1
    end))
    assert.equal(rounds + 1, (rpc.rpc_sync("stays", "update")))
    assert.is_true(most < held + 3 * bytes, ("%d, then %d"):format(held, most))
    figure("B21", "%d versions of %d bytes, joins and deaths: at most %+d bytes later on", rounds,
      bytes, most - held)
  end)

  it("F12: calls of others pass while weights go to who reads them and to who does not", function()
    local bytes, count = 4 * 2 ^ 20, full and 20000 or 1500
    local net = large(bytes)
    local weights = rpc.weights("large", net)
    local stopped
    for i = 1, 3 do stopped = group:start("o" .. i, large_observer(bytes)) end
    group:start("other", "rpc.register('nothing', function() end)")
    for i = 1, 3 do rpc.rpc_sync("o" .. i, "update") end
    -- Calls to a worker that follows nothing, while versions stream to so many: seconds, of the
    -- clock and of our processor time, that 99 % of them stayed below.
    local function p99(readers)
      local times, used, published = {}, {}, weights.version
      local i, versions = 0, readers > 0 and 5 or 0
      while i < count or weights.version < published + versions do
        i = i + 1
        if readers > 0 and weights:info().waiting >= readers then weights:publish() end
        local began, cpu = workers.now(), os.clock()
        rpc.rpc_sync("other", "nothing")
        times[i], used[i] = workers.now() - began, os.clock() - cpu
      end
      table.sort(times)
      table.sort(used)
      local at = math.ceil(.99 * i)
      return times[at] * 1e3, used[at] * 1e3
    end
    local quiet, quiet_cpu = p99(0)
    local before, before_cpu = p99(3)
    stopped:kill(signal.SIGSTOP)
    local meanwhile, meanwhile_cpu = p99(2)
    stopped:kill(signal.SIGCONT)
    figure("F12", "a call to another, p99: %.2f ms while 3 observers read 4 MiB versions, "
      .. "%.2f ms while one of them is stopped, %.2f ms without any; of the trainer's processor "
      .. "time %.2f, %.2f and %.2f ms", before, meanwhile, quiet, before_cpu, meanwhile_cpu,
      quiet_cpu)
    -- What holds the trainer is bounded, whoever reads; the clock tells of the machine as well.
    assert.is_true(meanwhile_cpu < 1.5 * before_cpu + 2, ("%.2f, %.2f"):format(before_cpu,
      meanwhile_cpu))
  end)

  it("F12: an observer that is stopped holds one version; the others do not notice", function()
    group:finish { blocks = true }
    group = workers.group { timeout = 600 } -- as long as it takes
    local bytes = 4 * 2 ^ 20
    local net = large(bytes)
    local weights = rpc.weights("large", net)
    local stopped = group:start("stopped", large_observer(bytes), "timeout = 600,")
    group:start("runs", large_observer(bytes))
    rpc.rpc_sync("stopped", "update")
    rpc.rpc_sync("runs", "update")
    stopped:kill(signal.SIGSTOP)
    local before, most, rounds = core.launch.usage().resident, 0, full and 1000 or 60
    for i = 2, rounds do
      net.a:fill_(i)
      weights:publish()
      assert.is_true(workers.eventually(function()
        return (rpc.rpc_sync("runs", "update")) == i
      end))
      most = math.max(most, core.launch.usage().resident - before)
    end
    assert.is_true(most < 64 * 2 ^ 20)
    figure("F12", "%d versions of 4 MiB, one of 2 observers stopped: the trainer grew by %.1f MiB",
      rounds, most / 2 ^ 20)
    stopped:kill(signal.SIGCONT)
    assert.is_true(workers.eventually(function()
      return (rpc.rpc_sync("stopped", "update")) == rounds
    end))
  end)

  it("of a stale piece are seen, and counted", function()
    local weights = rpc.weights("policy", rl.nn.Linear(4, 2), { max_lag = 2, version = 10 })
    assert.equal(11, weights.version)
    for _ = 1, 3 do weights:publish() end
    assert.is_true(weights:accepts(14))
    assert.is_true(weights:accepts { version = 12 })
    assert.is_false(weights:accepts { version = 11 })
    assert.is_false(weights:accepts(15)) -- of another life
    assert.equal(2, weights.stale)
    assert.equal("INVALID_ARGUMENT", fails(weights.accepts, weights, "x").code)
  end)

  it("refuse options that make no sense", function()
    local net = { w = rl.zeros(2) }
    assert.equal("rpc.weights: version must be a whole number from 0, got 1.5",
      fails(rpc.weights, "policy", net, { version = 1.5 }).message)
    assert.equal("rpc.weights: max_lag must be a number of versions from 0, got -1",
      fails(rpc.weights, "policy", net, { max_lag = -1 }).message)
  end)

  it("may be closed more than once", function()
    local net = { w = rl.zeros(2) }
    local weights, first = rpc.weights("policy", net), rpc.follow("nobody", "policy", net)
    weights:close()
    weights:close()
    first:close()
    local second = rpc.follow("nobody", "policy", net)
    first:close()
    local third = rpc.follow("nobody", "policy", net)
    assert.equal(second.shared, third.shared)
    second:close()
    third:close()
  end)
end)

describe("pieces", function()
  local group
  before_each(function() group = workers.group() end)
  -- Script lines that make tensors stay known.
  after_each(function() group:finish { blocks = true } end)

  it("are sent whole, with the version that acted", function()
    local net = rl.nn.Linear(4, 2)
    local weights = rpc.weights("policy", net)
    local pieces = {}
    rpc.register("report", function(piece) pieces[#pieces + 1] = piece end)
    group:start("o", [[
      local net = rl.nn.Linear(4, 2)
      local env = rl.env.make "CartPole-v1"
      env:reset { seed = 1 }
      local function play(rollout, steps)
        local state = rollout:start((env:reset()))
        for _ = 1, steps do
          local m = rl.distributions.Categorical { logits = net(state) }
          local action = m:sample()
          local reward, terminated, truncated
          state, reward, terminated, truncated = env:step(action:item())
          if rollout:add { action = action, log_prob = m:log_prob(action), reward = reward,
            terminated = terminated, truncated = truncated, observation = state } then
            rpc.rpc_sync("test", "report", rollout:take())
          end
          if terminated or truncated then
            if not rollout.length then return end
            state = rollout:start((env:reset()))
          end
        end
      end
      local follow
      rpc.register("episode", function()
        follow = rpc.follow("test", "policy", net)
        play(rl.rollout.new { weights = follow }, 1000)
      end)
      rpc.register("unroll", function(length, steps)
        local rollout = rl.rollout.new { weights = follow, length = length }
        play(rollout, steps)
        rollout:clear()
      end)
    ]])
    rpc.rpc_sync("o", "episode")
    local piece = pieces[1]
    local steps = piece.steps
    assert.equal(1, piece.version)
    assert.same({ steps, 4 }, piece.observations.shape)
    assert.same({ 4 }, piece.last.shape)
    for _, name in ipairs { "actions", "log_probs", "rewards", "terminated", "truncated" } do
      assert.same({ steps }, piece[name].shape, name)
    end
    assert.equal("bool", tostring(piece.terminated.dtype))
    assert.equal(steps, piece.rewards:sum():item())
    assert.is_true(piece.terminated[-1]:item() == true)
    assert.is_false(piece.terminated[1]:item() == true)
    -- The log-probabilities are those of that version.
    local again = rl.distributions.Categorical { logits = net(piece.observations) }
      :log_prob(piece.actions)
    assert.is_true((again - piece.log_probs):abs():max():item() < 1e-5)
    weights:publish()
    pieces = {}
    rpc.rpc_sync("o", "unroll", 16, 100)
    assert.equal(6, #pieces)
    for i, each in ipairs(pieces) do
      assert.equal(16, each.steps)
      assert.equal(2, each.version)
      -- What was seen last is what the next piece begins with, unless an episode ended there.
      local after = pieces[i + 1]
      local ended = each.terminated[-1]:item() == true
      if after and not ended then
        assert.is_true((after.observations[1] - each.last):abs():max():item() == 0)
      end
    end
  end)
end)
