-- The two programs of scripts/: what they print, that runs repeat, and that no process of
-- theirs holds more after many episodes than after a few.
--
-- RLE_FULL=1 runs the 2,000 episodes of each that are promised; without, fewer.

local figure = require "figure"
local process = require "process"
local rl = require "rlengine"

local full = os.getenv "RLE_FULL"

-- AddressSanitizer keeps freed memory for a while: there resident memory says nothing.
local sanitized = process.read(process.program()):find("__asan_init", 1, true) ~= nil

local function check(...)
  return process.check { process.program(), ... }
end

-- The programs run on the device under test. An emulated one takes a hundred times as long.
local device = rl.default_device()
local on_device = "--device=" .. device.name
local function length(many, few) return full and 2000 or device.type == "emu" and few or many end

local function curve(...)
  return check("scripts/cartpole_reinforce.lua", "--episodes=12", "--log-every=1", on_device, ...)
end

describe("scripts/seed_program.lua", function()
  it("prints its line for every episode", function()
    local expected = {}
    for episode = 1, 5 do
      -- 898 weights of 4 bytes: two digits of a megabyte do not show them.
      expected[episode] = ("episode : %d, mem_used: 0.00Mb\n"):format(episode)
    end
    assert.equal(table.concat(expected), check("scripts/seed_program.lua", "--episodes=5"))
  end)

  it("runs with any number of observers", function()
    for _, observers in ipairs { 1, 5 } do
      local out = check("scripts/seed_program.lua", "--episodes=2", "--observers=" .. observers)
      assert.equal(2, select(2, out:gsub("episode : %d, mem_used: %d%.%d%dMb\n", "")))
    end
  end)

  it("is no longer than the program it came from", function()
    local _, count = process.read("scripts/seed_program.lua"):gsub("\n", "")
    assert.is_true(count <= 90, count .. " lines")
  end)
end)

describe("the programs of scripts/", function()
  it("list their options", function()
    for _, script in ipairs { "seed_program", "cartpole_reinforce" } do
      local out = check("scripts/" .. script .. ".lua", "--help")
      for _, option in ipairs { "episodes INTEGER", "observers INTEGER", "seed INTEGER",
        "device STRING" } do
        assert.truthy(out:find("  --" .. option, 1, true), option)
      end
    end
  end)

  it("say which device they do not have", function()
    for _, script in ipairs { "seed_program", "cartpole_reinforce" } do
      local r = process.run { process.program(), "scripts/" .. script .. ".lua", "--device=cdua" }
      assert.equal(1, r.code)
      assert.truthy(r.err:find "cdua", r.err)
    end
  end)
end)

describe("scripts/cartpole_reinforce.lua", function()
  it("repeats itself with a seed, whoever asks first", function()
    local first = curve("--seed=1", "--observers=3")
    assert.equal(first, curve("--seed=1", "--observers=3"))
    assert.is_true(first ~= curve("--seed=2", "--observers=3"))
    local line = "episode +%d+   reward +[%d.]+   running reward +[%d.]+\n"
    assert.equal(12, select(2, first:gsub(line, "")))
    assert.truthy(first:find "\nepisode : 12, mem_used: 0.01Mb\n$")
  end)

  it("learns on a device what it learns on the CPU, to the last bit", function()
    -- Plain numbers of the weights would show less: every action depends on all of them.
    local same = curve("--seed=3")
    assert.equal(same, check("scripts/cartpole_reinforce.lua", "--episodes=12", "--log-every=1",
      "--device=cpu", "--seed=3"))
  end)
end)

-- Lines of tests/support/flat_probe.lua: name -> episode -> field -> number.
local function probes(script, episodes, ...)
  local out = check("tests/support/flat_probe.lua", "scripts/" .. script .. ".lua", episodes,
    on_device, ...)
  local found = {}
  for name, episode, fields in out:gmatch "probe (%S+) (%d+) ([^\n]+)" do
    found[name] = found[name] or {}
    local at = {}
    for key, value in fields:gmatch "(%w+)=(%d+)" do at[key] = tonumber(value) end
    found[name][tonumber(episode)] = at
  end
  return found
end

local exact = { "device", "tensors", "fds", "threads", "refs", "futures", "calls", "objects",
  "timers" }

local function flat(script, episodes, settled, ...)
  local found = probes(script, episodes, ...)
  for _, name in ipairs { "agent_0", "obs_0_for_0", "obs_1_for_0" } do
    local at = assert(found[name], "no probe of " .. name)
    for _, episode in ipairs { episodes / 4, episodes / 2, episodes * 3 / 4, episodes } do
      for _, field in ipairs(exact) do
        assert.is_number(at[2][field])
        assert.equal(at[2][field], at[episode][field],
          ("%s of %s at episode %d"):format(field, name, episode))
      end
    end
    -- Pools and Lua's heap find their size with the longest episode; then nothing grows.
    local half, last = at[settled and episodes / 2 or episodes], at[episodes]
    assert.is_true(last.host <= half.host + 256 * 1024, ("host memory of %s: %d, %d")
      :format(name, half.host, last.host))
    assert.is_true(sanitized or last.resident <= half.resident + 2 ^ 20,
      ("resident memory of %s: %d, %d"):format(name, half.resident, last.resident))
  end
  return found
end

describe("memory of every process", function()
  local function tell(program, episodes, found, settled)
    local most = 0
    for _, at in pairs(found) do
      most = math.max(most, at[episodes].resident - at[episodes / 2].resident)
    end
    figure("F01", "%s, %d episodes, 2 observers: %d bytes on %s after the 2nd and the last; "
      .. "tensors, descriptors, threads, references the same%s", program, episodes,
      found.agent_0[episodes].device, device.name, (sanitized or not settled) and "" or
      ("; resident memory of no process grew by more than %.1f KiB in the second half")
        :format(most / 1024))
  end

  it("F01: of the seed's program is the same after the last episode as after the second", function()
    local episodes = length(400, 40)
    local found = flat("seed_program", episodes, true)
    assert.equal(3592, found.agent_0[2].device) -- the weights: 898 floats
    tell("seed's program", episodes, found, true)
    assert.equal(0, found.obs_0_for_0[2].device)
  end)

  it("F01: of the program that learns, too", function()
    -- Its episodes grow to 500 steps within some hundred; the target keeps it from ending.
    local episodes = length(160, 16)
    local found = flat("cartpole_reinforce", episodes, full, "--target=1000", "--seed=5")
    assert.equal(4 * 3592, found.agent_0[2].device) -- weights, gradients, two moments of Adam
    tell("program that learns", episodes, found, full)
  end)
end)
