-- Optimizers: trajectories as PyTorch's, groups, saved state, what is refused.

local golden = require "golden"
local rl = require "rlengine"

local load_text = loadstring or load

local function raises(text, fn, ...)
  local ok, err = pcall(fn, ...)
  assert.is_false(ok)
  assert.are.equal("INVALID_ARGUMENT", err.code)
  assert.is_truthy(err.message:find(text, 1, true), err.message .. "  lacks  " .. text)
end

-- tests/golden/torch_optim.txt: start values, gradients, then blocks of settings.
local function read_trajectories()
  local start, gradients, blocks = {}, {}, {}
  for line in io.lines("tests/golden/torch_optim.txt") do
    local word, rest = line:match("^(%S+) (.*)$")
    if word == "start" then
      local name, text = rest:match("^(%a) (.*)$")
      start[name] = text
    elseif word == "gradient" then
      local step, name, text = rest:match("^(%d+) (%a) (.*)$")
      gradients[tonumber(step)] = gradients[tonumber(step)] or {}
      gradients[tonumber(step)][name] = text
    elseif word == "optimizer" then
      local name, options = rest:match("^(%S+) (.*)$")
      options = options:gsub("True", "true"):gsub("False", "false")
      blocks[#blocks + 1] = { name = name, text = options, f32 = {}, f64 = {},
                              options = load_text("return " .. options)() }
    elseif word == "f32" or word == "f64" then
      local step, name, text = rest:match("^(%d+) (%a) (.*)$")
      local steps = blocks[#blocks][word]
      steps[tonumber(step)] = steps[tonumber(step)] or {}
      steps[tonumber(step)][name] = text
    end
  end
  return start, gradients, blocks
end

describe("trajectories as PyTorch's", function()
  local start, gradients, blocks = read_trajectories()
  it("are recorded", function() assert.is_true(#blocks >= 10 and #gradients == 20) end)
  for _, block in ipairs(blocks) do
    it(block.name .. " " .. block.text, function()
      for _, dtype in ipairs{ "f32", "f64" } do
        local params = {}
        for name, text in pairs(start) do
          params[name] = golden.tensor(text, dtype):requires_grad_()
        end
        local optimizer = rl.optim[block.name]({ params.p, params.q }, block.options)
        local compared = 0
        for step, given in ipairs(gradients) do
          for name, text in pairs(given) do params[name].grad = golden.tensor(text, dtype) end
          optimizer:step()
          for name, text in pairs(block[dtype][step] or {}) do
            local want = golden.tensor(text, dtype)
            local rtol, atol = 1e-12, 1e-13
            if dtype == "f32" then rtol, atol = 2e-5, 2e-6 end
            assert.is_true(rl.allclose(params[name]:detach(), want, rtol, atol),
              ("%s step %d %s: %s, expected %s"):format(dtype, step, name, tostring(params[name]),
                tostring(want)))
            compared = compared + 1
          end
        end
        assert.are.equal(14, compared)
      end
    end)
  end
end)

describe("known values", function()
  -- One parameter, from 1, with the gradients .1, -.2, .3 one after the other.
  local function after(name, options)
    local p = rl.ones(1, { dtype = "f64" }):requires_grad_()
    local optimizer = rl.optim[name]({ p }, options)
    for _, g in ipairs{ 0.1, -0.2, 0.3 } do
      p.grad = rl.tensor({ g }, { dtype = "f64" })
      optimizer:step()
    end
    return p:item()
  end
  local function near(a, b, tolerance)
    assert.is_true(math.abs(a - b) < tolerance, ("%.12g, expected %.12g"):format(a, b))
  end

  it("of Adam and RMSprop after three steps", function()
    near(after("Adam", { lr = 1e-3 }), 0.9990228625, 1e-10)
    near(after("Adam", { lr = 1e-3, eps = 1e-5 }), 0.9990229552, 1e-10)
    near(after("AdamW", { lr = 1e-3, weight_decay = 0 }), 0.9990228625, 1e-10)
    near(after("RMSprop", { lr = 7e-4, alpha = 0.99, eps = 1e-5 }), 0.9936484240, 1e-10)
  end)

  it("of a clipped gradient: (3,4) to norm .5 has coefficient .1", function()
    local p = rl.zeros(2):requires_grad_()
    p.grad = rl.tensor{ 3, 4 }
    assert.are.equal(5, rl.nn.clip_grad_norm_({ p }, 0.5))
    near(p.grad[1]:item(), 0.3, 1e-6)
    near(p.grad[2]:item(), 0.4, 1e-6)
    assert.is_true(math.abs(rl.nn.utils.clip_grad_norm_(p, 0.5) - 0.5) < 1e-6)
    rl.nn.clip_grad_value_({ p }, 0.35)
    near(p.grad[2]:item(), 0.35, 1e-6)
  end)
end)

describe("an optimizer", function()
  local function net()
    return rl.nn.Sequential(rl.nn.Linear(3, 4), rl.nn.Tanh(), rl.nn.Linear(4, 1))
  end
  local function train(model, optimizer, steps)
    local x = rl.linspace(-1, 1, 24):reshape(8, 3)
    for _ = 1, steps do
      optimizer:zero_grad()
      model(x):square():mean():backward()
      optimizer:step()
    end
  end

  it("lets go of gradients, or zeroes them", function()
    local model = net()
    local optimizer = rl.optim.SGD(model:parameters())
    model(rl.ones(1, 3)):sum():backward()
    optimizer:zero_grad{ set_to_none = false }
    assert.are.equal(0, model[1].bias.grad:abs():sum():item())
    optimizer:zero_grad()
    assert.is_nil(model[1].bias.grad)
    optimizer:step() -- nothing to do
  end)

  it("lowers a loss", function()
    for name, options in pairs{ SGD = { lr = 0.1 }, Adam = { lr = 0.01 }, AdamW = { lr = 0.01 },
                                RMSprop = { lr = 0.01 } } do
      rl.manual_seed(2)
      local model = net()
      local x = rl.randn(16, 3)
      local before = model(x):square():mean():item()
      train(model, rl.optim[name](model:parameters(), options), 100)
      assert.is_true(model(x):square():mean():item() < before, name)
    end
  end)

  it("with a rate of 0 changes no weight", function()
    local model = net()
    local before = model[1].weight:detach():clone()
    for _, name in ipairs{ "SGD", "Adam", "AdamW", "RMSprop" } do
      train(model, rl.optim[name](model:parameters(), { lr = 0 }), 3)
    end
    assert.is_true(rl.equal(before, model[1].weight:detach()))
  end)

  it("takes groups with settings of their own", function()
    local a, b = rl.ones(1):requires_grad_(), rl.ones(1):requires_grad_()
    local optimizer = rl.optim.SGD({ { params = { a } }, { params = { b }, lr = 1 } },
      { lr = 0.5 })
    a.grad, b.grad = rl.ones(1), rl.ones(1)
    optimizer:step()
    assert.are.equal(0.5, a:item())
    assert.are.equal(0, b:item())
    optimizer.param_groups[1].lr = 2
    optimizer:step()
    assert.are.equal(-1.5, a:item())
    local c = rl.ones(1):requires_grad_()
    optimizer:add_param_group{ params = { c }, lr = 0.25 }
    c.grad = rl.ones(1)
    optimizer:step()
    assert.are.equal(0.75, c:item())
    raises("in groups 1 and 4", optimizer.add_param_group, optimizer, { params = { a } })
    assert.are.equal(3, #optimizer.param_groups)
  end)

  it("goes on from its saved state, bit for bit", function()
    for _, name in ipairs{ "SGD", "Adam", "AdamW", "RMSprop" } do
      rl.manual_seed(4)
      local options = { lr = 0.02 }
      if name == "SGD" or name == "RMSprop" then options.momentum = 0.9 end
      local model = net()
      local optimizer = rl.optim[name](model:parameters(), options)
      train(model, optimizer, 5)
      local copy = net()
      copy:load_state_dict(model:state_dict())
      local second = rl.optim[name](copy:parameters())
      second:load_state_dict(optimizer:state_dict())
      assert.are.equal(0.02, second.param_groups[1].lr)
      train(model, optimizer, 5)
      train(copy, second, 5)
      for i, p in ipairs(model:parameters()) do
        assert.is_true(rl.equal(p:detach(), copy:parameters()[i]:detach()), name)
      end
    end
  end)

  it("refuses a state that does not fit and changes nothing", function()
    local optimizer = rl.optim.Adam(net():parameters(), { lr = 0.5 })
    local other = rl.optim.Adam({ rl.zeros(2):requires_grad_() })
    raises("1 parameters, the optimizer's 4", optimizer.load_state_dict, optimizer,
      other:state_dict())
    raises("the state of SGD", optimizer.load_state_dict, optimizer,
      rl.optim.SGD(net():parameters()):state_dict())
    raises("what state_dict returned", optimizer.load_state_dict, optimizer, {})
    local wrong = optimizer:state_dict()
    wrong.state[2] = { step = 1, exp_avg = rl.zeros(9), exp_avg_sq = rl.zeros(9) }
    raises("exp_avg of parameter 2 of group 1 is [9]", optimizer.load_state_dict, optimizer, wrong)
    assert.are.equal(0.5, optimizer.param_groups[1].lr)
  end)

  it("refuses wrong settings and names the nearest", function()
    local p = { rl.zeros(1):requires_grad_() }
    raises('did you mean "lr"', rl.optim.Adam, p, { ler = 1 })
    raises("must not be negative", rl.optim.Adam, p, { lr = -1 })
    raises("betas[2]", rl.optim.Adam, p, { betas = { 0.9, 1 } })
    raises("nesterov needs momentum", rl.optim.SGD, p, { nesterov = true })
    raises("list of parameters is empty", rl.optim.SGD, {})
    raises("expected a list", rl.optim.SGD, 3)
    raises("parameter 2: expected a tensor, got string", rl.optim.SGD, { p[1], "x" })
    raises("result of an operation", rl.optim.SGD, { p[1] * 2 })
    raises("only floats", rl.optim.SGD, { rl.zeros(1, { dtype = "i64" }) })
    raises("the same tensor", rl.optim.SGD, { p[1], p[1] })
  end)

  it("prints its groups", function()
    local text = tostring(rl.optim.Adam({ rl.zeros(1):requires_grad_() }, { lr = 0.25 }))
    assert.is_truthy(text:find("Adam (", 1, true))
    assert.is_truthy(text:find("betas = {0.9, 0.999}", 1, true))
    assert.is_truthy(text:find("lr = 0.25", 1, true))
  end)

  it("leaves nothing behind", function()
    local function live()
      collectgarbage()
      collectgarbage()
      return (require "rlengine.core").tensor.counts()
    end
    local function once()
      local model = net()
      train(model, rl.optim.Adam(model:parameters()), 3)
    end
    once()
    local before = live()
    for _ = 1, 20 do once() end
    assert.are.equal(before, live())
  end)
end)
