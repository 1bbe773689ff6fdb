--- rl.args: defaults, types, forms of options, what is refused.

local rl = require "rlengine"

local spec = {
  device = { "auto", "cpu, cuda, cuda:1 or auto" },
  episodes = { 500, "episodes to run" },
  learning_rate = { 0.01, "of Adam" },
  render = { false, "draw" },
  log = true,
  mode = { "fast", "how", choices = { "fast", "exact" } },
  limit = { type = "number", help = "stop early" },
}

local function parse(...) return rl.args(spec, { ... }) end

local function failure(...)
  local ok, err = pcall(rl.args, spec, { ... })
  assert.is_false(ok)
  assert.equal("INVALID_ARGUMENT", err.code)
  return err.message
end

describe("rl.args", function()
  it("returns the defaults", function()
    local args = parse()
    assert.equal("auto", args.device)
    assert.equal(500, args.episodes)
    assert.equal(0.01, args.learning_rate)
    assert.is_false(args.render)
    assert.is_true(args.log)
    assert.is_nil(args.limit)
    assert.equal(0, #args)
  end)

  it("takes values after = and as the next word", function()
    local args = parse("--device=cuda:1", "--episodes", "20", "--learning-rate", "-1e-3",
      "--mode=exact", "--limit", "7")
    assert.equal("cuda:1", args.device)
    assert.equal(20, args.episodes)
    assert.equal(-1e-3, args.learning_rate)
    assert.equal("exact", args.mode)
    assert.equal(7, args.limit)
    assert.equal("", parse("--device=").device)
    assert.equal("a=b", parse("--device=a=b").device)
  end)

  it("knows flags and their opposites", function()
    assert.is_true(parse("--render").render)
    assert.is_false(parse("--no-log").log)
    assert.is_false(parse("--render=false").render)
    assert.is_true(parse("--render=yes").render)
    assert.is_true(parse("--no-log", "--log").log) -- the last one counts
  end)

  it("treats dashes and underscores alike", function()
    assert.equal(1, parse("--learning_rate=1").learning_rate)
    assert.equal(2, parse("--learning-rate=2").learning_rate)
  end)

  it("keeps the words that are no options, in order", function()
    local args = parse("a", "--episodes=1", "-5", "-", "--", "--device", "b")
    local rest = { args[1], args[2], args[3], args[4], args[5] }
    assert.same({ "a", "-5", "-", "--device", "b" }, rest)
    assert.equal("auto", args.device)
  end)

  it("names the nearest for what it does not know", function()
    assert.equal("unknown option --episods; did you mean --episodes?", failure("--episods=3"))
    assert.equal("unknown option --lerning-rate; did you mean --learning-rate?",
      failure("--lerning-rate", "3"))
    assert.equal("unknown option --no-device; did you mean --device?", failure("--no-device"))
    assert.equal("unknown option --qqqqqqqqqq", failure("--qqqqqqqqqq"))
    assert.equal("unknown option -x; options have two dashes", failure("-x"))
  end)

  it("refuses what is no value of the type", function()
    assert.equal('--episodes needs a whole number, got "2.5"', failure("--episodes=2.5"))
    assert.equal('--episodes needs a number, got "many"', failure("--episodes", "many"))
    assert.equal('--learning-rate needs a number, got "nan"', failure("--learning-rate=nan"))
    assert.equal('--render needs true or false, got "maybe"', failure("--render=maybe"))
    assert.equal('--mode must be one of fast, exact, got "slow"', failure("--mode=slow"))
    assert.equal("--episodes needs a value (integer)", failure("--episodes"))
    assert.equal("--device needs a value (string)", failure("--device", "--render"))
    assert.equal('--no-log takes no value, got "1"', failure("--no-log=1"))
  end)

  it("takes a whole number in any spelling", function()
    assert.equal("1000", tostring(parse("--episodes=1e3").episodes))
  end)

  it("shows what there is with --help", function()
    local nothing, text = parse("--help")
    assert.is_nil(nothing)
    assert.truthy(text:find("--episodes INTEGER +episodes to run %(default: 500%)"))
    assert.truthy(text:find("--learning%-rate NUMBER +of Adam %(default: 0.01%)"))
    assert.truthy(text:find("--no%-log +%(default: true%)"))
    assert.truthy(text:find("--mode STRING +how %(one of fast, exact; default: fast%)"))
    assert.truthy(text:find("--help +show this text and end"))
    assert.equal(text, select(2, parse("-h")))
  end)

  it("raises when the script asks for an argument that was not declared", function()
    local ok, err = pcall(function() return parse().epsiodes end)
    assert.is_false(ok)
    assert.equal('no argument "epsiodes" was declared with rl.args; did you mean "episodes"?',
      err.message)
  end)

  it("refuses a specification that says nothing", function()
    for _, wrong in ipairs { { x = { function() end } }, { x = {} }, { ["a b"] = 1 },
      { x = { 1, type = "float" } } } do
      local ok, err = pcall(rl.args, wrong, {})
      assert.is_false(ok)
      assert.equal("INVALID_ARGUMENT", err.code)
    end
  end)
end)
