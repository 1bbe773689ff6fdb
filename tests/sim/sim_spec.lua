-- `rlengine --sim`: the same seed is the same run, scripts run unchanged, a failure says how to
-- see it again; and seeds of tests/sim/workload.lua. RLE_SIM_SEEDS says how many, RLE_FULL=1
-- takes ten thousand.
local figure = require "figure"
local process = require "process"

local program = process.program()

local function run(words, options)
  local argv = { program }
  for _, word in ipairs(words) do argv[#argv + 1] = word end
  return process.run(argv, options)
end

-- Both outputs and the log of events.
local function everything(words)
  local folder = process.folder()
  local all = { "--sim-log=" .. folder .. "/events" }
  for _, word in ipairs(words) do all[#all + 1] = word end
  local r = run(all)
  r.err = r.err:gsub("==%d+==WARNING: ASan doesn't fully support makecontext[^\n]*\n", "")
  local events = process.read(folder .. "/events")
  process.remove(folder)
  return r, r.out .. r.err:gsub("%-%-sim%-log=%S+", ""), events
end

describe("a simulation", function()
  it("has to be asked for", function()
    local r = run { "--sim-faults=cut", "-e", "print 'ran'" }
    assert.equal(1, r.code)
    assert.equal("", r.out)
    assert.equal("rlengine: --sim-faults is for a simulation: add --sim or --sim=seed\n", r.err)
  end)

  it("is the same for the same seed, byte for byte", function()
    local words = { "--sim=15", "--sim-faults=all=2", "tests/sim/workload.lua", "--stops=1",
      "--calls=30" }
    local first, output, events = everything(words)
    local second, output_again, events_again = everything(words)
    assert.equal(first.code, second.code)
    assert.equal(output, output_again)
    assert.is_true(events == events_again)
    assert.is_true(#events > 10000)
    words[1] = "--sim=16"
    local _, _, others = everything(words)
    assert.is_true(events ~= others)
  end)

  it("runs scripts as they are", function()
    local words = { "--sim=3", "scripts/cartpole_reinforce.lua", "--episodes=20", "--device=cpu" }
    local r, output, events = everything(words)
    assert.equal(0, r.code, r.err)
    assert.truthy(r.out:find("episode    20   reward", 1, true))
    assert.truthy(r.err:find "sim: seed 3: %d+%.%d%d%d s of virtual time, %d+ messages, 0 faults, "
      .. "trace %x+\n$")
    local _, again, events_again = everything(words)
    assert.equal(output, again)
    assert.is_true(events == events_again)
    r = run { "--sim=3", "scripts/seed_program.lua", "--episodes=3", "--device=cpu" }
    assert.equal(0, r.code, r.err)
    assert.truthy(r.out:find "episode : 3, mem_used: ")
  end)

  it("trains on while observers are lost in every way", function()
    for seed = 1, 4 do
      local r = run { "--sim=" .. seed, "--sim-faults=all=20,from=2",
        "scripts/cartpole_reinforce.lua", "--episodes=40", "--device=cpu" }
      assert.equal(0, r.code, r.err)
      assert.truthy(r.out:find "episode : 40, mem_used: ")
    end
  end)

  it("says how a failure can be seen again", function()
    local r = run { "--sim=7", "--sim-faults=stop=100,hours=2", "-e", "error 'no'" }
    assert.equal(1, r.code)
    assert.truthy(r.err:find(
      "sim: seed 7 failed: exit code 1; repeat with: rlengine --sim=7 "
      .. "--sim-faults=stop=100,hours=2 -e 'error '\\''no'\\'''\n", 1, true), r.err)
  end)

  it("ends one that goes nowhere", function()
    local r = run { "--sim=1", "--sim-faults=hours=0.5", "-e", [[
      local rpc = require "rlengine".rpc
      rpc.init { name = "a", listen = "unix:/sim/a.sock", token = ("x"):rep(32) }
      rpc.serve()]] }
    assert.equal(1, r.code)
    assert.truthy(r.err:find("sim: seed 1 failed: not done after 0.5 hours; ", 1, true), r.err)
  end)

  it("has a clock of its own, and waits for nothing", function()
    local before = os.time()
    local r = run { "--sim=1", "-e", [[
      local rpc = require "rlengine".rpc
      rpc.init { name = "a", listen = "127.0.0.1:0", token = ("x"):rep(32) }
      local t, c = os.time(), os.clock()
      rpc.sleep(7200)
      io.write(os.time() - t, " ", math.floor(os.clock() - c), " ", os.date("%Y"), "\n")
      while os.clock() - c < 7200.5 do end
      rpc.shutdown()]] }
    assert.equal(0, r.code, r.err)
    assert.equal("7200 7200 2023\n", r.out)
    assert.is_true(os.time() - before < 120)
  end)

  it("refuses what it does not know", function()
    local r = run { "--sim=x", "a.lua" }
    assert.equal(1, r.code)
    assert.truthy(r.err:find("--sim=x: a seed is a whole number from 0", 1, true))
    r = run { "--sim=1", "--sim-faults=cuts", "a.lua" }
    assert.equal(1, r.code)
    assert.truthy(r.err:find('--sim-faults: faults: unknown "cuts"; there are cut, half_open, ', 1,
      true))
    r = run { "--sim=1" }
    assert.equal(1, r.code)
    assert.truthy(r.err:find("--sim wants a script in a file, or -e", 1, true))
  end)

  it("keeps the promises of collectives, whatever breaks between their workers", function()
    local worlds = { "none", "cut=1,from=1", "cut=1,half_open=5,slow=3,partition=30,from=1",
      "refuse=1,partition=30,from=1", "slow=2" }
    for seed = 1, os.getenv "RLE_FULL" and 1000 or 20 do
      local r = run { "--sim=" .. seed, "--sim-faults=" .. worlds[seed % #worlds + 1],
        "tests/sim/collectives.lua" }
      assert.equal(0, r.code, r.out .. r.err)
    end
  end)

  it("F46: keeps every promise, whatever the seed", function()
    local seeds = os.getenv "RLE_SIM_SEEDS" or (os.getenv "RLE_FULL" and "10000" or "100")
    local r = process.run({ "bash", "tests/sim/run.sh", "--seeds", seeds, "--keep-going" },
      { env = { RLENGINE = program } })
    assert.equal(0, r.code, r.out .. r.err)
    figure("F46", "%s seeds with Lua, restarts and every fault: every future over once and in time",
      seeds)
  end)
end)
