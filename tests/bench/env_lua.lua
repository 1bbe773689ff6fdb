--- CartPole stepped from a Lua loop, against the same loop over a plain Lua CartPole.
--
--     luajit tests/bench/env_lua.lua [steps, default 300000]
--
-- Three ways: env:step (a fresh tensor for each observation), env:step_into (one tensor,
-- overwritten), and the FFI view (LuaJIT only). The policy is a coin; episodes are reset.
-- Each is timed several times, in turns; the least time counts. The plain loop is CartPole's
-- arithmetic in Lua alone, with its state in local variables: what LuaJIT compiles best.

local rl = require "rlengine"

local steps = tonumber(arg and arg[1]) or 300000
local turns = 7

-- A coin that costs next to nothing and is the same for all.
local function coin(state)
  state = (state * 16807) % 2147483647
  return state, state > 1073741823 and 1 or 0
end

local ways, order = {}, {}
local function way(name, run)
  order[#order + 1] = name
  ways[name] = run
end

way("plain Lua loop", function()
  local sin, cos, state, action = math.sin, math.cos, 1
  local x, xd, th, thd, length, episodes = 0, 0, 0.01, 0, 0, 0
  for _ = 1, steps do
    state, action = coin(state)
    local force = action == 1 and 10 or -10
    local c, s = cos(th), sin(th)
    local temp = (force + 0.05 * thd * thd * s) / 1.1
    local ta = (9.8 * s - c * temp) / (0.5 * (4 / 3 - 0.1 * c * c / 1.1))
    local xa = temp - 0.05 * ta * c / 1.1
    x, xd, th, thd = x + 0.02 * xd, xd + 0.02 * xa, th + 0.02 * thd, thd + 0.02 * ta
    length = length + 1
    if x < -2.4 or x > 2.4 or th < -0.2095 or th > 0.2095 or length == 500 then
      x, xd, th, thd, length = 0, 0, 0.01, 0, 0
      episodes = episodes + 1
    end
  end
  return episodes
end)

way("env:step", function()
  local env, state, episodes, action = rl.env.make "CartPole-v1", 1, 0
  env:reset{ seed = 1 }
  for _ = 1, steps do
    state, action = coin(state)
    local _, _, terminated, truncated = env:step(action)
    if terminated or truncated then
      env:reset()
      episodes = episodes + 1
    end
  end
  env:close()
  return episodes
end)

way("env:step_into", function()
  local env, state, episodes, action = rl.env.make "CartPole-v1", 1, 0
  local obs = env:reset{ seed = 1 }
  for _ = 1, steps do
    state, action = coin(state)
    local _, terminated, truncated = env:step_into(action, obs)
    if terminated or truncated then
      env:reset()
      episodes = episodes + 1
    end
  end
  env:close()
  return episodes
end)

if rawget(_G, "jit") then
  way("env:ffi() view", function()
    local env, state, episodes, action = rl.env.make "CartPole-v1", 1, 0
    local view = env:ffi()
    view:reset{ seed = 1 }
    for _ = 1, steps do
      state, action = coin(state)
      local _, terminated, truncated = view:step(action)
      if terminated or truncated then
        view:reset()
        episodes = episodes + 1
      end
    end
    env:close()
    return episodes
  end)
end

local best, episodes = {}, {}
for _ = 1, turns do
  for _, name in ipairs(order) do
    local start = os.clock()
    episodes[name] = ways[name]()
    local time = os.clock() - start
    best[name] = math.min(best[name] or time, time)
  end
end
for _, name in ipairs(order) do
  print(("%-15s %7.1f ns/step  %6.2f M steps/s  (%d episodes)"):format(name,
    best[name] / steps * 1e9, steps / best[name] / 1e6, episodes[name]))
end
