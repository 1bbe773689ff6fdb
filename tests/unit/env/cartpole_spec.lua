-- rl.env.make and CartPole from Lua: starts, traces, episode lengths, order of calls, actions.
local core = require "rlengine.core"
local rl = require "rlengine"

local function failure(fn, ...)
  local ok, err = pcall(fn, ...)
  assert.is_false(ok)
  assert.is_truthy(core.error.is(err), tostring(err))
  return err
end

local function near(want, got, tolerance)
  assert.is_true(math.abs(want - got) <= tolerance, ("%.9f is not %.9f"):format(got, want))
end

-- Plays one episode; returns its length and how it ended.
local function play(env, seed, policy)
  local obs = env:reset{ seed = seed }
  local length, reward, terminated, truncated = 0
  repeat
    local action = policy(length, obs:totable())
    obs, reward, terminated, truncated = env:step(action)
    assert.equal(1, reward)
    length = length + 1
  until terminated or truncated
  return length, terminated, truncated
end

describe("CartPole-v1", function()
  it("starts as in Gymnasium", function()
    local starts = {
      [0] = { .01369617, -.02302133, -.04590265, -.04834723 },
      [1] = { .00118216, .04504637, -.03558404, .04486495 },
      [2] = { -.02383879, -.02015088, .03142257, -.04080841 },
      [42] = { .02739560, -.00611216, .03585979, .01973680 },
    }
    local env = rl.env.make "CartPole-v1"
    for seed, want in pairs(starts) do
      local obs, info = env:reset{ seed = seed }
      assert.same({ 4 }, obs.shape)
      assert.equal("f32", obs.dtype)
      assert.equal(rl.default_device(), obs.device)
      assert.is_nil(next(info))
      for i, v in ipairs(obs:totable()) do near(want[i], v, 0.5001e-8) end
    end
  end)

  it("follows the trace of alternating pushes", function()
    local trace = {
      { .027273362, -.201729537, .036254528, .323514752 },
      { .023238771, -.007142078, .042724823, .042481862 },
      { .023095929, -.202849821, .043574460, .348332859 },
      { .019038933, -.008373846, .050541117, .069702633 },
      { .018871456, -.204182590, .051935170, .377893462 },
      { .014787804, -.009835217, .059493039, .102027545 },
    }
    local env = rl.env.make "CartPole-v1"
    env:reset{ seed = 42 }
    for t, want in ipairs(trace) do
      local obs, reward, terminated, truncated, info = env:step((t - 1) % 2)
      -- the trace is the f64 state in nine decimals, the observation that state in f32
      for i, v in ipairs(obs:totable()) do
        near(want[i], v, 0.5e-9 + math.abs(want[i]) * 2 ^ -24)
      end
      assert.equal(1, reward)
      assert.is_false(terminated)
      assert.is_false(truncated)
      assert.equal("table", type(info))
    end
  end)

  it("lasts as long as in Gymnasium under four policies", function()
    local seeds = { 0, 1, 2, 42, 123 }
    local policies = {
      { { 8, 9, 10, 10, 9 }, function() return 1 end },
      { { 39, 48, 27, 23, 89 }, function(t) return t % 2 end },
      { { 41, 51, 35, 55, 53 }, function(_, s) return s[3] > 0 and 1 or 0 end },
      { { 500, 500, 500, 500, 500 }, function(_, s) return s[3] + 0.5 * s[4] > 0 and 1 or 0 end },
    }
    local env = rl.env.make "CartPole-v1"
    for p, policy in ipairs(policies) do
      for i, seed in ipairs(seeds) do
        local length, terminated, truncated = play(env, seed, policy[2])
        assert.equal(policy[1][i], length)
        assert.equal(p ~= 4, terminated)
        assert.equal(p == 4, truncated)
      end
    end
    local v0 = rl.env.make "CartPole-v0"
    assert.equal(200, (play(v0, 0, policies[4][2])))
  end)

  it("gives an observation of its own at each step", function()
    local env = rl.env.make "CartPole-v1"
    local first = env:reset{ seed = 1 }
    local before = first:totable()
    local second = env:step(1)
    env:step(0)
    assert.same(before, first:totable())
    assert.are_not.same(before, second:totable())
  end)

  it("goes on in its stream when reset without a seed", function()
    local a, b = rl.env.make "CartPole-v1", rl.env.make "CartPole-v1"
    local seen = {}
    for i = 1, 3 do
      local opts = i == 1 and { seed = 9 } or nil
      local start = a:reset(opts):totable()
      assert.same(start, b:reset(opts):totable())
      seen[i] = start
    end
    assert.are_not.same(seen[1], seen[2])
    assert.are_not.same(seen[2], seen[3])
    assert.same(seen[1], a:reset{ seed = 9 }:totable())
    -- without any seed two environments start apart
    local c, d = rl.env.make "CartPole-v1", rl.env.make "CartPole-v1"
    assert.are_not.same(c:reset():totable(), d:reset():totable())
  end)

  it("has the spec and spaces of Gymnasium", function()
    local env = rl.env.make "CartPole-v1"
    assert.same({ id = "CartPole-v1", max_episode_steps = 500, reward_threshold = 475 }, env.spec)
    assert.equal("Discrete(2)", tostring(env.action_space))
    assert.equal("Box([-4.8, -inf, -0.418879, -inf], [4.8, inf, 0.418879, inf], {4}, f32)",
      tostring(env.observation_space))
    assert.equal(env, env.unwrapped)
    assert.same({ id = "CartPole-v0", max_episode_steps = 200, reward_threshold = 195 },
      rl.env.make("CartPole-v0").spec)
  end)

  it("takes another time limit", function()
    local env = rl.env.make("CartPole-v1", { max_episode_steps = 3 })
    assert.equal(3, env.spec.max_episode_steps)
    local length, terminated, truncated = play(env, 0, function(t) return t % 2 end)
    assert.same({ 3, false, true }, { length, terminated, truncated })
    local endless = rl.env.make("CartPole-v1", { max_episode_steps = 0 })
    assert.is_nil(endless.spec.max_episode_steps)
    length, terminated, truncated = play(endless, 0, function(_, s)
      return s[3] + 0.5 * s[4] > 0 and 1 or 0
    end)
    assert.is_true(length > 500)
    assert.same({ true, false }, { terminated, truncated }) -- it drifts off the track
    assert.equal("INVALID_ARGUMENT",
      failure(rl.env.make, "CartPole-v1", { max_episode_steps = -1 }).code)
    assert.equal("INVALID_ARGUMENT",
      failure(rl.env.make, "CartPole-v1", { max_episode_steps = 2.5 }).code)
  end)

  it("prints its state", function()
    local env = rl.env.make "CartPole-v1"
    assert.equal("CartPole-v1 (not reset)", tostring(env))
    env:reset{ seed = 0 }
    env:step(1)
    assert.equal("CartPole-v1 (running, step 1 of at most 500)", tostring(env))
    for _ = 2, 8 do env:step(1) end
    assert.equal("CartPole-v1 (ended, step 8 of at most 500)", tostring(env))
    env:close()
    assert.equal("CartPole-v1 (closed)", tostring(env))
  end)
end)

describe("an environment", function()
  local env
  before_each(function()
    env = rl.env.make "CartPole-v1"
    env:reset{ seed = 0 }
  end)

  it("refuses bad actions by space, value, environment and step", function()
    env:step(1)
    local cases = {
      { -1, "action -1 is not in Discrete(2)" },
      { 2, "action 2 is not in Discrete(2)" },
      { 0.5, "action 0.5 is not in Discrete(2)" },
      { 0 / 0, "nan is not in Discrete(2)" },
      { math.huge, "action inf is not in Discrete(2)" },
      { 1e300, "is not in Discrete(2)" },
      { "left", 'action "left" is not in Discrete(2)' },
      { "1", 'action "1" is not in Discrete(2)' },
      { true, "action true is not in Discrete(2)" },
      { {}, "action a table is not in Discrete(2)" },
      { rl.tensor{ 1, 0 }, "action a tensor f32[2] is not in Discrete(2)" },
      { rl.tensor(1), "action a tensor f32[] is not in Discrete(2)" },
      { print, "action a function is not in Discrete(2)" },
    }
    for _, case in ipairs(cases) do
      local err = failure(env.step, env, case[1])
      assert.equal("INVALID_ARGUMENT", err.code)
      assert.is_truthy(err.message:find(case[2], 1, true), err.message)
      assert.is_truthy(err.message:find("CartPole-v1: step 2: ", 1, true), err.message)
      assert.is_truthy(err.message:find("an integer from 0 to 1", 1, true), err.message)
    end
    local err = failure(env.step, env)
    assert.is_truthy(err.message:find("action nil is not in Discrete(2)", 1, true), err.message)
    -- nothing was lost: the trajectory goes on as if they had not been tried
    local other = rl.env.make "CartPole-v1"
    other:reset{ seed = 0 }
    other:step(1)
    assert.same(other:step(0):totable(), env:step(0):totable())
  end)

  it("takes an integer tensor of one element", function()
    local other = rl.env.make "CartPole-v1"
    other:reset{ seed = 0 }
    for _, dtype in ipairs{ "i64", "i32", "u8" } do
      local one, zero = rl.tensor(1, { dtype = dtype }), rl.tensor({ 0 }, { dtype = dtype })
      for _, action in ipairs{ one, zero } do
        assert.same(other:step(action:item()):totable(), env:step(action):totable())
      end
    end
    assert.is_truthy(failure(env.step, env, rl.tensor(2, { dtype = "i64" })).message
      :find("action 2 is not in Discrete(2)", 1, true))
  end)

  it("says what to do when no episode runs", function()
    local fresh = rl.env.make "CartPole-v1"
    local err = failure(fresh.step, fresh, 1)
    assert.equal("FAILED_PRECONDITION", err.code)
    assert.is_truthy(err.message:find "call reset before the first step")
    for _ = 1, 8 do env:step(1) end
    err = failure(env.step, env, 1)
    assert.equal("FAILED_PRECONDITION", err.code)
    assert.is_truthy(err.message:find("terminated at step 8", 1, true))
    assert.is_truthy(err.message:find("call reset before the next step", 1, true))
    env:reset()
    env:step(1)
  end)

  it("refuses bad seeds and unknown options", function()
    for _, seed in ipairs{ -1, 0.5, 0 / 0, math.huge, 2 ^ 60 } do
      local err = failure(env.reset, env, { seed = seed })
      assert.equal("INVALID_ARGUMENT", err.code)
      assert.is_truthy(err.message:find("seed must be an integer from 0", 1, true), err.message)
    end
    assert.is_truthy(failure(env.reset, env, { sed = 1 }).message
      :find('did you mean "seed"', 1, true))
    assert.equal("INVALID_ARGUMENT", failure(env.reset, env, 42).code)
    assert.equal("INVALID_ARGUMENT", failure(env.reset, env, { seed = "7" }).code)
  end)

  it("writes into a tensor of the script's", function()
    local other = rl.env.make "CartPole-v1"
    local obs = other:reset{ seed = 0 }
    for i = 1, 5 do
      local version = core.tensor.version and core.tensor.version(obs)
      local reward, terminated, truncated, info = other:step_into(i % 2, obs)
      local fresh = env:step(i % 2)
      assert.same(fresh:totable(), obs:totable())
      assert.same({ 1, false, false }, { reward, terminated, truncated })
      assert.is_nil(next(info))
      if version then assert.is_true(core.tensor.version(obs) > version) end
    end
    -- a row of a matrix, and a column, which is not contiguous
    local rows, columns = rl.zeros(2, 4), rl.zeros(4, 2)
    env:reset{ seed = 3 }
    other:reset{ seed = 3 }
    env:step_into(1, rows:select(1, 2))
    other:step_into(1, columns:select(2, 1))
    assert.same({ 0, 0, 0, 0 }, rows:totable()[1])
    for i = 1, 4 do
      assert.equal(rows:totable()[2][i], columns:totable()[i][1])
      assert.equal(0, columns:totable()[i][2])
    end
    for _, bad in ipairs{ rl.zeros(5), rl.zeros(1, 4), rl.zeros(4, { dtype = "f64" }), 1 } do
      assert.equal("INVALID_ARGUMENT", failure(env.step_into, env, 1, bad).code)
    end
    local leaf = rl.zeros(4, { requires_grad = true })
    assert.equal("FAILED_PRECONDITION", failure(env.step_into, env, 1, leaf).code)
  end)

  it("closes once and for all", function()
    env:close()
    env:close()
    for _, call in ipairs{ "reset", "step", "ffi" } do
      local err = failure(env[call], env, call == "step" and 1 or nil)
      assert.equal("FAILED_PRECONDITION", err.code)
      assert.is_truthy(err.message:find "closed")
    end
  end)

  it("has an info that cannot be written to", function()
    local _, _, _, _, info = env:step(1)
    assert.is_nil(info.anything)
    local err = failure(function() info.mine = 1 end)
    assert.is_truthy(err.message:find("a table of your own", 1, true))
  end)
end)

describe("rl.env.make", function()
  it("names the nearest of an unknown id", function()
    local err = failure(rl.env.make, "CartPol-v1")
    assert.equal("NOT_FOUND", err.code)
    assert.is_truthy(err.message:find('did you mean "CartPole-v1"', 1, true), err.message)
    err = failure(rl.env.make, "Something entirely different")
    assert.is_truthy(err.message:find("CartPole-v0, CartPole-v1", 1, true), err.message)
    assert.equal("INVALID_ARGUMENT", failure(rl.env.make).code)
    assert.equal("INVALID_ARGUMENT", failure(rl.env.make, 1).code)
    assert.is_truthy(failure(rl.env.make, "CartPole-v1", { max_episode_step = 1 }).message
      :find('did you mean "max_episode_steps"', 1, true))
  end)

  it("lists what there is", function()
    local ids = rl.env.list()
    assert.same({ "CartPole-v0", "CartPole-v1" }, { ids[1], ids[2] })
  end)
end)

if rawget(_G, "jit") then
  describe("env:ffi()", function()
    it("steps like env:step", function()
      local env, other = rl.env.make "CartPole-v1", rl.env.make "CartPole-v1"
      local view = env:ffi()
      for seed = 1, 20 do
        view:reset{ seed = seed }
        local obs = other:reset{ seed = seed }
        local over, t = false, 0
        while not over do
          for i, v in ipairs(obs:totable()) do assert.equal(v, view.obs[i - 1]) end
          local action = (t * seed) % 3 == 0 and 1 or 0
          local reward, terminated, truncated = view:step(action)
          local other_reward, other_terminated, other_truncated
          obs, other_reward, other_terminated, other_truncated = other:step(action)
          assert.same({ other_reward, other_terminated, other_truncated },
            { reward, terminated, truncated })
          over, t = terminated or truncated, t + 1
          assert.equal(t, view:elapsed())
        end
      end
    end)

    it("raises the same errors", function()
      local env = rl.env.make "CartPole-v1"
      local view = env:ffi()
      assert.equal("FAILED_PRECONDITION", failure(view.step, view, 1).code)
      view:reset{ seed = 0 }
      for _, action in ipairs{ -1, 2, 0.5, 0 / 0, 1e300, "left", {}, true } do
        local err = failure(view.step, view, action)
        assert.equal("INVALID_ARGUMENT", err.code)
        assert.is_truthy(err.message:find("CartPole-v1: step 1: ", 1, true), err.message)
      end
      assert.equal("INVALID_ARGUMENT", failure(view.step, view).code)
      assert.equal("INVALID_ARGUMENT", failure(view.reset, view, { seed = -5 }).code)
      view:step(rl.tensor(1, { dtype = "i64" }))
      env:step(1) -- the view and the environment are one
      assert.equal(2, view:elapsed())
      env:close()
      assert.equal("FAILED_PRECONDITION", failure(view.step, view, 1).code)
      assert.equal("FAILED_PRECONDITION", failure(view.reset, view).code)
    end)

    it("keeps the environment alive", function()
      local view = rl.env.make("CartPole-v1"):ffi()
      for _ = 1, 3 do collectgarbage() end
      view:reset{ seed = 0 }
      for _ = 1, 8 do view:step(1) end
      assert.equal("FAILED_PRECONDITION", failure(view.step, view, 1).code)
    end)
  end)
end

describe("memory", function()
  it("comes back after many environments and episodes", function()
    local function work()
      for _ = 1, 50 do
        local env = rl.env.make "CartPole-v1"
        env:reset{ seed = 1 }
        pcall(env.step, env, 7)
        local over = false
        while not over do
          local _, _, terminated, truncated = env:step(1)
          over = terminated or truncated
        end
      end
      for _ = 1, 3 do collectgarbage() end
    end
    work()
    local bytes, blocks = core.host_memory()
    for _ = 1, 3 do work() end
    local bytes_now, blocks_now = core.host_memory()
    assert.equal(blocks, blocks_now)
    assert.is_true(bytes_now <= bytes + 16 * blocks) -- malloc rounds a block up to so much
  end)
end)
