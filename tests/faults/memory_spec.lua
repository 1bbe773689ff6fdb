-- A program whose memory, Lua's or the engine's, or whose calls of the system fail at every place
-- while it starts, listens and stops: it ends with a code and words that say so, and never by a
-- signal. The same places of calls, references and weights are in tests/c/test_rpc_alloc.c.
package.path = "tests/support/?.lua;" .. package.path
local figure = require "figure"
local process = require "process"
local rpc = require("rlengine").rpc
local workers = require "workers"

local full = os.getenv "RLE_FULL"

describe("F21: a program that starts", function()
  local folder, script

  setup(function()
    folder = process.folder()
    script = ([[
      local rpc = require("rlengine").rpc
      rpc.init{ name = "a", listen = "unix:%s/a.sock", token = ("x"):rep(32) }
      rpc.register("f", function(x) return x end)
      rpc.shutdown()]]):format(folder)
    process.write(folder .. "/start.lua", script)
  end)
  teardown(function() process.remove(folder) end)

  local function start(fault)
    local r = process.run({ process.program(), folder .. "/start.lua" },
      { env = { RL_FAULT = fault } })
    assert.is_nil(r.signal, ("%s: killed by signal %s: %s"):format(fault, r.signal or "", r.err))
    return r.code, r.err
  end

  -- Calls check(code, words, fault) for each place, until nothing fails any more.
  local function everywhere(kind, suffix, step, check)
    local place, runs = 1, 0
    while true do
      local fault = kind .. ":" .. place .. suffix
      local code, words = start(fault)
      runs = runs + 1
      check(code, words, fault)
      -- Some places can be done without, so that it starts is not the end.
      if code == 0 and place > step.beyond then return runs end
      place = step.next(place)
    end
  end

  local each = { next = function(n) return n + 1 end, beyond = 30 }
  local some = {
    next = function(n) return full and n + 7 or math.floor(n * 1.3) + 1 end, beyond = 6000
  }

  it("without memory for the engine says what it wanted it for and exits with 71", function()
    local runs = everywhere("alloc", "+", each, function(code, words, fault)
      if code == 0 then return end
      assert.equal(71, code, fault .. ": " .. words)
      assert.matches('^rlengine: RESOURCE_EXHAUSTED: out of memory: wanted %d+ bytes for "[^"]+"\n',
        words, fault)
    end)
    figure("F21", "the engine's memory ends at each of %d places of a start: exit 71, no crash",
      runs - 1)
  end)

  it("and lacks it once goes on, or says the same", function()
    everywhere("alloc", "", each, function(code, words, fault)
      if code ~= 0 then
        assert.equal(71, code, fault .. ": " .. words)
        assert.matches("out of memory: wanted %d+ bytes for ", words, fault)
      end
    end)
  end)

  it("without memory for Lua exits with 71", function()
    local runs = everywhere("lua", "+", some, function(code, words, fault)
      if code == 0 then return end
      assert.equal(71, code, fault .. ": " .. words)
      assert.matches("not enough memory", words, fault)
    end)
    figure("F21", "Lua's memory ends at %d places of a start: exit 71, no crash", runs - 1)
  end)

  it("and lacks that once fails as a script does", function()
    everywhere("lua", "", some, function(code, words, fault)
      if code ~= 0 then
        assert.is_true(code == 71 or code == 1, fault .. ": " .. code)
        assert.matches("not enough memory", words, fault)
      end
    end)
  end)

  it("whose calls of the system fail says which", function()
    for _, suffix in ipairs { "", "+" } do
      everywhere("io", suffix, { next = each.next, beyond = 10 }, function(code, words, fault)
        if code == 0 then return end
        assert.is_true(code == 69 or code == 71 or code == 1, fault .. ": " .. code)
        assert.matches("^rlengine: [%u_]+: %l[^\n]+\n", words, fault)
      end)
    end
  end)
end)

-- A tree that scopes walk through again and again: most of what Lua allocates is for that.
local SCOPES = [[
local rl = require "rlengine"
local function twigs(depth)
  return depth > 0 and { twigs(depth - 1), twigs(depth - 1) } or {}
end
local tree, failed, open, made = twigs(7), 0, 0, nil
local function inside()
  made = rl.ones(3)
  return tree, { rl.ones(4) }
end
for _ = 1, 1000 do
  local ok, err = pcall(rl.scope, inside)
  if not ok then
    failed = failed + 1
    assert(tostring(err):find "memory", err)
  end
  if pcall(made.sum, made) then open = open + 1 end
end
made = nil
local outer = rl.scope(function() return { rl.ones(3) } end)
collectgarbage()
collectgarbage()
print(failed, open, outer[1]:sum():item(), rl.memory.stats().tensors)
]]

describe("F21: a scope that lacks memory for Lua once", function()
  it("says so, is over, and has closed what was made in it", function()
    local folder = process.folder()
    process.write(folder .. "/scopes.lua", SCOPES)
    local count, walked = full and 400 or 40, 0
    for i = 1, count do
      local r = process.run({ process.program(), folder .. "/scopes.lua" },
        { env = { RL_FAULT = "lua:" .. 10000 + 137 * i % 9000 } })
      assert.equal(0, r.code, r.err)
      assert.matches("^[01]\t0\t3\t2\n$", r.out)
      if r.out:sub(1, 1) == "1" then walked = walked + 1 end
    end
    process.remove(folder)
    assert.is_true(walked > count / 2)
    figure("F21", "memory for Lua ends in %d of %d scopes: each is over, with what it made closed",
      walked, count)
  end)
end)

-- A function that fails takes its coroutine along, so each call needs a new one.
local SERVES = [[
local core, rpc = require "rlengine.core", require("rlengine").rpc
rpc.init { name = %q, connect = %q, token = %q }
rpc.register("f", function() error "no" end)
rpc.register("calls", function() return rpc.counters().calls end)
repeat pcall(rpc.sleep, 0.05) until not core.rpc.connected "test"
]]

describe("F21: a worker that serves and lacks memory for Lua once", function()
  it("answers each call, and serves on", function()
    local group = workers.group { call_timeout = 5 }
    local stdlib = require "posix.stdlib"
    local names, said = {}, 0
    for i = 1, full and 200 or 32 do
      names[i] = "w" .. i
      local script = ("%s/%s.lua"):format(group.folder, names[i])
      process.write(script, SERVES:format(names[i], group.address, workers.token))
      stdlib.setenv("RL_FAULT", "lua:" .. 6000 + i) -- after the start, in one of many calls
      group:run(script, names[i])
    end
    stdlib.setenv("RL_FAULT")
    rpc.wait_for(names)
    for _, name in ipairs(names) do
      for _ = 1, 600 do
        local _, err = pcall(rpc.rpc_sync, name, "f")
        assert.equal("table", type(err))
        assert.is_true(err.code == "UNKNOWN" or err.code == "RESOURCE_EXHAUSTED", tostring(err))
        if err.message:find "memory" then said = said + 1 end
      end
      assert.equal(1, rpc.rpc_sync(name, "calls"))
    end
    assert.is_true(said > 0)
    figure("F21", "%d workers lack memory for Lua once while they serve: %d said so, all "
      .. "answered and serve on", #names, said)
    group:finish { blocks = true }
  end)
end)
