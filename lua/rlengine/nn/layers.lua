--- Layers. Each is a class of modules; arguments and defaults are PyTorch's, dimensions count
-- from 1, and what is optional is named in a table at the end.

local core = require "rlengine.core"
local functional = require "rlengine.nn.functional"
local init = require "rlengine.nn.init"
local module = require "rlengine.nn.module"
local options = require "rlengine.options"
local tensor = require "rlengine.tensor"

local class, Parameter = module.class, module.Parameter
local layers = {}

local function positive_integer(what, name, value)
  if type(value) ~= "number" or value < 1 or value % 1 ~= 0 then
    options.fail("INVALID_ARGUMENT", "%s: %s must be a positive integer, got %s", what, name,
      tostring(value))
  end
end

--- Linear(in_features, out_features, {bias = true, device =, dtype =}): x · weightᵀ + bias,
-- with both uniform in ±1/√in_features at the start, as PyTorch's.
local Linear = class "Linear"
layers.Linear = Linear

function Linear:init(in_features, out_features, given)
  positive_integer("Linear", "in_features", in_features)
  positive_integer("Linear", "out_features", out_features)
  given = options.check("Linear", given, { bias = "boolean", device = "any", dtype = "string" })
  local place = { device = given.device, dtype = given.dtype }
  self.in_features, self.out_features = in_features, out_features
  local weight = tensor.empty(out_features, in_features, place)
  init.kaiming_uniform_(weight, { a = math.sqrt(5) })
  self.weight = Parameter(weight)
  if given.bias ~= false then
    local bias = tensor.empty(out_features, place)
    local bound = 1 / math.sqrt(in_features)
    init.uniform_(bias, -bound, bound)
    self.bias = Parameter(bias)
  end
end

local linear = functional.linear

function Linear:forward(x)
  return linear(x, self.weight, self.bias)
end

function Linear:extra_repr()
  return ("in_features=%d, out_features=%d, bias=%s"):format(self.in_features,
    self.out_features, tostring(self.bias ~= nil))
end

--- Dropout(p = 0.5): while training, each element becomes 0 with probability p and the others
-- grow by 1/(1-p). Masks are keyed by row: see Module's call with {keys = …}.
local Dropout = class "Dropout"
layers.Dropout = Dropout

function Dropout:init(p)
  if p == nil then p = 0.5 end
  if type(p) ~= "number" or not (p >= 0 and p <= 1) then
    options.fail("INVALID_ARGUMENT", "Dropout: p must be a number in 0..1, got %s", tostring(p))
  end
  self.p = p
end

local dropout = core.tensor.dropout

function Dropout:forward(x)
  local p = self.p
  if p == 0 or not self.training then return x end
  return dropout(x, p)
end

function Dropout:extra_repr() return ("p=%g"):format(self.p) end

-- Layers that are one function of their input.
local function activation(name, fn)
  local Class = class(name)
  function Class:forward(x) return fn(x) end -- luacheck: ignore self
  layers[name] = Class
  return Class
end

activation("ReLU", core.tensor.relu)
activation("Tanh", core.tensor.tanh)
activation("Sigmoid", core.tensor.sigmoid)
activation("Softplus", core.tensor.softplus)
activation("SiLU", functional.silu)
activation("Identity", function(x) return x end)

-- Layers with one number.
local function activation_with(name, parameter, default, fn)
  local Class = class(name)
  function Class:init(value)
    if value == nil then value = default end
    if type(value) ~= "number" then
      options.fail("INVALID_ARGUMENT", "%s: %s must be a number, got %s", name, parameter,
        tostring(value))
    end
    self[parameter] = value
  end
  function Class:forward(x) return fn(x, self[parameter]) end
  function Class:extra_repr() return ("%s=%g"):format(parameter, self[parameter]) end
  layers[name] = Class
end

activation_with("LeakyReLU", "negative_slope", 0.01, functional.leaky_relu)
activation_with("ELU", "alpha", 1, functional.elu)
activation_with("Softmax", "dim", -1, core.tensor.softmax)
activation_with("LogSoftmax", "dim", -1, core.tensor.log_softmax)

--- Flatten(start_dim = 2, end_dim = -1): dimensions from start to end become one.
local Flatten = class "Flatten"
layers.Flatten = Flatten

function Flatten:init(start_dim, end_dim)
  self.start_dim, self.end_dim = start_dim or 2, end_dim or -1
end

function Flatten:forward(x) return x:flatten(self.start_dim, self.end_dim) end

function Flatten:extra_repr()
  return ("start_dim=%d, end_dim=%d"):format(self.start_dim, self.end_dim)
end

--- Unflatten(dim, sizes): one dimension becomes several.
local Unflatten = class "Unflatten"
layers.Unflatten = Unflatten

function Unflatten:init(dim, sizes)
  self.dim, self.sizes = dim, sizes
end

function Unflatten:forward(x) return x:unflatten(self.dim, self.sizes) end

function Unflatten:extra_repr()
  return ("dim=%d, sizes={%s}"):format(self.dim, table.concat(self.sizes, ", "))
end

-- Losses as modules: the function's options are given when it is made.
for name, fn in pairs{
  MSELoss = functional.mse_loss, L1Loss = functional.l1_loss,
  SmoothL1Loss = functional.smooth_l1_loss, HuberLoss = functional.huber_loss,
  NLLLoss = functional.nll_loss, CrossEntropyLoss = functional.cross_entropy,
  BCEWithLogitsLoss = functional.binary_cross_entropy_with_logits,
} do
  local Loss = class(name)
  function Loss:init(given) self.options = given end
  function Loss:forward(input, target) return fn(input, target, self.options) end
  layers[name] = Loss
end

return layers
