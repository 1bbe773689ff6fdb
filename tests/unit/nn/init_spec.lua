-- Initial weights: bounds and moments of PyTorch's formulas, orthogonality.

local rl = require "rlengine"
local init = rl.nn.init

local function moments(t)
  local x = t:detach():reshape(-1)
  return x:mean():item(), x:std():item(), x:min():item(), x:max():item()
end

local function near(expected, got, tolerance)
  assert.is_true(math.abs(expected - got) <= tolerance,
    ("expected %g, got %g"):format(expected, got))
end

describe("initial weights", function()
  before_each(function() rl.manual_seed(1) end)

  it("of Linear are uniform within 1/sqrt(in_features)", function()
    local layer = rl.nn.Linear(100, 4000)
    for _, t in ipairs{ layer.weight, layer.bias } do
      local mean, std, low, high = moments(t)
      near(0, mean, 0.005)
      near(0.1 / math.sqrt(3), std, 0.003)
      assert.is_true(low >= -0.1 and low < -0.099 and high <= 0.1 and high > 0.099)
    end
  end)

  it("depend on the seed alone", function()
    rl.manual_seed(5)
    local a = rl.nn.Linear(3, 4)
    rl.manual_seed(5)
    local b = rl.nn.Linear(3, 4)
    assert.is_true(rl.equal(a.weight:detach(), b.weight:detach()))
    assert.is_false(rl.equal(a.weight:detach(), rl.nn.Linear(3, 4).weight:detach()))
  end)

  it("follow Glorot and He", function()
    local w = rl.empty(300, 200)
    local _, std, _, high = moments(init.xavier_uniform_(w))
    near(math.sqrt(2 / 500), std, 1e-3)
    near(math.sqrt(6 / 500), high, 1e-3)
    _, std = moments(init.xavier_normal_(w, 2))
    near(2 * math.sqrt(2 / 500), std, 1e-3)
    _, std = moments(init.kaiming_normal_(w, { nonlinearity = "relu" }))
    near(math.sqrt(2 / 200), std, 1e-3)
    _, std = moments(init.kaiming_normal_(w, { nonlinearity = "relu", mode = "fan_out" }))
    near(math.sqrt(2 / 300), std, 1e-3)
    _, _, _, high = moments(init.kaiming_uniform_(w, { a = math.sqrt(5) }))
    near(1 / math.sqrt(200), high, 1e-4)
    near(5 / 3, init.calculate_gain("tanh"), 1e-12)
    near(math.sqrt(2 / 1.04), init.calculate_gain("leaky_relu", 0.2), 1e-12)
  end)

  it("fill constants and normals, through parameters and views too", function()
    local layer = rl.nn.Linear(5, 5)
    init.zeros_(layer.bias)
    assert.are.equal(0, layer.bias:abs():sum():item())
    init.constant_(layer.weight, 0.5)
    assert.are.equal(12.5, layer.weight:sum():item())
    assert.is_true(layer.weight.requires_grad)
    local w = rl.zeros(2000, 2)
    init.normal_(w:select(2, 2), 3, 0.5)
    assert.are.equal(0, w:select(2, 1):abs():sum():item())
    local mean, std = moments(w:select(2, 2))
    near(3, mean, 0.05)
    near(0.5, std, 0.03)
  end)

  it("orthogonal_ gives right angles, for wide, tall and square matrices", function()
    for _, size in ipairs{ { 4, 9 }, { 9, 4 }, { 6, 6 }, { 64, 128 }, { 1, 5 } } do
      for _, dtype in ipairs{ "f32", "f64" } do
        local w = init.orthogonal_(rl.empty(size[1], size[2], { dtype = dtype }), 2)
        local product = size[1] <= size[2] and w:matmul(w:t()) or w:t():matmul(w)
        local n = math.min(size[1], size[2])
        local error = (product - rl.eye(n, { dtype = dtype }) * 4):abs():max():item()
        assert.is_true(error < (dtype == "f32" and 2e-6 or 1e-14), tostring(error))
      end
    end
    local w = init.orthogonal_(rl.empty(4, 3, 2))
    local m = w:reshape(4, 6)
    assert.is_true((m:matmul(m:t()) - rl.eye(4)):abs():max():item() < 1e-6)
    -- no side is preferred: the corner is negative about half of the time
    local negative = 0
    for _ = 1, 200 do
      if init.orthogonal_(rl.empty(2, 2))[1][1]:item() < 0 then negative = negative + 1 end
    end
    assert.is_true(negative > 60 and negative < 140)
  end)

  it("refuse what has no fan", function()
    for _, name in ipairs{ "xavier_uniform_", "kaiming_normal_", "orthogonal_" } do
      local ok, err = pcall(init[name], rl.empty(3))
      assert.is_false(ok)
      assert.are.equal("INVALID_ARGUMENT", err.code)
    end
    local ok, err = pcall(init.calculate_gain, "rely")
    assert.is_false(ok)
    assert.is_truthy(err.message:find('did you mean "relu"', 1, true))
  end)
end)
