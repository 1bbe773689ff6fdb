-- Spaces from Lua: what they are, what is in them, what they sample; random streams.
local core = require "rlengine.core"
local rl = require "rlengine"

local Box, Discrete = rl.env.Box, rl.env.Discrete

local function failure(fn, ...)
  local ok, err = pcall(fn, ...)
  assert.is_false(ok)
  assert.is_truthy(core.error.is(err), tostring(err))
  assert.equal("INVALID_ARGUMENT", err.code)
  return err.message
end

describe("Discrete", function()
  it("has n, start, dtype and shape", function()
    local space = Discrete(3, { start = -1 })
    assert.equal(3, space.n)
    assert.equal(-1, space.start)
    assert.equal("i64", space.dtype)
    assert.same({}, space.shape)
    assert.equal("Discrete", space.kind)
    assert.is_nil(space.low)
    assert.equal("Discrete(3, start -1)", tostring(space))
    assert.equal("Discrete(2)", tostring(Discrete(2)))
  end)

  it("contains its integers, as numbers or tensors", function()
    local space = Discrete(3, { start = -1 })
    for _, v in ipairs{ -1, 0, 1 } do
      assert.is_true(space:contains(v))
      assert.is_true(space:contains(rl.tensor(v, { dtype = "i64" })))
    end
    for _, v in ipairs{ -2, 2, 0.5, "0", {}, rl.tensor(0), rl.zeros(2, { dtype = "i64" }) } do
      local inside, why = space:contains(v)
      assert.is_false(inside)
      assert.equal("string", type(why))
    end
    assert.is_false((space:contains(nil)))
  end)

  it("samples what Gymnasium samples", function()
    local space, got = Discrete(3, { start = -1, seed = 37 }), {}
    for i = 1, 12 do got[i] = space:sample() end
    assert.same({ -1, 1, 0, 0, -1, -1, 1, 1, -1, -1, 1, 0 }, got)
    space:seed(37)
    assert.equal(-1, space:sample())
    assert.equal(1, space:sample())
  end)

  it("refuses what is none", function()
    failure(Discrete, 0)
    failure(Discrete, -1)
    failure(Discrete, 1.5)
    failure(Discrete, "2")
    failure(Discrete)
    assert.is_truthy(failure(Discrete, 2, { sed = 1 }):find('did you mean "seed"', 1, true))
    failure(Discrete, 2, { seed = -1 })
  end)
end)

describe("Box", function()
  it("takes its shape from what it is given", function()
    assert.same({ 1 }, Box{ low = 0, high = 1 }.shape)
    assert.same({ 84, 84 }, Box{ low = 0, high = 255, shape = { 84, 84 }, dtype = "u8" }.shape)
    assert.same({ 2, 3 }, Box{ low = { { 0, 0, 0 }, { 1, 1, 1 } }, high = 9 }.shape)
    assert.same({ 3 }, Box{ low = -1, high = rl.tensor{ 1, 2, 3 } }.shape)
    assert.same({}, Box{ low = 0, high = 1, shape = {} }.shape)
    assert.equal("Box(-1, [1, 2, 3], {3}, f32)",
      tostring(Box{ low = -1, high = rl.tensor{ 1, 2, 3 } }))
    assert.equal("Box(0, 255, {84, 84}, u8)",
      tostring(Box{ low = 0, high = 255, shape = { 84, 84 }, dtype = "u8" }))
  end)

  it("has bounds as tensors", function()
    local space = Box{ low = { -1, -math.huge }, high = { 1, 5 } }
    assert.equal("f32", space.low.dtype)
    assert.same({ -1, -math.huge }, space.low:totable())
    assert.same({ 1, 5 }, space.high:totable())
    assert.equal("Box", space.kind)
    assert.is_nil(space.n)
  end)

  it("contains tensors, tables and single numbers", function()
    local space = Box{ low = { -1, 0 }, high = { 1, 5 } }
    assert.is_true(space:contains{ 1, 0 })
    assert.is_true(space:contains(rl.tensor{ -1, 5 }))
    assert.is_true(space:contains(rl.tensor({ -1, 5 }, { dtype = "i64" })))
    for _, v in ipairs{
      { 1.1, 0 }, { 0, -0.1 }, { 0, 0 / 0 }, { 1 }, { 1, 2, 3 }, { 1, "2" }, { { 1, 2 } }, 1, "x",
      rl.tensor{ 1 }, rl.tensor{ { 1, 1 } }, rl.tensor{ 1, 6 },
    } do
      local inside, why = space:contains(v)
      assert.is_false(inside)
      assert.equal("string", type(why))
    end
    local single = Box{ low = 0, high = 1 }
    assert.is_true(single:contains(0.5))
    assert.is_false((single:contains(2)))
    local bytes = Box{ low = 0, high = 255, shape = { 2 }, dtype = "u8" }
    assert.is_true(bytes:contains{ 0, 255 })
    assert.is_false((bytes:contains{ 0, 256 }))
    assert.is_false((bytes:contains{ 0, 0.5 }))
    local nested = Box{ low = 0, high = 9, shape = { 2, 2 } }
    assert.is_true(nested:contains{ { 1, 2 }, { 3, 4 } })
    assert.is_false((nested:contains{ { 1, 2 }, { 3 } }))
    assert.is_false((nested:contains{ 1, 2, 3, 4 }))
  end)

  it("samples what Gymnasium samples", function()
    local space = Box{ low = -2, high = 5, shape = { 2, 3 }, seed = 11 }
    local got = space:sample()
    assert.same({ 2, 3 }, got.shape)
    assert.same({
      { -0x1.199a2ap+0, 0x1.7eb4b8p+0, 0x1.1af14ap+1 },
      { -0x1.cc96dcp+0, -0x1.edd53ap-1, 0x1.1fd6aap+2 },
    }, got:totable())
    local integers = Box{ low = { 0, -3, 1 }, high = { 10, 3, 1 }, dtype = "i32", seed = 5 }
    assert.same({ 8, 2, 1 }, integers:sample():totable())
    assert.same({ 3, -3, 1 }, integers:sample():totable())
  end)

  it("samples within its bounds, and differently without a seed", function()
    local inf = math.huge
    local space = Box{ low = { -inf, -inf, 2, -1 }, high = { inf, 3, inf, 1 } }
    for _ = 1, 200 do assert.is_true((space:contains(space:sample()))) end
    local wide = Box{ low = 0, high = 1, shape = { 8 } }
    assert.are_not.same(wide:sample():totable(), wide:copy():sample():totable())
  end)

  it("refuses what is none", function()
    assert.is_truthy(failure(Box, { low = 0 }):find("high is missing", 1, true))
    failure(Box, { low = 1, high = 0 })
    failure(Box, { low = 0 / 0, high = 0 })
    failure(Box, { low = 0, high = 300, dtype = "u8" })
    failure(Box, { low = 0, high = 1, dtype = "f33" })
    failure(Box, { low = 0, high = 1, shape = { 0 } })
    failure(Box, { low = 0, high = 1, shape = { 1.5 } })
    failure(Box, { low = 0, high = 1, shape = { 2, 2, 2, 2, 2, 2, 2, 2, 2 } })
    failure(Box, { low = 0, high = 1, shape = { 2 ^ 40, 2 ^ 40 } })
    assert.is_truthy(failure(Box, { low = { 0, 0 }, high = { 1, 1, 1 } }):find("high", 1, true))
    assert.is_truthy(failure(Box, { low = 0, hihg = 1 }):find('did you mean "high"', 1, true))
    failure(Box, 3)
  end)
end)

describe("spaces", function()
  it("are equal when they have the same values", function()
    assert.is_true(Discrete(2) == Discrete(2))
    assert.is_false(Discrete(2) == Discrete(3))
    assert.is_false(Discrete(2) == Box{ low = 0, high = 1 })
    assert.is_true(Box{ low = { 0, 0 }, high = 1 } == Box{ low = 0, high = 1, shape = { 2 } })
    assert.is_false(Box{ low = 0, high = 1 } == Box{ low = 0, high = 1, dtype = "f64" })
    assert.is_true(Box{ low = { 0, 1 }, high = 2 }:copy() == Box{ low = { 0, 1 }, high = 2 })
  end)

  it("of two environments sample on their own", function()
    local a, b = rl.env.make "CartPole-v1", rl.env.make "CartPole-v1"
    a.action_space:seed(1)
    b.action_space:seed(1)
    local got = {}
    for i = 1, 20 do
      got[i] = a.action_space:sample()
      if i % 2 == 0 then b.action_space:sample() end
    end
    a.action_space:seed(1)
    for i = 1, 20 do assert.equal(got[i], a.action_space:sample()) end
  end)
end)

describe("rl.env.rng", function()
  it("gives numpy's numbers", function()
    local rng = rl.env.rng(7)
    assert.equal(0x1.400c8353e3ca9p-1, rng:random())
    rng:seed(7)
    local want = { 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 0, 0, 1 }
    for i = 1, 16 do assert.equal(want[i], rng:integers(2)) end
    rng:seed(7)
    assert.equal(-0x1.e6616511a4e23p-2, rng:uniform(-0.6, -0.4))
    assert.equal("number", type(rng:normal()))
    assert.are_not.equal(rl.env.rng():random(), rl.env.rng():random())
  end)

  it("refuses bad arguments", function()
    local rng = rl.env.rng(1)
    failure(rl.env.rng, -1)
    failure(rl.env.rng, "x")
    failure(rng.integers, rng, 0)
    failure(rng.integers, rng, 1.5)
    failure(rng.integers, rng)
    failure(rng.uniform, rng, 0)
    failure(rng.uniform, rng, 0, math.huge)
    failure(rng.random, {})
  end)
end)
