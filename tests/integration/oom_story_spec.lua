-- scripts/oom_story.lua: it checks its own promises; here that it does, and what it prints.

local rl = require "rlengine"
local figure = require "figure"
local process = require "process"

-- Under AddressSanitizer everything is slower: a shorter story.
local sanitized = process.read(process.program()):find("__asan_init", 1, true) ~= nil
local episodes, observers, limit = 2000, 64, 64
if sanitized then episodes, observers, limit = 64, 8, 16 end

local device = os.getenv "RLENGINE_TEST_DEVICE" or (pcall(rl.device, "emu") and "emu" or "cpu")

local function story(...)
  return process.run { process.program(), "scripts/oom_story.lua", "--device=" .. device, ... }
end

describe("scripts/oom_story.lua on " .. device, function()
  it("F01: is flat where the original ran out, warns, refuses, and goes on", function()
    local r = story("--episodes=" .. episodes, "--observers=" .. observers,
      ("--limit=%dMiB"):format(limit))
    assert.equal(0, r.code, r.out .. r.err)

    -- Bytes held after the episodes that are shown: one number for both seed programs.
    local held, lines = {}, 0
    for bytes in r.out:gmatch "episode : %d+, mem_used: %d+%.%d%dMb   %((%d+) bytes allocated" do
      held[bytes] = true
      lines = lines + 1
    end
    local bytes = next(held)
    assert.is_true(lines >= 7, r.out)
    assert.is_nil(next(held, bytes))
    assert.is_true(tonumber(bytes) >= 898 * 4) -- the weights, and little else
    assert.is_true(tonumber(bytes) < 8192)
    assert.truthy(r.out:find("1 observer, " .. episodes .. " episodes on ", 1, true))
    assert.truthy(r.out:find(observers .. " observers, ", 1, true))
    assert.truthy(r.out:find("flat as well, at " .. bytes .. " bytes", 1, true))

    figure("F01", "%d episodes on %s with 1 observer, and with %d: %s bytes each", episodes, device,
      observers, bytes)

    -- The line that holds on is the one where the policy is called.
    local line, number
    for text in io.lines "scripts/oom_story.lua" do
      number = (number or 0) + 1
      if text:find("probs = self.policy", 1, true) then line = number end
    end
    local grown, first, site = r.out:match(
      "memory grew by ([%d.]+ %a+) over episode 2 at episode (%d+); most of it %([^)]*%): graph "
      .. "made at scripts/oom_story.lua:(%d+)\n")
    assert.truthy(grown, r.out)
    assert.equal("3", first)
    assert.equal(tostring(line), site)
    local free, total, top, tensors, most = r.out:match(
      "RESOURCE_EXHAUSTED: out of device memory: wanted [%d.]+ %a+, ([%d.]+ %a+) free of ([%d.]+) "
      .. "MiB.-; most held by scripts/oom_story.lua:(%d+) %((%d+) tensors, ([%d.]+) MiB%)\n")
    assert.truthy(free, r.out)
    assert.equal(limit, tonumber(total))
    assert.equal(site, top)
    assert.is_true(tonumber(tensors) > 1000)
    assert.is_true(tonumber(most) > limit / 5 and tonumber(most) < limit)
    assert.matches("first failed on worker agent_0, went through obs_%d_for_0", r.out)
    assert.matches("grew most since episode 2:\n +[%d.]+ MiB  graph ", r.out)
    assert.matches("try: letting go of the results that scripts/oom_story.lua:" .. site, r.out)
    local kept, graphs, peak = r.out:match(
      "taken for it and is kept for the next does, ([%d.]+ %a+): the graphs of (%d+) episodes "
      .. "were alive\nat once, ([%d.]+ %a+) of small ")
    assert.equal(tostring(observers), graphs, r.out)
    assert.is_true(rl.memory.parse(peak) > observers * rl.memory.parse(bytes .. "B") / 16)
    assert.is_true(rl.memory.parse(kept) >= rl.memory.parse(peak))
    local after, whole = r.out:match("Caught, and what it had kept is dropped: ([%d.]+ KiB) of "
      .. "([%d.]+ MiB) are in use")
    assert.is_true(rl.memory.parse(after) < 100000)
    assert.equal(rl.memory.format(limit * 2 ^ 20), whole)
    local sum, parts = tonumber(r.out:match "\n  sum +(%d+)"), 0
    local report = r.out:match "\nmemory of .-\n  owner[^\n]*\n(.-)  sum"
    for value in report:gmatch "\n?  [%a]+ +(%-?%d+) " do parts = parts + tonumber(value) end
    assert.equal(sum, parts)
    for _, owner in ipairs { "weights", "gradients", "optimizer", "cache" } do
      assert.matches("\n  " .. owner .. " ", "\n" .. report)
    end
  end)

  it("fails when a promise is broken", function()
    -- A device on which the first part cannot hold its weights.
    local r = story("--episodes=3", "--limit=1KiB")
    assert.not_equal(0, r.code)
  end)
end)
