-- rl.env.check finds each kind of breach, and nothing where there is none.
local core = require "rlengine.core"
local rl = require "rlengine"

local serial = 0
local function register(changes)
  serial = serial + 1
  local id = ("Checked%d-v0"):format(serial)
  local definition = {
    observation_space = rl.env.Box{ low = -1, high = 100, shape = { 2 } },
    action_space = rl.env.Discrete(2), max_episode_steps = 30,
    reset = function(self)
      self.x, self.t = self.rng:uniform(0, 1), 0
      return { self.x, 0 }
    end,
    step = function(self, action)
      self.t = self.t + 1
      self.x = self.x + action * self.rng:random()
      return { self.x, self.t }, action, self.x > 8, false
    end,
  }
  for key, value in pairs(changes or {}) do
    if value == "none" then definition[key] = nil else definition[key] = value end
  end
  rl.env.register(id, definition)
  return id
end

local function warnings(id) return rl.env.check(id, { quiet = true }) end

local function breaches(changes)
  local ok, err = pcall(rl.env.check, register(changes), { quiet = true })
  assert.is_false(ok)
  assert.is_truthy(core.error.is(err), tostring(err))
  assert.equal("FAILED_PRECONDITION", err.code)
  assert.is_true(#err.breaches > 0)
  for _, breach in ipairs(err.breaches) do
    assert.is_truthy(err.message:find(breach, 1, true))
  end
  return err.message
end

local function finds(text, changes)
  local message = breaches(changes)
  assert.is_truthy(message:find(text, 1, true), message)
end

describe("rl.env.check", function()
  it("has nothing to say of a good environment", function()
    assert.same({}, warnings(register()))
    assert.same({}, warnings "CartPole-v1")
    assert.same({}, warnings "CartPole-v0")
    local env = rl.env.make "CartPole-v1"
    assert.same({}, warnings(env))
    env:reset() -- it was not closed
  end)

  it("finds observations outside the space", function()
    finds("reset returned an observation outside Box(-1, 100, {2}, f32): element 1 is -5",
      { reset = function() return { -5, 0 } end })
    finds("step returned an observation outside", {
      step = function() return { 0, 101 }, 0, true end,
    })
  end)

  it("finds what raises, with its message", function()
    finds("reset raised: ", { reset = function() error "no motor" end })
    finds("no motor", { reset = function() error "no motor" end })
    finds("step raised: ", { step = function() return { 0 }, 0, false end })
    finds("terminated must be true or false", { step = function() return { 0, 0 }, 0 end })
    finds("close raised: ", { close = function() error "stuck" end })
  end)

  it("finds randomness that the seed does not govern", function()
    finds("reset{seed = 123} gives another observation", {
      reset = function(self) self.x, self.t = math.random(), 0; return { self.x, 0 } end,
    })
    local stream = rl.env.rng(1)
    finds("the same seed and the same actions lead elsewhere", {
      step = function() return { stream:random(), 0 }, 0, false end,
    })
    finds("after reset{seed = 123}, reset number", {
      reset = function(self, options)
        self.x, self.t = options.seed and 0.5 or stream:random(), 0
        return { self.x, 0 }
      end,
    })
  end)

  it("finds a stream that starts again at each reset", function()
    finds("a reset without a seed repeats the seeded one", {
      reset = function(self, options)
        self.seed = options.seed or self.seed or 1
        self.x, self.t = rl.env.rng(self.seed):random(), 0
        return { self.x, 0 }
      end,
    })
  end)

  it("finds rewards that are none", function()
    finds("no finite number: inf", {
      step = function() return { 0, 0 }, math.huge, true end,
    })
  end)

  it("warns of what is only unusual", function()
    local function warns(text, changes)
      local all = table.concat(warnings(register(changes)), "\n")
      assert.is_truthy(all:find(text, 1, true), all)
    end
    warns("every seed gives the same first observation", {
      reset = function(self) self.x, self.t = 0, 0; return { 0, 0 } end,
    })
    warns("the reward was 0 at every step", { step = function() return { 0, 0 }, 0, true end })
    warns("there is no time limit", {
      max_episode_steps = "none", step = function() return { 0, 0 }, 1, false end,
    })
    warns("actions count from 1", { action_space = rl.env.Discrete(2, { start = 1 }),
      step = function() return { 0, 0 }, 1, true end })
    warns("actions go beyond [-1, 1]", {
      action_space = rl.env.Box{ low = -2, high = 2 },
      step = function() return { 0, 0 }, 1, true end,
    })
    warns("an action has no bound", {
      action_space = rl.env.Box{ low = -math.huge, high = 2 },
      step = function() return { 0, 0 }, 1, true end,
    })
  end)

  it("names the nearest of an unknown id and checks its options", function()
    local ok, err = pcall(rl.env.check, "CartPole-1")
    assert.is_false(ok)
    assert.is_truthy(err.message:find('did you mean "CartPole-v1"', 1, true))
    ok, err = pcall(rl.env.check, "CartPole-v1", { quite = true })
    assert.is_false(ok)
    assert.is_truthy(err.message:find('did you mean "quiet"', 1, true))
  end)

  it("sees an environment that is not made by the engine", function()
    -- an object with the same methods that keeps one observation and forgets its limit
    local inner = rl.env.make "CartPole-v1"
    local kept
    local fake = setmetatable({
      observation_space = inner.observation_space, action_space = inner.action_space,
      spec = { id = "Fake-v0", max_episode_steps = 20 },
      reset = function(_, opts)
        local obs, info = inner:reset(opts)
        kept = kept or obs
        kept:copy_(obs)
        return kept, info
      end,
      step = function(_, action)
        local obs, reward, terminated, truncated, info = inner:step(action)
        kept:copy_(obs)
        return kept, reward, terminated, truncated, info
      end,
    }, { __index = inner })
    local ok, err = pcall(rl.env.check, fake, { quiet = true })
    assert.is_false(ok)
    assert.is_truthy(err.message:find("an observation that had been returned changed", 1, true),
      err.message)
    assert.is_truthy(err.message:find("is the time limit, but truncated is false", 1, true),
      err.message)
  end)
end)
