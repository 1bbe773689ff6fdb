-- Own classes of modules: registration, listing, saving, loading, modes, printing.

local rl = require "rlengine"
local nn = rl.nn

local Policy = nn.class "Policy"
function Policy:init()
  self.affine1 = nn.Linear(4, 8)
  self.dropout = nn.Dropout(0.6)
  self.affine2 = nn.Linear(8, 2)
end
function Policy:forward(x)
  return self.affine2(self.dropout(self.affine1(x)):relu()):softmax(-1)
end

local function names(iterate, first, second)
  local list = {}
  for name in iterate, first, second do list[#list + 1] = name end
  return list
end

local function raises(code, text, fn, ...)
  local ok, err = pcall(fn, ...)
  assert.is_false(ok)
  assert.are.equal(code, err.code)
  assert.is_truthy(err.message:find(text, 1, true), err.message .. "  lacks  " .. text)
end

describe("a class of modules", function()
  it("constructs instances that run forward", function()
    local policy = Policy()
    local y = policy(rl.randn(3, 4))
    assert.are.same({ 3, 2 }, y.shape)
    assert.is_true(math.abs(y:sum():item() - 3) < 1e-5)
    assert.is_true(y.requires_grad)
    assert.are.equal(policy(rl.zeros(4)).dtype, "f32")
  end)

  it("passes arguments to init and to forward, and returns all results", function()
    local Two = nn.class "Two"
    function Two:init(a, b) self.sum = a + b end
    function Two:forward(...) return self.sum, select("#", ...), ... end
    local two = Two(3, 4)
    local sum, n, a, b, c = two(1, nil, 3)
    assert.are.same({ 7, 3, 1, 3 }, { sum, n, a, c })
    assert.is_nil(b)
  end)

  it("lists parameters in the order of assignment, each once", function()
    local policy = Policy()
    assert.are.same({ "affine1.weight", "affine1.bias", "affine2.weight", "affine2.bias" },
      names(policy:named_parameters()))
    local shapes = {}
    for i, p in ipairs(policy:parameters()) do shapes[i] = table.concat(p.shape, "x") end
    assert.are.same({ "8x4", "8", "2x8", "2" }, shapes)
    policy.again = policy.affine1
    assert.are.equal(4, #policy:parameters())
    assert.are.same({ "affine1", "dropout", "affine2", "again" }, names(policy:named_children()))
    assert.are.same({ "", "affine1", "dropout", "affine2" }, names(policy:named_modules()))
    assert.are.equal(4, #policy:modules())
  end)

  it("takes leaves that require grad and Parameter as parameters, other tensors not", function()
    local Own = nn.class "Own"
    function Own:init()
      self.a = rl.zeros(2):requires_grad_()
      self.b = nn.Parameter(rl.ones(3))
      self.frozen = nn.Parameter(rl.ones(1), false)
      self.constant = rl.ones(5)
      self.computed = self.a * 2
      self:register_buffer("mean", rl.zeros(4))
      self:register_parameter("late", rl.zeros(2))
      self.count = 3
    end
    local own = Own()
    assert.are.same({ "a", "b", "frozen", "late" }, names(own:named_parameters()))
    assert.are.same({ "mean" }, names(own:named_buffers()))
    assert.is_true(own.b.requires_grad)
    assert.is_false(own.frozen.requires_grad)
    local keys = {}
    for name in pairs(own:state_dict()) do keys[#keys + 1] = name end
    table.sort(keys)
    assert.are.same({ "a", "b", "frozen", "late", "mean" }, keys)
  end)

  it("sees fields that are replaced, removed, or become modules later", function()
    local policy = Policy()
    policy.affine2 = nn.Linear(8, 5)
    assert.are.same({ 2, 5 }, { policy(rl.zeros(2, 4)):size() })
    assert.are.equal(5, policy:parameters()[3].shape[1])
    policy.head = false
    policy.head = nn.Linear(2, 2)
    assert.are.equal(6, #policy:parameters())
    policy.head = nil
    assert.are.equal(4, #policy:parameters())
    local weight = nn.Parameter(rl.zeros(8, 4))
    policy.affine1.weight = weight
    assert.are.equal(weight, policy:parameters()[1])
  end)

  it("inherits from another class", function()
    local Wide = nn.class("Wide", Policy)
    function Wide:init()
      self.super.init(self)
      self.extra_layer = nn.Linear(2, 2)
    end
    local wide = Wide()
    assert.are.equal(6, #wide:parameters())
    assert.are.same({ 1, 2 }, wide(rl.zeros(1, 4)).shape)
    function Wide:forward(x) return self.extra_layer(self.super.forward(self, x)) end
    assert.is_true(math.abs(Wide()(rl.zeros(1, 4)):sum():item()) < 10)
  end)

  it("says what is missing without forward", function()
    local Empty = nn.class "Empty"
    raises("UNIMPLEMENTED", "Empty has no forward", Empty(), rl.zeros(1))
    local late = Empty()
    function Empty:forward(x) return x end -- luacheck: ignore self
    assert.are.equal(1, late(1))
    late.forward = function() return "own" end
    assert.are.equal("own", late(1))
    assert.are.equal(1, Empty()(1))
  end)

  it("prints its layers and the number of parameters", function()
    assert.are.equal([[
Policy(
  (affine1): Linear(in_features=4, out_features=8, bias=true)
  (dropout): Dropout(p=0.6)
  (affine2): Linear(in_features=8, out_features=2, bias=true)
)  58 parameters]], tostring(Policy()))
    assert.are.equal("ReLU()  0 parameters", tostring(nn.ReLU()))
    assert.are.equal([[
Sequential(
  (0): Linear(in_features=1, out_features=1, bias=false)
  (1): Sequential(
    (0): Tanh()
  )
)  1 parameters]], tostring(nn.Sequential(nn.Linear(1, 1, { bias = false }),
      nn.Sequential(nn.Tanh()))))
  end)

  it("switches training mode all the way down", function()
    local policy = Policy()
    local x = rl.ones(64, 4)
    assert.is_true(policy.dropout.training)
    assert.are.equal(policy, policy:eval())
    assert.is_false(policy.dropout.training)
    assert.is_true(rl.equal(policy(x), policy(x)))
    policy:train()
    assert.is_false(rl.equal(policy(x), policy(x)))
  end)

  it("freezes and zeroes gradients", function()
    local policy = Policy():requires_grad_(false)
    assert.is_false(policy(rl.zeros(1, 4)).requires_grad)
    assert.are.equal(4, #policy:parameters())
    policy:requires_grad_()
    policy(rl.ones(2, 4)):square():sum():backward()
    for _, p in ipairs(policy:parameters()) do assert.is_truthy(p.grad) end
    policy:zero_grad()
    for _, p in ipairs(policy:parameters()) do assert.is_nil(p.grad) end
  end)

  it("applies a function to all modules, children first", function()
    local order = {}
    Policy():apply(function(m) order[#order + 1] = m.__name end)
    assert.are.equal("Policy", order[#order])
    assert.are.equal(4, #order)
  end)

  it("moves to another type, and the optimizer goes on", function()
    local policy = Policy():eval()
    local optimizer = rl.optim.Adam(policy:parameters(), { lr = 0.1 })
    policy(rl.ones(1, 4))[1][1]:backward()
    optimizer:step()
    local weight = policy.affine1.weight
    local before = policy.affine1.weight:detach():clone()
    assert.are.equal(policy, policy:to("f64"))
    assert.are.equal(weight, policy.affine1.weight)
    assert.are.equal("f64", weight.dtype)
    assert.are.equal("f64", weight.grad.dtype)
    assert.is_true(rl.equal(weight:detach():to("f32"), before))
    optimizer:zero_grad()
    policy(rl.ones(1, 4, { dtype = "f64" }))[1][1]:backward()
    optimizer:step()
    assert.is_false(rl.equal(weight:detach():to("f32"), before))
    raises("INVALID_ARGUMENT", "floats", policy.to, policy, "i64")
    raises("INVALID_ARGUMENT", "to: expected a device, a float type or both, got nothing",
      policy.to, policy)
    raises("INVALID_ARGUMENT", "to: expected a device, a float type or both, got nil",
      policy.to, policy, nil)
    assert.are.equal("f64", Policy():to{ dtype = "f64" }.affine2.bias.dtype)
    assert.are.equal("f32", Policy():to("cpu").affine2.bias.dtype)
  end)

  it("is not moved under a graph that needs the weights", function()
    local policy = Policy()
    local loss = policy(rl.ones(1, 4)):log():sum()
    raises("FAILED_PRECONDITION", "graph", policy.to, policy, "f64")
    loss:backward()
    policy:to("f64")
    assert.are.equal("f64", policy.affine1.weight.dtype)
  end)

  it("accounts parameters, gradients and optimizer state to their owners", function()
    local function held()
      collectgarbage()
      collectgarbage()
      local sums = { weights = 0, gradients = 0, optimizer = 0 }
      for _, row in ipairs(rl.memory.report()) do
        sums[row.owner] = (sums[row.owner] or 0) + row.bytes
      end
      return sums
    end
    local before = held()
    local function grown(owner, bytes)
      local now = held()
      assert.are.equal(bytes, now[owner] - before[owner], owner)
    end
    local layer = nn.Linear(100, 50)
    local bytes = 4 * 5050
    grown("weights", bytes)
    local optimizer = rl.optim.Adam(layer:parameters())
    layer(rl.ones(2, 100)):sum():backward()
    optimizer:step()
    grown("gradients", bytes)
    grown("optimizer", 2 * bytes)
    layer:to("f64")
    grown("weights", 2 * bytes)
    grown("gradients", 2 * bytes)
    optimizer:zero_grad()
    grown("gradients", 0)
    layer, optimizer = nil, nil -- luacheck: ignore
    grown("weights", 0)
    grown("optimizer", 0)
  end)
end)

describe("state_dict", function()
  it("round-trips into another instance", function()
    local a, b = Policy(), Policy()
    local x = rl.randn(5, 4)
    a:eval()
    b:eval()
    assert.is_false(rl.equal(a(x), b(x)))
    local result = b:load_state_dict(a:state_dict())
    assert.are.same({ missing = {}, unexpected = {} }, result)
    assert.is_true(rl.equal(a(x), b(x)))
    -- copied, not shared
    rl.no_grad(function() a.affine1.weight:zero_() end)
    assert.is_false(rl.equal(a(x), b(x)))
  end)

  it("shares memory with the module and has no history", function()
    local policy = Policy()
    local dict = policy:state_dict()
    assert.is_false(dict["affine1.weight"].requires_grad)
    dict["affine2.bias"]:fill_(7)
    assert.are.equal(7, policy.affine2.bias[1]:item())
  end)

  it("names what is missing, unexpected and of the wrong shape, and changes nothing", function()
    local policy = Policy()
    local before = policy.affine2.bias:detach():clone()
    local dict = policy:state_dict()
    for name, t in pairs(dict) do dict[name] = t + 1 end
    dict["affine1.weight"] = nil
    dict["affine3.weight"] = rl.zeros(1)
    dict["affine2.weight"] = rl.zeros(3, 8)
    dict["affine1.bias"] = "no"
    local ok, err = pcall(policy.load_state_dict, policy, dict)
    assert.is_false(ok)
    assert.are.equal("INVALID_ARGUMENT", err.code)
    for _, text in ipairs{ "missing: affine1.weight", "unexpected: affine3.weight",
                           "affine2.weight is [3,8], expected [2,8]",
                           "affine1.bias is a string" } do
      assert.is_truthy(err.message:find(text, 1, true), err.message)
    end
    assert.is_true(rl.equal(before, policy.affine2.bias:detach()))
  end)

  it("loads what fits when not strict", function()
    local policy = Policy()
    local result = policy:load_state_dict({ ["affine2.bias"] = rl.ones(2), other = rl.ones(1) },
      { strict = false })
    assert.are.same({ "affine1.weight", "affine1.bias", "affine2.weight" }, result.missing)
    assert.are.same({ "other" }, result.unexpected)
    assert.are.equal(1, policy.affine2.bias[2]:item())
  end)

  it("names the positions of Sequential as PyTorch does", function()
    local net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    assert.are.same({ "0.weight", "0.bias", "2.weight", "2.bias" }, names(net:named_parameters()))
  end)

  it("casts to the module's type", function()
    local a, b = Policy(), Policy():to("f64")
    b:load_state_dict(a:state_dict())
    assert.are.equal("f64", b.affine1.weight.dtype)
    assert.is_true(rl.equal(b.affine1.weight:detach():to("f32"), a.affine1.weight:detach()))
  end)
end)

describe("layers", function()
  it("of Sequential run in order, also when added", function()
    local net = nn.Sequential():add(nn.Linear(2, 3)):add(nn.Tanh())
    local x = rl.randn(4, 2)
    assert.is_true(rl.equal(net(x), net[1](x):tanh()))
    assert.are.equal(2, #net)
    raises("INVALID_ARGUMENT", "argument 2 must be a module", nn.Sequential, nn.ReLU(), 3)
    raises("INVALID_ARGUMENT", "argument 3 must be a module", net.add, net, "x")
  end)

  it("of ModuleList are part of the module", function()
    local Net = nn.class "Net"
    function Net:init() self.layers = nn.ModuleList{ nn.Linear(2, 2), nn.Linear(2, 2) } end
    assert.are.same({ "layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias" },
      names(Net():named_parameters()))
  end)

  it("refuse what they cannot be made of", function()
    raises("INVALID_ARGUMENT", "in_features", nn.Linear, 0, 3)
    raises("INVALID_ARGUMENT", "out_features", nn.Linear, 3)
    raises("INVALID_ARGUMENT", 'did you mean "bias"', nn.Linear, 3, 3, { bios = false })
    raises("INVALID_ARGUMENT", "0..1", nn.Dropout, 2)
    raises("INVALID_ARGUMENT", "expected a name", nn.class)
    raises("INVALID_ARGUMENT", "expected a tensor", nn.Parameter, 3)
  end)

  it("keep their sums in training mode: dropout grows what it leaves", function()
    local y = nn.Dropout(0.5)(rl.ones(200, 500))
    local zeros = y:eq(0):to("f32"):mean():item()
    assert.is_true(math.abs(zeros - 0.5) < 0.01)
    assert.are.equal(2, y:max():item())
    assert.is_true(math.abs(y:mean():item() - 1) < 0.02)
    assert.are.equal(0, nn.Dropout(1)(rl.ones(10)):sum():item())
  end)
end)
