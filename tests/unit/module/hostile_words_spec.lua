-- Whatever words and options come: a result of the right types, or an error object that names
-- what was wrong. Never a plain Lua error, never a crash. The words come from a seed that is told
-- when a test fails.
package.path = "tests/support/?.lua;" .. package.path
local core = require "rlengine.core"
local rl = require "rlengine"

local ROUNDS = os.getenv "RLE_FULL" and 200000 or 3000

-- A generator of its own, the same in every Lua.
local function random(seed)
  local x = seed % 2147483646 + 1
  return function(n)
    x = x * 16807 % 2147483647
    return x % n + 1
  end
end

local PIECES = {
  "-", "--", "no-", "=", "episodes", "rate", "render", "mode", "help", "h", "1", "-1", "0x10",
  "1e3", "1e400", "nan", "inf", "0.5", "true", "false", "yes", "fast", "slow", "_", "\0", "\255",
  " ", "%s", "%", "\n", ("x"):rep(300), "[", "^", "$",
}

local function words(pick)
  local list = {}
  for i = 1, pick(6) - 1 do
    local parts = {}
    for j = 1, pick(5) do parts[j] = PIECES[pick(#PIECES)] end
    list[i] = table.concat(parts)
  end
  return list
end

local function shown(list)
  local parts = {}
  for i, word in ipairs(list) do parts[i] = ("%q"):format(word) end
  return table.concat(parts, " ")
end

local function is_refusal(err)
  return core.error.is(err) and err.code == "INVALID_ARGUMENT" and #err.message > 0
end

describe("hostile words", function()
  it("as a script's arguments are parsed or refused", function()
    local spec = {
      episodes = { 500, "episodes to run" }, rate = { 0.1, "learning rate" }, render = false,
      mode = { "fast", "how", choices = { "fast", "slow" } },
      name = { help = "n", type = "string" },
    }
    local parsed = 0
    for seed = 1, ROUNDS do
      local list = words(random(seed * 7919))
      local ok, args = pcall(rl.args, spec, list)
      local what = ("seed %d: %s"):format(seed, shown(list))
      if not ok then
        assert.is_true(is_refusal(args), what .. ": " .. tostring(args))
      elseif args then
        parsed = parsed + 1
        assert.equal("number", type(args.episodes), what)
        assert.equal(args.episodes, math.floor(args.episodes), what)
        assert.is_true(args.rate == args.rate, what)
        assert.equal("boolean", type(args.render), what)
        assert.is_true(args.mode == "fast" or args.mode == "slow", what)
        assert.is_true(#args <= #list, what)
      end
    end
    assert.is_true(parsed > ROUNDS / 20)
  end)

  it("as options of rpc.init are refused", function()
    local keys = {
      "name", "listen", "connect", "token", "token_fd", "max_concurrent", "max_calls",
      "call_timeout", "heartbeat", "timeout", "connect_timeout", "reconnect_for", "max_message",
      "tls",
      "allow_uids", "busy_after", "insecure_network", "nmae", 1, true,
    }
    local values = {
      true, false, -1, 0 / 0, 1 / 0, -1 / 0, 2 ^ 60, 0.5, "", "x", "unix:", "tcp://", "tcp://:1",
      "[::1", ("y"):rep(200), "a\0b", {}, { {} }, { "unix:" }, { -1 }, function() end,
    }
    local long_names = ("z"):rep(65)
    for seed = 1, math.floor(ROUNDS / 3) do
      local pick = random(seed * 104729)
      -- Never a good name: nothing is begun.
      local options = { name = ({ "", "a b", long_names, "a/b", 7, {} })[pick(6)] }
      for _ = 1, pick(4) - 1 do options[keys[pick(#keys)]] = values[pick(#values)] end
      if options.name ~= "x" then
        local ok, err = pcall(rl.rpc.init, options)
        assert.is_false(ok, "seed " .. seed)
        assert.is_true(core.error.is(err), ("seed %d: %s"):format(seed, tostring(err)))
      end
    end
    assert.is_false((pcall(rl.rpc.worker_info)))
  end)
end)
