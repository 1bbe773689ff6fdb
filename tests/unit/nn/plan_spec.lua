-- The fast path of Sequential under no_grad: the same bits as its layers one by one, however
-- the weights, the layers or the modes change in between.

local core = require "rlengine.core"
local rl = require "rlengine"
local nn = rl.nn

local function one_by_one(net, x)
  for i = 1, #net do x = net[i](x) end
  return x
end

-- Runs the net both ways; says whether the fast path was taken.
local function check(net, x)
  local fast, slow, taken
  rl.no_grad(function()
    local before = core.nn.plan_runs()
    fast = net(x)
    taken = core.nn.plan_runs() > before
    slow = one_by_one(net, x)
  end)
  assert.are.same(slow.shape, fast.shape)
  assert.is_true(rl.equal(slow, fast))
  return taken
end

local function policy()
  return nn.Sequential(nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 2))
end

describe("a Sequential under no_grad", function()
  it("gives the bits of its layers, for vectors, rows and batches", function()
    local net = policy()
    for _, shape in ipairs{ { 4 }, { 1, 4 }, { 64, 4 }, { 257, 4 }, { 3, 5, 4 }, { 0, 4 } } do
      assert.is_true(check(net, rl.randn(shape)))
    end
    for _, layers in ipairs{
      { nn.Linear(4, 3) }, { nn.Linear(4, 300), nn.Tanh(), nn.Linear(300, 7), nn.Sigmoid() },
      { nn.Linear(4, 2), nn.Softmax(-1) }, { nn.Linear(4, 5), nn.LogSoftmax() },
      { nn.Linear(4, 33, { bias = false }), nn.Softplus(), nn.Linear(33, 1) },
      { nn.Identity(), nn.Linear(4, 6), nn.Dropout(0), nn.ReLU(), nn.Linear(6, 6) },
    } do
      local net2 = nn.Sequential((table.unpack or unpack)(layers))
      for _, rows in ipairs{ 1, 5, 100 } do assert.is_true(check(net2, rl.randn(rows, 4))) end
    end
  end)

  it("gives a row the same bits alone and in a batch", function()
    local net, x = policy(), rl.randn(100, 4)
    rl.no_grad(function()
      local all = net(x)
      for i = 1, 100, 9 do assert.is_true(rl.equal(net(x[i]), all[i])) end
    end)
  end)

  it("follows changes of its weights", function()
    local net, x = policy(), rl.randn(3, 4)
    assert.is_true(check(net, x))
    local optimizer = rl.optim.Adam(net:parameters(), { lr = 0.1 })
    local before = rl.no_grad(net, x)
    net(x):sum():backward()
    optimizer:step()
    assert.is_true(check(net, x))
    assert.is_false(rl.equal(before, rl.no_grad(net, x)))
    net:load_state_dict(policy():state_dict())
    assert.is_true(check(net, x))
    rl.no_grad(function() net[3].bias:fill_(5) end)
    assert.is_true(check(net, x))
    net[1].weight = nn.Parameter(rl.ones(128, 4))
    assert.is_true(check(net, x))
    net[3].bias = nil
    assert.is_true(check(net, x))
  end)

  it("follows changes of its layers", function()
    local net, x = policy(), rl.randn(3, 4)
    assert.is_true(check(net, x))
    net[2] = nn.Tanh()
    assert.is_true(check(net, x))
    net:add(nn.Softmax(-1))
    assert.is_true(check(net, x))
    assert.are.same({ 3, 2 }, rl.no_grad(net, x).shape)
    net[4].dim = 1
    assert.is_false(check(net, x))
    net[4] = nil
    assert.is_true(check(net, x))
  end)

  it("takes its layers one by one where a plan cannot be", function()
    local net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.ReLU())
    local x = rl.ones(2, 4)
    rl.no_grad(function()
      assert.is_false(rl.equal(net(x), net(x))) -- dropout is at work
      net:eval()
      assert.is_true(check(net, x))
      net:train()
      assert.is_false(rl.equal(net(x), net(x)))
    end)
    net = policy()
    assert.is_true(check(net, rl.randn(2, 4)))
    assert.is_true(check(net, rl.randn(4, 2):t():contiguous():reshape(2, 4)))
    assert.is_false(check(net, rl.randn(4, 3):t())) -- a view of other strides
    net:to("f64")
    assert.is_false(check(net, rl.randn(2, 4, { dtype = "f64" })))
    assert.is_false(check(nn.Sequential(nn.ReLU(), nn.Linear(4, 2)), rl.randn(2, 4)))
    assert.is_false(check(nn.Sequential(nn.Linear(4, 2), nn.Tanh(), nn.ReLU()), rl.randn(2, 4)))
    assert.is_false(check(nn.Sequential(), rl.randn(2, 4)))
  end)

  it("records a graph where one is wanted", function()
    local net, x = policy(), rl.randn(3, 4)
    assert.is_true(check(net, x))
    local y = net(x)
    assert.is_true(y.requires_grad)
    y:sum():backward()
    assert.is_truthy(net[1].weight.grad)
    net:requires_grad_(false)
    assert.is_false(net(x).requires_grad)
    local leaf = rl.randn(1, 4):requires_grad_()
    net(leaf):sum():backward()
    assert.is_truthy(leaf.grad)
  end)

  it("names wrong shapes as the layers do", function()
    local net = policy()
    local ok, err = pcall(rl.no_grad, net, rl.randn(3, 5))
    assert.is_false(ok)
    assert.are.equal("INVALID_ARGUMENT", err.code)
    ok = pcall(rl.no_grad, nn.Sequential(nn.Linear(4, 3), nn.Linear(5, 2)), rl.randn(4))
    assert.is_false(ok)
  end)

  it("leaves nothing behind", function()
    local function live()
      collectgarbage()
      collectgarbage()
      local _, blocks = core.host_memory()
      return core.tensor.counts(), blocks
    end
    local function once()
      local net = policy()
      for _ = 1, 3 do rl.no_grad(net, rl.randn(4)) end
      net[2] = nn.Tanh()
      rl.no_grad(net, rl.randn(4))
    end
    for _ = 1, 30 do once() end
    local tensors, blocks = live()
    for _ = 1, 30 do once() end
    local now, blocks_now = live()
    assert.are.equal(tensors, now)
    assert.is_true(blocks_now <= blocks, blocks_now .. " blocks, before " .. blocks)
  end)
end)
