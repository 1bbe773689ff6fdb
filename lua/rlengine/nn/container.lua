--- Modules made of modules: Sequential, ModuleList.

local autograd = require "rlengine.autograd"
local core = require "rlengine.core"
local distributions = require "rlengine.distributions"
local layers = require "rlengine.nn.layers"
local module = require "rlengine.nn.module"
local options = require "rlengine.options"

local containers = {}

local function check_module(what, i, value)
  if not module.is_module(value) then
    options.fail("INVALID_ARGUMENT", "%s: argument %d must be a module, got %s", what, i,
      type(value))
  end
end

--- ModuleList{a, b, …} or ModuleList(a, b, …): modules by position, `list[1]`.
local ModuleList = module.class "ModuleList"
containers.ModuleList = ModuleList

function ModuleList:init(...)
  local given = { ... }
  if #given == 1 and not module.is_module(given[1]) and type(given[1]) == "table" then
    given = given[1]
  end
  for _, m in ipairs(given) do self:append(m) end
end

function ModuleList:append(m)
  check_module("ModuleList", #self + 1, m)
  self[#self + 1] = m
  return self
end

-- ---- plans: where nothing is recorded, a Sequential of Linear layers and functions runs in
-- one call of the engine, with the same bits ----

-- Functions that may follow a Linear in a plan, by class.
local plan_functions = {
  [layers.ReLU] = "relu", [layers.Tanh] = "tanh", [layers.Sigmoid] = "sigmoid",
  [layers.Softplus] = "softplus", [layers.Softmax] = "softmax",
  [layers.LogSoftmax] = "log_softmax",
}

local PLAN = {} -- private key of a Sequential: its plan

-- The tensors and functions of the layers as core.nn.plan takes them; nil when there is a
-- layer that cannot be part of a plan.
local function chain(self)
  local list = {}
  for i = 1, #self do
    local m = self[i]
    local class = module.class_of(m)
    if class == layers.Linear then
      list[#list + 1], list[#list + 2], list[#list + 3] = m.weight, m.bias or false, "none"
    elseif plan_functions[class] and #list > 0 and list[#list] == "none"
      and (m.dim == nil or m.dim == -1) then
      list[#list] = plan_functions[class]
    elseif class ~= layers.Dropout and class ~= layers.Identity then
      return nil
    end
  end
  return #list > 0 and list or nil
end

-- A plan, or with handle nil the knowledge that these modules cannot have one; and what it
-- was made from, to see when it no longer holds.
local function compile(self)
  local modules = {}
  for i = 1, #self do modules[i] = self[i] end
  local list = chain(self)
  return { handle = list and core.nn.plan(list), modules = modules, count = #modules,
           tensors = list or {} }
end

-- Whether the plan still says what the modules are.
local function holds(self, plan)
  local modules, tensors = plan.modules, plan.tensors
  if self[plan.count + 1] ~= nil then return false end
  local at = 1
  for i = 1, plan.count do
    local m = modules[i]
    if m ~= self[i] then return false end
    local weight = plan.handle and m.weight
    if weight then
      if weight ~= tensors[at] or (m.bias or false) ~= tensors[at + 1] then return false end
      at = at + 3
    elseif plan.handle and m.dim ~= nil and m.dim ~= -1 then
      return false
    end
  end
  return true
end

-- Whether a Dropout of the plan is at work.
local function drops(plan)
  local modules = plan.modules
  for i = 1, plan.count do
    local m = modules[i]
    if m.p ~= nil and m.p ~= 0 and m.training then return true end
  end
  return false
end

--- Sequential(layer, layer, …): each layer's result is the next one's input. `:add(layer)`
-- appends and returns the Sequential, for chains.
local Sequential = module.class "Sequential"
containers.Sequential = Sequential

function Sequential:init(...)
  for i = 1, select("#", ...) do
    local m = select(i, ...)
    check_module("Sequential", i, m)
    self[i] = m
  end
end

function Sequential:add(m)
  check_module("Sequential", #self + 1, m)
  self[#self + 1] = m
  return self
end

local plan_forward = core.nn.plan_forward

local function plan_of(self)
  local plan = rawget(self, PLAN)
  if plan == nil or not holds(self, plan) then
    plan = compile(self)
    rawset(self, PLAN, plan)
  end
  return plan
end

function Sequential:forward(x)
  local plan = plan_of(self)
  if plan.handle and not drops(plan) then
    local y = plan_forward(plan.handle, x)
    if y ~= nil then return y end
  end
  for i = 1, #self do x = self[i](x) end
  return x
end

--- Draw an action for each row of x, without recording: the classes (i64) and their
-- log-probabilities, as Categorical's sample and log_prob give them. A net that ends in a
-- Softmax gives probabilities, any other logits. On a GPU a few rows take one launch: the way
-- to collect experience where the gradient comes later, from log-probs computed anew.
--
--     local action, log_prob = net:act(states, {keys = keys})
--
-- @param x [..., inputs]
-- @param given {keys = …}, the rows' keys, or nil
function Sequential:act(x, given)
  given = options.check("act", given, { keys = "userdata" })
  return autograd.no_grad(function()
    local plan = plan_of(self)
    if plan.handle and not drops(plan) then
      local action, log_prob =
        core.nn.plan_act(plan.handle, x, given.keys, distributions.SAMPLE_DRAW)
      if action ~= nil then return action, log_prob end
    end
    local last = self[#self]
    local softmax = last and module.class_of(last) == layers.Softmax
    local m = distributions.Categorical { [softmax and "probs" or "logits"] = self(x) }
    local action = m:sample(given)
    return action, m:log_prob(action)
  end)
end

return containers
