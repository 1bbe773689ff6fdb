-- Distributions: samples have the right frequencies, bad parameters are named, known values.
-- Values and gradients against PyTorch are in golden_spec.lua.

local rl = require "rlengine"
local D = rl.distributions

local function near(expected, got, tolerance)
  assert.is_true(math.abs(expected - got) <= tolerance,
    ("expected %.8g, got %.8g"):format(expected, got))
end

local function raises(text, fn, ...)
  local ok, err = pcall(fn, ...)
  assert.is_false(ok)
  assert.are.equal("INVALID_ARGUMENT", err.code)
  assert.is_truthy(err.message:find(text, 1, true), err.message .. "  lacks  " .. text)
end

describe("Categorical", function()
  before_each(function() rl.manual_seed(11) end)

  it("has the known values for logits 1, 2, 3", function()
    local d = D.Categorical{ logits = rl.tensor{ 1, 2, 3 } }
    for a, want in pairs{ [0] = -2.407606, [1] = -1.407606, [2] = -0.407606 } do
      near(want, d:log_prob(a):item(), 1e-6)
      near(want, d:log_prob(rl.tensor(a, { dtype = "i64" })):item(), 1e-6)
    end
    near(0.8323956, d:entropy():item(), 1e-6)
    assert.are.equal(2, d:mode():item())
  end)

  it("samples with its probabilities, from probs and logits", function()
    local p = rl.tensor{ { 0.1, 0.2, 0.7 }, { 0.5, 0.5, 0 } }
    for _, d in ipairs{ D.Categorical{ probs = p * 3 }, D.Categorical{ logits = p:log() } } do
      local s = d:sample{ 20000 }
      assert.are.same({ 20000, 2 }, s.shape)
      assert.are.equal("i64", s.dtype)
      for row = 1, 2 do
        for class = 0, 2 do
          local share = s:select(2, row):eq(class):to("f32"):mean():item()
          near(p[row][class + 1]:item(), share, 0.012)
        end
      end
    end
    assert.are.same({ 2 }, D.Categorical{ probs = p }:sample().shape)
    assert.are.same({}, D.Categorical{ probs = p[1] }:sample().shape)
    assert.are.same({ 2, 3 }, D.Categorical{ probs = p[1] }:sample{ shape = { 2, 3 } }.shape)
    assert.are.same({ 2, 3, 2 }, D.Categorical{ probs = p }:sample{ 2, 3 }.shape)
  end)

  it("gives the seed's samples again", function()
    local d = D.Categorical{ logits = rl.randn(50, 4) }
    rl.manual_seed(1)
    local a = d:sample()
    rl.manual_seed(1)
    assert.is_true(rl.equal(a, d:sample()))
    assert.is_false(rl.equal(a, d:sample()))
  end)

  it("puts draws in front of the batch in the right places", function()
    local p = rl.eye(3) -- row i always gives class i - 1
    local s = D.Categorical{ probs = p }:sample{ 4 }
    for i = 1, 3 do assert.are.equal(4 * (i - 1), s:select(2, i):sum():item()) end
  end)

  it("allows logits of -inf for actions that cannot be taken", function()
    local d = D.Categorical{ logits = rl.tensor{ 0, -math.huge, 0 } }
    assert.are.equal(0, d:sample{ 1000 }:eq(1):sum():item())
    near(math.log(2), d:entropy():item(), 1e-6)
    assert.are.equal(-math.huge, d:log_prob(1):item())
    near(math.log(2) - 0.8323956 + 0, D.kl_divergence(d, d):item() + math.log(2) - 0.8323956, 1e-6)
  end)

  it("names the row of a bad parameter", function()
    local nan = 0 / 0
    raises("row 2 of f32[3,2] is {nan, 0.5}", D.Categorical,
      { probs = rl.tensor{ { 1, 0 }, { nan, 0.5 }, { 0, 1 } } })
    raises("row 3 of f32[3,2] is {-0.25, 1}", D.Categorical,
      { probs = rl.tensor{ { 1, 0 }, { 0.5, 0.5 }, { -0.25, 1 } } })
    raises("row 1", D.Categorical, { probs = rl.tensor{ math.huge, 1 } })
    raises("logits: row 2", D.Categorical, { logits = rl.tensor{ { 1, 0 }, { nan, 0.5 } } })
    raises("not all -inf", D.Categorical, { logits = rl.tensor{ -math.huge, -math.huge } })
    local d = D.Categorical{ probs = rl.tensor{ { 1, 0 }, { 0, 0 } } }
    raises("row 2 of f32[2,2] is {0, 0}", d.sample, d)
    raises("row 2 of f32[2,2] is {0, 0}", d.log_prob, d, rl.zeros(2, { dtype = "i64" }))
    -- also through views
    raises("row 1 of f32[2,2] is {1, nan}", D.Categorical,
      { probs = rl.tensor{ { 1, 0 }, { nan, 0.5 } }:t() })
  end)

  it("refuses what it cannot be made of", function()
    raises("probs = ", D.Categorical, rl.ones(2))
    raises("either probs or logits", D.Categorical, {})
    raises("either probs or logits", D.Categorical, { probs = rl.ones(2), logits = rl.ones(2) })
    raises('did you mean "logits"', D.Categorical, { logit = rl.ones(2) })
    raises("must be a tensor", D.Categorical, { probs = { 1, 2 } })
    raises("must be floats", D.Categorical, { probs = rl.ones(2, { dtype = "i64" }) })
    raises("dimension of classes", D.Categorical, { probs = rl.tensor(1) })
  end)

  it("refuses actions that are no classes", function()
    local d = D.Categorical{ probs = rl.ones(2, 3) }
    local ok, err = pcall(d.log_prob, d, rl.tensor({ 0, 3 }, { dtype = "i64" }))
    assert.is_false(ok)
    assert.are.equal("OUT_OF_RANGE", err.code)
    raises("integers", d.log_prob, d, rl.tensor{ 0, 1 })
    raises("", d.log_prob, d, rl.zeros(5, { dtype = "i64" }))
  end)

  it("detects probabilities changed before backward", function()
    local p = rl.tensor{ 0.5, 0.5 }:requires_grad_()
    local q = p * 1
    local loss = D.Categorical{ probs = q }:log_prob(1)
    q:mul_(2)
    local ok, err = pcall(loss.backward, loss)
    assert.is_false(ok)
    assert.are.equal("FAILED_PRECONDITION", err.code)
  end)

  it("prints what it is", function()
    assert.are.equal("Categorical(probs: f32[2,3])",
      tostring(D.Categorical{ probs = rl.ones(2, 3) }))
  end)
end)

describe("Normal", function()
  before_each(function() rl.manual_seed(12) end)

  it("samples with its mean and deviation", function()
    local d = D.Normal{ loc = rl.tensor{ -1, 2 }, scale = rl.tensor{ 0.5, 3 } }
    local s = d:sample{ 20000 }
    assert.are.same({ 20000, 2 }, s.shape)
    near(-1, s:select(2, 1):mean():item(), 0.02)
    near(2, s:select(2, 2):mean():item(), 0.1)
    near(0.5, s:select(2, 1):std():item(), 0.02)
    near(3, s:select(2, 2):std():item(), 0.06)
    assert.are.same({ 2 }, d:sample().shape)
  end)

  it("lets gradients through rsample, not through sample", function()
    local loc = rl.zeros(3):requires_grad_()
    local scale = rl.ones(3):requires_grad_()
    local d = D.Normal{ loc = loc, scale = scale }
    assert.is_false(d:sample().requires_grad)
    local s = d:rsample()
    s:sum():backward()
    assert.are.equal(3, loc.grad:sum():item())
    assert.is_true(rl.allclose(scale.grad, s:detach(), 1e-6, 1e-6))
  end)

  it("takes numbers beside tensors", function()
    local d = D.Normal(rl.zeros(2, { dtype = "f64" }), 2)
    assert.are.equal("f64", d.scale.dtype)
    local log_prob = d:log_prob(rl.zeros(2, { dtype = "f64" }))
    near(-0.5 * math.log(2 * math.pi) - math.log(2), log_prob[1]:item(), 1e-12)
    near(1.4189385, D.Normal(0, 1):entropy():item(), 1e-6)
  end)

  it("names the row of a bad parameter", function()
    raises("Normal: scale: row 2", D.Normal,
      { loc = rl.zeros(2, 1), scale = rl.tensor{ { 1 }, { -1 } } })
    raises("Normal: loc: row 1", D.Normal, { loc = rl.tensor{ 0 / 0 }, scale = rl.ones(1) })
    raises("give loc and scale", D.Normal, { loc = rl.ones(1) })
    raises('did you mean "scale"', D.Normal, { loc = rl.ones(1), scales = rl.ones(1) })
  end)
end)

describe("Bernoulli", function()
  it("samples with its probability", function()
    rl.manual_seed(13)
    local d = D.Bernoulli{ probs = rl.tensor{ 0.2, 0.9 } }
    local s = d:sample{ 20000 }
    near(0.2, s:select(2, 1):mean():item(), 0.012)
    near(0.9, s:select(2, 2):mean():item(), 0.012)
    near(0, D.kl_divergence(d, d):abs():sum():item(), 1e-6)
  end)
end)

describe("kl_divergence", function()
  it("refuses two kinds", function()
    raises("one kind", D.kl_divergence, D.Normal(0, 1), D.Categorical{ probs = rl.ones(2) })
    raises("one kind", D.kl_divergence, 1, 2)
  end)
end)
