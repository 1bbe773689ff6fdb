-- What a script sees of gradients: modes, accumulation, refusals, operations of its own.
local rl = require "rlengine"

local function refusal(fn, ...)
  local ok, err = pcall(fn, ...)
  assert.is_false(ok)
  return err
end

describe("autograd", function()
  it("computes the gradients of the manual's example", function()
    local x = rl.tensor{ { 1, 2 }, { 3, 4 } }
    local w = rl.ones(2, 3):requires_grad_()
    local y = (x:matmul(w) + 1):relu():sum()
    y:backward()
    assert.same({ { 4, 4, 4 }, { 6, 6, 6 } }, w.grad:totable())
    assert.is_true(w.is_leaf)
    assert.equal("sum", y.grad_fn)
  end)

  it("accumulates until grad is cleared", function()
    local x = rl.tensor({ 2 }, { requires_grad = true })
    for _ = 1, 2 do (x * 3):backward() end
    assert.equal(6, x.grad:item())
    x.grad = nil
    assert.is_nil(x.grad);
    (x * 3):backward()
    assert.equal(3, x.grad:item())
  end)

  it("no_grad passes results and errors and comes back", function()
    local x = rl.ones(1):requires_grad_()
    local y, z = rl.no_grad(function(a) return x * a, "z" end, 2)
    assert.is_false(y.requires_grad)
    assert.equal("z", z)
    local err = refusal(rl.no_grad, function() error("inside") end)
    assert.matches("inside", tostring(err))
    assert.is_true(rl.is_grad_enabled())
    assert.is_true((x * 2).requires_grad)
    rl.no_grad(function()
      assert.is_true(rl.enable_grad(function() return x * 2 end).requires_grad)
    end)
  end)

  it("each coroutine has its own mode", function()
    local x = rl.ones(1):requires_grad_()
    local co = coroutine.wrap(function()
      rl.no_grad(function() coroutine.yield((x * 2).requires_grad) end)
      coroutine.yield((x * 2).requires_grad)
    end)
    if rawget(_G, "jit") or _VERSION ~= "Lua 5.1" then
      assert.is_false(co())
      assert.is_true((x * 2).requires_grad)
      assert.is_true(co())
    end
  end)

  it("names the script line of a freed graph", function()
    local x = rl.ones(1):requires_grad_()
    local y = x:exp()
    y:backward()
    local err = refusal(y.backward, y)
    assert.equal("FAILED_PRECONDITION", err.code)
    assert.matches("exp %(recorded at [^)]*autograd_spec.lua:%d+%)", err.message)
    assert.matches("retain_graph", err.message)
    local z = x:exp()
    z:backward{ retain_graph = true }
    z:backward()
    assert.near(3 * math.exp(1), x.grad:item(), 1e-5)
  end)

  it("detects an in-place change of a saved tensor, also through a view", function()
    local x = rl.ones(2):requires_grad_()
    local h = x * 1
    local y = h:square():sum()
    rl.no_grad(function() h[1] = 7 end)
    assert.matches("changed in place", refusal(y.backward, y).message)
  end)

  it("refuses in-place changes of leaves and a stale view", function()
    local x = rl.ones(2):requires_grad_()
    assert.matches("leaf", refusal(x.add_, x, 1).message)
    local h = x * 1
    local v = h[1]
    h:add_(1)
    assert.matches("view", refusal(function() return v * 2 end).message)
  end)

  it("refuses a vector without a gradient, and second derivatives", function()
    local x = rl.ones(2):requires_grad_()
    local y = x * 2
    assert.matches("one element", refusal(y.backward, y).message)
    y:backward(rl.tensor{ 1, 10 })
    assert.same({ 2, 20 }, x.grad:totable())
    local z = (x * 2):sum()
    assert.equal("UNIMPLEMENTED", refusal(z.backward, z, { create_graph = true }).code)
    assert.matches("no graph", refusal(x:detach().backward, x:detach()).message)
  end)

  it("detach shares the data and leaves the graph", function()
    local x = rl.ones(2):requires_grad_()
    local d = (x * 3):detach()
    assert.is_false(d.requires_grad)
    local ok = pcall(function() return rl.arange(2):requires_grad_() end)
    assert.is_false(ok)
  end)

  it("flows through max, sort, gather and where to the place that was taken", function()
    local x = rl.tensor({ { 1, 5 }, { 7, 2 } }, { requires_grad = true })
    local v = x:max(2)
    v:sum():backward()
    assert.same({ { 0, 1 }, { 1, 0 } }, x.grad:totable())
    x.grad = nil
    local s = x:view(4):sort(1, true);
    (s * rl.tensor{ 4, 3, 2, 1 }):sum():backward()
    assert.same({ { 1, 3 }, { 4, 2 } }, x.grad:totable())
    x.grad = nil
    rl.where(x:gt(2), x, x * 0):sum():backward()
    assert.same({ { 0, 1 }, { 1, 0 } }, x.grad:totable())
  end)

  describe("Function", function()
    local Cube = rl.autograd.Function{
      name = "Cube",
      forward = function(ctx, x, factor)
        ctx.x, ctx.factor = x, factor
        return x * x * x * factor
      end,
      backward = function(ctx, grad) return grad * ctx.x * ctx.x * 3 * ctx.factor end,
    }

    it("has a gradient of its own", function()
      local x = rl.tensor({ 2 }, { requires_grad = true })
      local y = Cube(x, 2)
      assert.equal(16, y:item())
      assert.equal("Cube", y.grad_fn)
      y:backward()
      assert.equal(24, x.grad:item())
    end)

    it("records nothing under no_grad and leaves nothing behind", function()
      rl.memory.assert_flat(function()
        local x = rl.tensor({ 2 }, { requires_grad = true })
        Cube(x, 1):backward()
        rl.no_grad(function() assert.is_false(Cube(x, 1).requires_grad) end)
      end)
    end)

    it("says whose gradient has the wrong shape, and passes errors on", function()
      local Wrong = rl.autograd.Function{ name = "Wrong",
        forward = function(_, input) return input * 1 end,
        backward = function() return rl.ones(3) end }
      local x = rl.ones(2):requires_grad_()
      local y = Wrong(x):sum()
      assert.matches("backward of Wrong: gradient 1 is f32%[3%], the input was f32%[2%]",
        refusal(y.backward, y).message)
      local Broken = rl.autograd.Function{ name = "Broken",
        forward = function(_, input) return input * 1 end,
        backward = function() error("no such thing") end }
      local z = Broken(x):sum()
      assert.matches("no such thing", refusal(z.backward, z).message)
    end)
  end)

  describe("gradcheck", function()
    local function f64(values) return rl.tensor(values, { dtype = "f64" }) end

    it("agrees with right gradients, and says how well", function()
      local a, b = f64 { { 1, 2 }, { 3, 4 } }, f64 { 0.5, -2 }
      local worst = rl.autograd.gradcheck(function(x, y, n) return (x * y):exp() / n end,
        { a, b, 3 }, { tol = 1e-5 })
      assert.is_true(worst < 1e-5)
      assert.is_false(a.requires_grad)
      assert.same({ { 1, 2 }, { 3, 4 } }, a:totable())
    end)

    it("names the first element that is off", function()
      local Wrong = rl.autograd.Function{
        forward = function(_, x) return x * x end,
        backward = function(_, grad) return grad * 4 end }
      local err = refusal(rl.autograd.gradcheck, Wrong, { f64 { 2, 3 } })
      assert.equal("FAILED_PRECONDITION", err.code)
      assert.matches("element 2 of input 1 is 3.0909%d+, differences say 4.6363", err.message)
    end)

    it("refuses what it cannot check", function()
      local check = rl.autograd.gradcheck
      assert.matches("no input is a f64 tensor", refusal(check, rl.exp, { rl.ones(2) }).message)
      assert.matches("must return a tensor", refusal(check, print, { f64 { 1 } }).message)
      assert.matches('unknown option "eps_"',
        refusal(check, rl.exp, { f64 { 1 } }, { eps_ = 1 }).message)
    end)
  end)
end)
