-- Sequential:act draws what Categorical would draw from the net's result.

local core = require "rlengine.core"
local rl = require "rlengine"
local nn = rl.nn

local devices = { rl.default_device().name }
if rl.device_count "emu" > 0 and rl.default_device().type == "cpu" then
  devices[2] = "emu"
end

for _, name in ipairs(devices) do
  describe("Sequential:act on " .. name, function()
    local function net(...)
      return nn.Sequential(nn.Linear(4, 40), nn.ReLU(), nn.Linear(40, 3), ...):to(name)
    end

    local function by_hand(policy, x, given, kind)
      return rl.no_grad(function()
        local m = rl.distributions.Categorical { [kind] = policy(x) }
        local action = m:sample(given)
        return action, m:log_prob(action)
      end)
    end

    local function check(policy, kind, shape)
      local x = rl.randn(shape):to(name)
      rl.manual_seed(7)
      local action, log_prob = policy:act(x)
      local after = rl.rand(3)
      rl.manual_seed(7)
      local want, want_log_prob = by_hand(policy, x, nil, kind)
      assert.is_true(rl.equal(want, action))
      assert.is_true(rl.equal(want_log_prob, log_prob))
      assert.is_true(rl.equal(rl.rand(3), after)) -- the stream is as far
      assert.is_false(log_prob.requires_grad)
      assert.equal(#shape - 1, action:dim())
    end

    it("gives the actions and log-probs of the distribution", function()
      for _, shape in ipairs { { 4 }, { 1, 4 }, { 33, 4 }, { 2, 5, 4 }, { 300, 4 } } do
        check(net(nn.Softmax(-1)), "probs", shape)
        check(net(), "logits", shape)
      end
    end)

    it("takes the rows' keys", function()
      local policy, x = net(nn.Softmax(-1)), rl.randn(9, 4):to(name)
      local keys = rl.row_keys(9, name)
      local action, log_prob = policy:act(x, { keys = keys })
      local want, want_log_prob = by_hand(policy, x, { keys = keys }, "probs")
      assert.is_true(rl.equal(want, action))
      assert.is_true(rl.equal(want_log_prob, log_prob))
      assert.is_true(rl.equal(action, (policy:act(x, { keys = keys }))))
      assert.has_error(function() policy:act(x, { key = keys }) end)
    end)

    it("draws from what it is given where it has no layers", function()
      local logits = rl.tensor({ { 0, 100 }, { 100, 0 } }, { device = name })
      assert.same({ 1, 0 }, (nn.Sequential():act(logits)):totable())
    end)

    it("takes one launch where the device has it", function()
      if name == "cpu" then return end
      local policy = net(nn.Softmax(-1))
      local before = core.nn.plan_runs()
      policy:act(rl.randn(5, 4):to(name))
      assert.equal(before + 1, core.nn.plan_runs())
    end)

    it("names a row that nothing can be drawn from", function()
      local x = rl.zeros(3, 4, { device = name })
      x[2]:fill_(0 / 0)
      local ok, err = pcall(function() net(nn.Softmax(-1)):act(x) end)
      assert.is_false(ok)
      assert.equal("INVALID_ARGUMENT", err.code)
      assert.truthy(err.message:find "row 2", err.message)
    end)
  end)
end
