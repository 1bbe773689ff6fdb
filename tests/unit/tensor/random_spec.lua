-- Random streams: the same numbers for the same seed, fixed here for every machine.
local rl = require "rlengine"

describe("random", function()
  it("repeats from a seed", function()
    rl.manual_seed(1)
    local a, b = rl.randn(5), rl.rand(3)
    rl.manual_seed(1)
    assert.is_true(a:equal(rl.randn(5)))
    assert.is_true(b:equal(rl.rand(3)))
    assert.is_false(a:equal(rl.randn(5)))
  end)

  it("gives Philox's numbers, bit for bit", function()
    -- Seed 0, stream 0, block 0 of Philox4x32-10 is a published known answer:
    -- 6627e8d5 e169c58d bc57ac4c 9b00dbd8. Uniforms are the upper 24 bits.
    rl.manual_seed(0)
    local u = rl.rand(4):totable()
    local words = { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 }
    for i, word in ipairs(words) do
      assert.equal(math.floor(word / 256) / 2 ^ 24, u[i])
    end
  end)

  it("does not depend on how a draw is cut", function()
    rl.manual_seed(9)
    local whole = rl.rand(8)
    rl.manual_seed(9)
    local first, second = rl.rand(4), rl.rand(4)
    assert.is_true(whole:equal(rl.cat{ first, second }))
  end)

  it("has the moments of its distributions", function()
    rl.manual_seed(3)
    local n = rl.randn(100000)
    assert.near(0, n:mean():item(), 0.02)
    assert.near(1, n:std():item(), 0.02)
    local u = rl.rand(100000)
    assert.near(0.5, u:mean():item(), 0.01)
    assert.is_true(u:max():item() < 1 and u:min():item() >= 0)
    local b = rl.bernoulli(rl.full({ 100000 }, 0.3))
    assert.near(0.3, b:mean():item(), 0.01)
    local i = rl.randint(2, 5, { 30000 })
    assert.equal(2, i:min():item())
    assert.equal(4, i:max():item())
    assert.near(3, i:to("f32"):mean():item(), 0.02)
    local p = rl.randperm(50):sort()
    assert.is_true(p:equal(rl.arange(50)))
  end)

  it("fills tensors that are there", function()
    rl.manual_seed(6)
    local u = rl.zeros(1000):uniform_(-2, 3)
    assert.is_true(u:min():item() >= -2 and u:max():item() < 3 and u:max():item() > 2)
    assert.near(5, rl.zeros(1000):normal_(5, 0.1):mean():item(), 0.05)
    local i = rl.zeros(1000, { dtype = "i64" })
    assert.equal(i, i:random_(2, 5))
    assert.same({ 2, 4 }, { i:min():item(), i:max():item() })
    i:random_(3)
    assert.same({ 0, 2 }, { i:min():item(), i:max():item() })
    for _, arguments in ipairs { {}, { "a" }, { 1.5 }, { 5, 5 } } do
      local ok, err = pcall(i.random_, i, arguments[1], arguments[2])
      assert.is_false(ok)
      assert.equal("INVALID_ARGUMENT", err.code)
    end
  end)

  it("multinomial follows the shares and names a bad row", function()
    rl.manual_seed(4)
    local probs = rl.tensor{ 0.1, 0.2, 0.7 }:expand(20000, 3)
    local counts = rl.one_hot(probs:multinomial(), 3):to("f32"):mean(1):totable()
    for i, share in ipairs{ 0.1, 0.2, 0.7 } do assert.near(share, counts[i], 0.02) end
    local ok, err = pcall(rl.multinomial, rl.tensor{ { 0.5, 0.5 }, { 0 / 0, 1 } })
    assert.is_false(ok)
    assert.equal("INVALID_ARGUMENT", err.code)
    assert.equal("multinomial: row 2: the probability of class 0 is nan; it must be finite and not "
      .. "negative", err.message)
    ok, err = pcall(rl.multinomial, rl.tensor { 0, 0 })
    assert.is_false(ok)
    assert.equal("multinomial: row 1: all probabilities are 0, nothing can be drawn", err.message)
  end)

  it("keyed draws are the same one row at a time and in a batch", function()
    rl.manual_seed(5)
    local keys = rl.row_keys(16)
    local x = rl.ones(16, 40)
    local batch = x:dropout(0.6, keys)
    for i = 1, 16 do
      assert.is_true(batch[i]:equal(x[i]:dropout(0.6, keys[{ { i, i } }])))
    end
    local kept = batch:gt(0):to("f32"):mean():item()
    assert.near(0.4, kept, 0.1)
    assert.near(2.5, batch:max():item(), 1e-6)
  end)
end)
