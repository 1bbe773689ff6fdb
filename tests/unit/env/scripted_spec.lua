-- Environments written in Lua: registering, the time limit, what they may return, errors.
local core = require "rlengine.core"
local rl = require "rlengine"

local function failure(fn, ...)
  local ok, err = pcall(fn, ...)
  assert.is_false(ok)
  assert.is_truthy(core.error.is(err), tostring(err))
  return err
end

local function has(err, text)
  assert.is_truthy(err.message:find(text, 1, true), err.message)
end

local serial = 0
-- A fresh id each time, so that tests do not meet.
local function register(changes)
  serial = serial + 1
  local id = ("Test%d-v0"):format(serial)
  local definition = {
    observation_space = rl.env.Box{ low = 0, high = 10, shape = { 1 } },
    action_space = rl.env.Discrete(2),
    max_episode_steps = 100,
    reset = function(self)
      self.x = 0
      return { self.x }
    end,
    step = function(self, action)
      self.x = math.max(0, self.x + (action == 1 and 1 or -1))
      return { self.x }, self.x >= 10 and 1 or -0.1, self.x >= 10, false
    end,
  }
  for key, value in pairs(changes or {}) do
    if value == "none" then definition[key] = nil else definition[key] = value end
  end
  rl.env.register(id, definition)
  return id
end

describe("an environment written in Lua", function()
  it("runs as the manual shows", function()
    rl.env.register("Corridor-v0", {
      observation_space = rl.env.Box{ low = 0, high = 10, shape = { 1 } },
      action_space = rl.env.Discrete(2), max_episode_steps = 100,
      reset = function(self, options) self.x = 0; return { self.x } end, -- luacheck: ignore
      step = function(self, action)
        self.x = math.max(0, self.x + (action == 1 and 1 or -1))
        return { self.x }, self.x >= 10 and 1 or -0.1, self.x >= 10, false
      end,
    })
    rl.env.check("Corridor-v0", { quiet = true })
    local env = rl.env.make "Corridor-v0"
    local obs, info = env:reset()
    assert.same({ 1 }, obs.shape)
    assert.equal("f32", obs.dtype)
    assert.same({}, info)
    local total, reward, terminated, truncated = 0
    for step = 1, 10 do
      obs, reward, terminated, truncated, info = env:step(1)
      assert.equal(step, obs:item())
      assert.same({}, info)
      assert.equal(step == 10, terminated)
      assert.is_false(truncated)
      total = total + reward
    end
    assert.is_true(math.abs(total - 0.1) < 1e-12)
    assert.equal("Corridor-v0 (ended, step 10 of at most 100)", tostring(env))
    local found = false
    for _, id in ipairs(rl.env.list()) do found = found or id == "Corridor-v0" end
    assert.is_true(found)
  end)

  it("is truncated at its limit, with terminated apart", function()
    local env = rl.env.make(register())
    env:reset()
    for step = 1, 100 do
      local _, _, terminated, truncated = env:step(0)
      assert.is_false(terminated)
      assert.equal(step == 100, truncated)
    end
    local err = failure(env.step, env, 0)
    assert.equal("FAILED_PRECONDITION", err.code)
    has(err, "truncated at step 100")
    has(err, "call reset before the next step")
    local short = rl.env.make(register(), { max_episode_steps = 10 })
    short:reset()
    for _ = 1, 9 do short:step(1) end
    local _, _, terminated, truncated = short:step(1)
    assert.same({ true, true }, { terminated, truncated })
    local endless = rl.env.make(register{ max_episode_steps = "none" })
    assert.is_nil(endless.spec.max_episode_steps)
    endless:reset()
    for _ = 1, 300 do assert.is_false((select(4, endless:step(0)))) end
  end)

  it("may truncate by itself and leave out what it does not need", function()
    local env = rl.env.make(register{
      step = function() return { 1 }, 0, false, true, { why = "wind" } end,
    })
    env:reset()
    local _, _, terminated, truncated, info = env:step(0)
    assert.same({ false, true, "wind" }, { terminated, truncated, info.why })
    env = rl.env.make(register{ step = function() return { 1 }, 0, false end })
    env:reset()
    assert.is_false((select(4, env:step(0))))
  end)

  it("gets options and seeds", function()
    local seen
    local env = rl.env.make(register{
      reset = function(self, options)
        seen = options
        return { self.rng:uniform(0, 10) }, { level = options.level }
      end,
    })
    local obs, info = env:reset{ seed = 5, level = 3 }
    assert.equal(5, seen.seed)
    assert.equal(3, info.level)
    local next_obs = env:reset()
    assert.same({}, seen)
    assert.equal(obs:item(), env:reset{ seed = 5 }:item())
    assert.equal(next_obs:item(), env:reset():item())
    assert.are_not.equal(obs:item(), next_obs:item())
    -- the stream is numpy's
    assert.is_true(math.abs(rl.env.rng(5):uniform(0, 10) - obs:item()) < 1e-6)
    assert.equal("INVALID_ARGUMENT", failure(env.reset, env, { seed = -1 }).code)
    assert.equal("INVALID_ARGUMENT", failure(env.reset, env, 5).code)
  end)

  it("has init, close, methods and a self of its own", function()
    local closed = 0
    local id = register{
      init = function(self, options) self.length = options.length or 4 end,
      reset = function(self) return self:observe(0) end,
      observe = function(self, x) return { x / self.length } end,
      step = function(self) return self:observe(1), 0, true, false end,
      close = function() closed = closed + 1 end,
    }
    local a, b = rl.env.make(id), rl.env.make(id, { length = 2, max_episode_steps = 7 })
    a:reset()
    b:reset()
    assert.equal(0.25, a:step(0):item())
    assert.equal(0.5, b:step(0):item())
    assert.equal(7, b.spec.max_episode_steps)
    assert.equal(2, b.unwrapped.length)
    a:close()
    a:close()
    assert.equal(1, closed)
    assert.equal("FAILED_PRECONDITION", failure(a.reset, a).code)
    assert.equal("FAILED_PRECONDITION", failure(a.step, a, 0).code)
    assert.equal(id .. " (closed)", tostring(a))
    -- without init there is nothing that options could go to
    has(failure(rl.env.make, register(), { max_episode_step = 2 }),
      'did you mean "max_episode_steps"')
  end)

  it("gets checked actions: numbers, or tables for a Box", function()
    local got
    local env = rl.env.make(register{
      action_space = rl.env.Box{ low = -1, high = 1, shape = { 2 } },
      step = function(_, action) got = action; return { 0 }, 0, false, false end,
    })
    env:reset()
    for _, action in ipairs{ { 0.5, -1 }, rl.tensor{ 0.5, -1 } } do
      env:step(action)
      assert.same({ 0.5, -1 }, got)
    end
    for action, text in pairs{
      [{ 0, 2 }] = "element 2 of the action is 2, which is not in Box(-1, 1, {2}, f32)",
      [{ 0, 0 / 0 }] = "element 2 of the action is",
      [{ 0 }] = "a table of 1 where dimension 1 has 2 elements",
      [{ 0, "x" }] = 'element 2 is "x", not a number',
      [1] = "1 where a table of 2 elements was expected",
      [rl.zeros(3)] = "a tensor f32[3], which has not the shape of Box(-1, 1, {2}, f32)",
    } do
      local err = failure(env.step, env, action)
      assert.equal("INVALID_ARGUMENT", err.code)
      has(err, text)
      has(err, env.spec.id .. ": step 3: ")
    end
    has(failure(env.step, env), "nil")
    env:step{ 0, 0 } -- and it goes on
    local choices = rl.env.make(register{
      step = function(_, action) got = action; return { 0 }, 0, false, false end,
    })
    choices:reset()
    choices:step(rl.tensor({ 1 }, { dtype = "i64" }))
    assert.equal(1, got)
    for _, bad in ipairs{ -1, 2, 0.5, "left", {} } do
      has(failure(choices.step, choices, bad), "is not in Discrete(2)")
    end
    has(failure(choices.step, choices), "action nil is not in Discrete(2)")
  end)

  it("may return tables, tensors and numbers, which are copied", function()
    local mine = rl.tensor{ 1, 2 }
    local env = rl.env.make(register{
      observation_space = rl.env.Box{ low = 0, high = 10, shape = { 2 } },
      reset = function() return mine end,
      step = function() mine:fill_(7); return mine, 0, false, false end,
    })
    local first = env:reset()
    local second = env:step(0)
    assert.same({ 1, 2 }, first:totable())
    assert.same({ 7, 7 }, second:totable())
    second:fill_(0)
    assert.same({ 7, 7 }, mine:totable())

    env = rl.env.make(register{ reset = function() return 3 end })
    assert.same({ 3 }, env:reset():totable())
    env = rl.env.make(register{
      observation_space = rl.env.Box{ low = 0, high = 255, shape = { 2, 2 }, dtype = "u8" },
      reset = function() return { { 1, 2 }, { 3, 255 } } end,
    })
    local bytes = env:reset()
    assert.equal("u8", bytes.dtype)
    assert.same({ { 1, 2 }, { 3, 255 } }, bytes:totable())
    env = rl.env.make(register{
      observation_space = rl.env.Discrete(16), reset = function() return 15 end,
    })
    assert.equal(15, (env:reset()))
  end)

  it("is told what is wrong with what it returns", function()
    local function stepping(...)
      local values, n = { ... }, select("#", ...)
      local env = rl.env.make(register{ step = function() return unpack(values, 1, n) end })
      env:reset()
      local err = failure(env.step, env, 0)
      has(err, env.spec.id .. ": step 1: ")
      -- it needs a reset now, and then goes on
      assert.equal("FAILED_PRECONDITION", failure(env.step, env, 0).code)
      env:reset()
      return err
    end
    has(stepping(), "the observation must be in Box(0, 10, {1}, f32): nil")
    has(stepping({ 1, 2 }, 0, false, false), "a table of 2 where dimension 1 has 1 elements")
    has(stepping({ "x" }, 0, false, false), 'element 1 is "x", not a number')
    has(stepping({ 0 / 0 }, 0, false, false), "element 1 of the observation is NaN")
    has(stepping({ 1 }, nil, false, false), "the reward must be a number, got nil")
    has(stepping({ 1 }, rl.tensor(1), false, false), ":item()")
    has(stepping({ 1 }, 0 / 0, false, false), "the reward is NaN")
    has(stepping({ 1 }, 0, 0, false),
      "terminated must be true or false, got 0 (which counts as true in Lua)")
    has(stepping({ 1 }, 0, nil, false), "terminated must be true or false, got nil")
    has(stepping({ 1 }, 0, false, "no"), "truncated must be true or false, got string")
    has(stepping({ 1 }, 0, false, false, 3), "info must be a table or nil, got number")
    assert.equal("INTERNAL", stepping({ 0 / 0 }, 0, false, false).code)

    local env = rl.env.make(register{ reset = function() return { 1, 2 } end })
    has(failure(env.reset, env), "reset: the observation must be in Box(0, 10, {1}, f32)")
    env = rl.env.make(register{ reset = function() return { 1 }, "x" end })
    has(failure(env.reset, env), "reset: info must be a table or nil, got string")
    env = rl.env.make(register{
      observation_space = rl.env.Discrete(4), reset = function() return 0.5 end,
    })
    has(failure(env.reset, env), "reset: observation 0.5 is not in Discrete(4)")
  end)

  it("lets errors of its functions pass through", function()
    local env = rl.env.make(register{ step = function() error "the motor is gone" end })
    env:reset()
    local ok, err = pcall(env.step, env, 0)
    assert.is_false(ok)
    assert.is_truthy(tostring(err):find("scripted_spec.lua:%d+: the motor is gone"))
    assert.equal("FAILED_PRECONDITION", failure(env.step, env, 0).code)
    env:reset()
    assert.equal("UNIMPLEMENTED", failure(env.ffi, env).code)
  end)

  it("steps into a tensor", function()
    local env = rl.env.make(register())
    local obs = env:reset()
    local reward, terminated, truncated = env:step_into(1, obs)
    assert.same({ -0.1, false, false }, { reward, terminated, truncated })
    assert.equal(1, obs:item())
  end)

  it("can yield within a step", function()
    local env = rl.env.make(register{
      step = function() return { coroutine.yield "waiting" }, 0, false, false end,
    })
    local co = coroutine.wrap(function()
      env:reset()
      return env:step(0):item()
    end)
    assert.equal("waiting", co())
    assert.equal(4, co(4))
  end)
end)

describe("rl.env.register", function()
  local function refused(id, definition, text)
    local err = failure(rl.env.register, id, definition)
    has(err, text)
    return err
  end
  local function definition(changes)
    local d = {
      observation_space = rl.env.Box{ low = 0, high = 1 }, action_space = rl.env.Discrete(2),
      reset = function() return { 0 } end, step = function() return { 0 }, 0, true end,
    }
    for key, value in pairs(changes) do
      if value == "none" then d[key] = nil else d[key] = value end
    end
    return d
  end

  it("says what is missing or misspelt", function()
    refused("A-v0", definition{ reset = "none" }, "A-v0: reset is missing")
    refused("A-v0", definition{ step = "none" }, "step is missing")
    refused("A-v0", definition{ action_space = "none" }, "action_space is missing")
    refused("A-v0", definition{ max_episode_step = 5 }, 'did you mean "max_episode_steps"')
    refused("A-v0", definition{ obs_space = rl.env.Discrete(2) }, 'unknown option "obs_space"')
    refused("A-v0", definition{ action_space = 2 }, "action_space must be rl.env.Box")
    refused("A-v0", definition{ reset = 5 }, "reset must be a function, got number")
    refused("A-v0", definition{ max_episode_steps = "x" }, "must be a number")
    refused("A-v0", definition{ max_episode_steps = 1.5 }, "must be an integer")
    refused("A-v0", nil, "expected a table")
    refused("", definition{}, "the id must be")
    refused("two words", definition{}, "the id must be")
    refused(nil, definition{}, "the id must be")
  end)

  it("does not replace what is built in, but a script's own", function()
    assert.equal("ALREADY_EXISTS",
      refused("CartPole-v1", definition{}, "part of the engine").code)
    rl.env.register("Twice-v0", definition{ reset = function() return { 0 } end })
    rl.env.register("Twice-v0", definition{ reset = function() return { 1 } end })
    assert.equal(1, rl.env.make("Twice-v0"):reset():item())
  end)

  it("keeps what it was given, whatever becomes of the table", function()
    local d = definition{}
    rl.env.register("Kept-v0", d)
    d.reset, d.max_episode_steps = nil, 3
    local env = rl.env.make "Kept-v0"
    env:reset()
    assert.is_nil(env.spec.max_episode_steps)
  end)

  it("helps with a nearly right id", function()
    rl.env.register("Labyrinth-v0", definition{})
    has(failure(rl.env.make, "Labirynth-v0"), 'did you mean "Labyrinth-v0"')
  end)
end)

describe("memory", function()
  it("comes back after many environments", function()
    local id = register()
    local function work()
      for _ = 1, 100 do
        local env = rl.env.make(id)
        env:reset{ seed = 1 }
        pcall(env.step, env, 5)
        for _ = 1, 10 do env:step(1) end
      end
      for _ = 1, 3 do collectgarbage() end
    end
    -- The engine keeps the structures of tensors for the next ones: of as many as were alive
    -- at once, which the collector's pace decides, up to a bound. Here the bound.
    local many = {}
    for i = 1, 4096 do many[i] = rl.zeros(1) end
    many = nil -- luacheck: ignore
    work()
    local bytes, blocks = core.host_memory()
    for _ = 1, 3 do work() end
    local bytes_now, blocks_now = core.host_memory()
    assert.equal(blocks, blocks_now)
    assert.is_true(bytes_now <= bytes + 16 * blocks) -- malloc rounds a block up to so much
  end)
end)
