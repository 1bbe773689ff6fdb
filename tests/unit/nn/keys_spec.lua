-- A forward pass repeated with its keys, in a batch or one row at a time, gives the same
-- bits: outputs, log-probabilities, gradients of masks.

local rl = require "rlengine"
local nn = rl.nn

local Policy = nn.class "Policy"
function Policy:init(out)
  self.affine1 = nn.Linear(4, 128)
  self.dropout = nn.Dropout(0.6)
  self.affine2 = nn.Linear(128, out or 2)
end
function Policy:forward(x)
  return self.affine2(self.dropout(self.affine1(x)):relu())
end

describe("row keys", function()
  it("repeat a batch one row at a time, bit for bit", function()
    rl.manual_seed(3)
    local policy = Policy()
    local states = rl.randn(257, 4)
    local all, keys = policy(states, { keys = true })
    assert.are.same({ 257 }, keys.shape)
    assert.are.equal("i64", keys.dtype)
    for i = 1, 257, 16 do
      local one, same = policy(states[i], { keys = keys:narrow(1, i, 1) })
      assert.is_true(rl.equal(one, all[i]), "row " .. i)
      assert.is_true(rl.equal(same, keys:narrow(1, i, 1)))
    end
    local half = policy(states:narrow(1, 101, 50), { keys = keys:narrow(1, 101, 50) })
    assert.is_true(rl.equal(half, all:narrow(1, 101, 50)))
    assert.is_false(rl.equal(policy(states), all))
  end)

  it("repeat acting one row at a time in one batch", function()
    local policy = Policy()
    local states, keys, log_probs, actions = {}, {}, {}, {}
    for i = 1, 40 do
      states[i] = rl.randn(4)
      local logits, key = policy(states[i], { keys = true })
      local dist = rl.distributions.Categorical{ logits = logits }
      actions[i] = dist:sample{ keys = key }
      log_probs[i], keys[i] = dist:log_prob(actions[i]), key
    end
    local batch_keys = rl.cat(keys)
    local logits = policy(rl.stack(states), { keys = batch_keys })
    local dist = rl.distributions.Categorical{ logits = logits }
    local again = dist:sample{ keys = batch_keys }
    assert.is_true(rl.equal(again, rl.stack(actions)))
    local now = dist:log_prob(again)
    assert.is_true(rl.equal(now, rl.stack(log_probs)))
    -- the ratio of the first update is exactly 1
    assert.are.equal(40, (now - rl.stack(log_probs)):exp():eq(1):sum():item())
  end)

  it("hold for probabilities as for logits", function()
    local policy = Policy(7)
    local states = rl.randn(65, 4)
    local logits, keys = policy(states, { keys = true })
    local p = logits:softmax(-1)
    local dist = rl.distributions.Categorical{ probs = p }
    local actions = dist:sample()
    local all = dist:log_prob(actions)
    for i = 1, 65 do
      local one = policy(states[i], { keys = keys:narrow(1, i, 1) }):softmax(-1)
      local d = rl.distributions.Categorical{ probs = one }
      assert.is_true(rl.equal(d:log_prob(actions[i]), all[i]))
    end
  end)

  it("give each dropout of a pass its own mask", function()
    local Twice = nn.class "Twice"
    function Twice:init() self.a, self.b = nn.Dropout(0.5), nn.Dropout(0.5) end
    function Twice:forward(x) return self.a(x), self.b(x) end
    local twice = Twice()
    local a, b, keys = twice(rl.ones(4, 100), { keys = true })
    assert.is_false(rl.equal(a, b))
    local c, d = twice(rl.ones(4, 100), { keys = keys })
    assert.is_true(rl.equal(a, c))
    assert.is_true(rl.equal(b, d))
  end)

  it("end with the pass, also when it fails", function()
    local Bad = nn.class "Bad"
    function Bad:init() self.dropout = nn.Dropout(0.5) end
    function Bad:forward(x)
      local y = self.dropout(x)
      if self.fail then error("on purpose") end
      return y
    end
    local bad = Bad()
    local x = rl.ones(2, 64)
    local y, keys = bad(x, { keys = true })
    bad.fail = true
    local ok, err = pcall(bad, x, { keys = keys })
    assert.is_false(ok)
    assert.is_truthy(tostring(err):find("on purpose"))
    bad.fail = false
    assert.is_false(rl.equal(bad(x), y)) -- fresh masks again
    -- a keyed pass inside another one leaves the outer one's draws as they were
    local Outer = nn.class "Outer"
    function Outer:init() self.inner, self.dropout = bad, nn.Dropout(0.5) end
    function Outer:forward(v)
      local first = self.dropout(v)
      if self.nested then self.inner(v, { keys = true }) end
      return first, self.dropout(v)
    end
    local outer = Outer()
    local a1, b1, k = outer(x, { keys = true })
    outer.nested = true
    local a2, b2 = outer(x, { keys = k })
    assert.is_true(rl.equal(a1, a2) and rl.equal(b1, b2))
  end)

  it("drop the same gradients", function()
    local layer = nn.Dropout(0.5)
    local x = rl.ones(3, 50):requires_grad_()
    local y = layer(x)
    y:sum():backward()
    assert.is_true(rl.equal(x.grad, y:detach()))
  end)

  it("must be one a row", function()
    local policy = Policy()
    local ok, err = pcall(policy, rl.zeros(3, 4), { keys = rl.zeros(2, { dtype = "i64" }) })
    assert.is_false(ok)
    assert.are.equal("INVALID_ARGUMENT", err.code)
    ok, err = pcall(policy, rl.zeros(3, 4), { keys = rl.zeros(3) })
    assert.is_false(ok)
    assert.are.equal("INVALID_ARGUMENT", err.code)
  end)

  it("leave nothing behind in a loop", function()
    local policy = Policy()
    local states = rl.randn(8, 4)
    local function once()
      local logits, keys = policy(states, { keys = true })
      rl.distributions.Categorical{ logits = logits }:sample{ keys = keys }
      pcall(policy, states, { keys = states })
    end
    local function live()
      collectgarbage()
      collectgarbage()
      return (require "rlengine.core").tensor.counts()
    end
    once()
    local before = live()
    for _ = 1, 200 do once() end
    assert.are.equal(before, live())
  end)
end)
