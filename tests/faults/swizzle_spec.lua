-- F46: observers are stopped one by one and go on in another order, over and over, while they
-- play. Which, when and how long comes from a seed; one that fails is named. Two seeds; with
-- RLE_FULL=1 a hundred. RLE_SEED=7 runs that one alone.
package.path = "tests/support/?.lua;" .. package.path
local rl = require "rlengine"
local faults = require "faults"
local figure = require "figure"
local workers = require "workers"
local rpc = rl.rpc

local NAMES = { "obs_0", "obs_1", "obs_2", "obs_3" }
local ALLOWED = { UNAVAILABLE = true, DEADLINE_EXCEEDED = true, NOT_FOUND = true }

-- A generator of its own, so that a seed means the same everywhere.
local function dice(seed)
  local state = seed * 2654435761 % 2 ^ 32
  return function(n)
    state = (state * 1664525 + 1013904223) % 2 ^ 32
    return math.floor(state / 2 ^ 32 * n) + 1
  end
end

local function shuffled(list, roll)
  local all = { unpack(list) }
  for i = #all, 2, -1 do
    local j = roll(i)
    all[i], all[j] = all[j], all[i]
  end
  return all
end

-- Plays with one observer until told to stop. Every call ends, well or with a word for it.
local function play(state, name)
  local episode = 0
  while not state.over do
    episode = episode + 1
    local to = rpc.to(name):rpc_async { timeout = 3 }
    local ok, err = pcall(function() return to:steps(state.seed .. "." .. episode, 20):wait() end)
    if ok then
      state.played = state.played + 1
    else
      state.failed = state.failed + 1
      if not ALLOWED[err.code] then state.wrong = state.wrong or tostring(err) end
      rpc.sleep(0.05)
    end
  end
end

local function swizzle(world, seed, seconds)
  local roll = dice(seed)
  local by_name, state = {}, { seed = seed, played = 0, failed = 0, over = false }
  for _, name in ipairs(NAMES) do by_name[name] = world:start(name, "", "reconnect_for = 30") end
  world:join(unpack(NAMES))
  local players = {}
  for i, name in ipairs(NAMES) do
    players[i] = require("rlengine.rpc.futures").spawn(play, state, name)
  end
  local ends, stops = workers.now() + seconds, 0
  while workers.now() < ends do
    local subset = shuffled(NAMES, roll)
    for _ = 1, roll(#NAMES) - 1 do subset[#subset] = nil end
    for _, name in ipairs(subset) do
      by_name[name]:stop()
      stops = stops + 1
      rpc.sleep(roll(200) / 1000)
    end
    rpc.sleep(roll(20) / 10) -- to both sides of the time after which they count as lost
    for _, name in ipairs(shuffled(subset, roll)) do
      by_name[name]:continue()
      rpc.sleep(roll(200) / 1000)
    end
    rpc.sleep(roll(300) / 1000)
  end
  state.over = true
  for _, player in ipairs(players) do player:wait() end
  assert.is_nil(state.wrong)
  -- All are back, and play.
  assert.is_true(workers.eventually(function()
    for _, name in ipairs(NAMES) do
      local to = rpc.to(name):rpc_async { timeout = 3 }
      if not pcall(function() return to:steps(seed .. ".last" .. workers.now(), 5):wait() end) then
        return false
      end
    end
    return true
  end, 30), "they do not all play again")
  return state, stops
end

describe("observers that are stopped and go on in any order", function()
  local seeds = faults.full and 100 or 2
  local from, to = 1, seeds
  if os.getenv "RLE_SEED" then
    from = tonumber(os.getenv "RLE_SEED")
    to = from
  end
  for seed = from, to do
    it(("F46: lose nothing but what they are told (seed %d)"):format(seed),
      faults.row(function(world)
      local state, stops = swizzle(world, seed, faults.count(3, 6))
      local _, acknowledged, unheard = world:steps()
      figure("F46", "seed %d: %d stops, %d episodes, %d failed with a word for it, %d steps "
        .. "acknowledged once each, %d whose player was given up", seed, stops, state.played,
        state.failed, acknowledged, unheard)
    end, { seconds = 120, timeout = 1 }))
  end
end)
