--- Optimizers: SGD, Adam, AdamW, RMSprop, with PyTorch's formulas and defaults.
--
--     local optimizer = rl.optim.Adam(policy:parameters(), {lr = 1e-2})
--     optimizer:zero_grad(); loss:backward(); optimizer:step()
--
-- The first argument is a list of tensors, or a list of groups with settings of their own:
--
--     rl.optim.SGD({{params = body:parameters()}, {params = head:parameters(), lr = 1e-3}},
--                  {lr = 1e-2, momentum = 0.9})
--
-- Settings may be changed at any time in `optimizer.param_groups[i]`. A step runs in C, one
-- call a group. A parameter without gradient is left alone and does not count the step.

local core = require "rlengine.core"
local options = require "rlengine.options"

local c = core.optim
local optim = {}

local Optimizer = {}
Optimizer.__index = Optimizer

-- Where a group keeps its C side: a key that scripts do not meet.
local HANDLE = {}

local function fail(...) return options.fail("INVALID_ARGUMENT", ...) end

-- What each kind takes: its settings with defaults, checks, the names of its state, its step.
local kinds = {
  SGD = {
    defaults = { lr = 1e-3, momentum = 0, dampening = 0, weight_decay = 0, nesterov = false },
    states = { "momentum_buffer" },
    step = function(g, h)
      return c.sgd(h, g.lr, g.momentum, g.dampening, g.weight_decay, g.nesterov)
    end,
    check = function(g)
      if g.nesterov and (g.momentum <= 0 or g.dampening ~= 0) then
        fail("SGD: nesterov needs momentum above 0 and dampening 0")
      end
    end,
  },
  Adam = {
    defaults = { lr = 1e-3, betas = { 0.9, 0.999 }, eps = 1e-8, weight_decay = 0 },
    states = { "exp_avg", "exp_avg_sq" },
    step = function(g, h)
      local betas = g.betas
      return c.adam(h, g.lr, betas[1], betas[2], g.eps, g.weight_decay, false)
    end,
  },
  AdamW = {
    defaults = { lr = 1e-3, betas = { 0.9, 0.999 }, eps = 1e-8, weight_decay = 1e-2 },
    states = { "exp_avg", "exp_avg_sq" },
    step = function(g, h)
      local betas = g.betas
      return c.adam(h, g.lr, betas[1], betas[2], g.eps, g.weight_decay, true)
    end,
  },
  RMSprop = {
    defaults = { lr = 1e-2, alpha = 0.99, eps = 1e-8, weight_decay = 0, momentum = 0,
                 centered = false },
    states = { "square_avg", "momentum_buffer", "grad_avg" },
    step = function(g, h)
      return c.rmsprop(h, g.lr, g.alpha, g.eps, g.weight_decay, g.momentum, g.centered)
    end,
  },
}

local function check_group(name, group)
  for key, value in pairs(group) do
    if key == "betas" then
      for i = 1, 2 do
        local beta = value[i]
        if type(beta) ~= "number" or not (beta >= 0 and beta < 1) then
          fail("%s: betas[%d] must be a number in [0, 1), got %s", name, i, tostring(beta))
        end
      end
    elseif type(value) == "number" and (value < 0 or value ~= value) then
      fail("%s: %s must not be negative, got %s", name, key, tostring(value))
    end
  end
  if kinds[name].check then kinds[name].check(group) end
end

local function copy(value)
  if type(value) ~= "table" then return value end
  local t = {}
  for i, v in ipairs(value) do t[i] = v end
  return t
end

-- Each kind's settings with their types, for messages that name the nearest.
local function known_options(kind)
  local known = {}
  for key, value in pairs(kind.defaults) do known[key] = type(value) end
  return known
end

local function new_group(name, given, defaults)
  local known = known_options(kinds[name])
  known.params = "table"
  options.check(name, given, known)
  local group = { params = copy(given.params) }
  for key, value in pairs(defaults) do
    group[key] = copy(given[key] == nil and value or given[key])
  end
  check_group(name, group)
  if #group.params == 0 then
    fail("%s: the list of parameters is empty", name)
  end
  group[HANDLE] = c.new(group.params)
  return group
end

local function refuse_shared(name, groups)
  local seen = {}
  for i, group in ipairs(groups) do
    for _, p in ipairs(group.params) do
      if seen[p] then fail("%s: a parameter is in groups %d and %d", name, seen[p], i) end
      seen[p] = i
    end
  end
end

local function new(name, params, settings)
  local kind = kinds[name]
  if type(params) ~= "table" then
    fail("%s: expected a list of tensors or of groups, got %s", name, type(params))
  end
  settings = options.check(name, settings, known_options(kind))
  local defaults = {}
  for key, value in pairs(kind.defaults) do
    if settings[key] == nil then defaults[key] = value else defaults[key] = settings[key] end
  end
  local groups = {}
  if type(params[1]) == "table" then
    for i, given in ipairs(params) do
      if type(given) ~= "table" or type(given.params) ~= "table" then
        fail("%s: group %d has no list `params`", name, i)
      end
      groups[i] = new_group(name, given, defaults)
    end
    refuse_shared(name, groups)
  else
    groups[1] = new_group(name, { params = params }, defaults)
  end
  return setmetatable({ name = name, defaults = defaults, param_groups = groups }, Optimizer)
end

for name in pairs(kinds) do
  optim[name] = function(params, settings) return new(name, params, settings) end
end

--- One step with the gradients as they are.
function Optimizer:step()
  local step, groups = kinds[self.name].step, self.param_groups
  for i = 1, #groups do
    local group = groups[i]
    step(group, group[HANDLE])
  end
end

--- Let go of all gradients. With `{set_to_none = false}` they are set to zero instead.
function Optimizer:zero_grad(settings)
  local keep = false
  if settings ~= nil then
    options.check("zero_grad", settings, { set_to_none = "boolean" })
    keep = settings.set_to_none == false
  end
  local groups, zero_grad = self.param_groups, c.zero_grad
  for i = 1, #groups do zero_grad(groups[i][HANDLE], keep) end
end

--- Add a group of parameters: `{params = list, lr = ...}`.
function Optimizer:add_param_group(given)
  if type(given) ~= "table" or type(given.params) ~= "table" then
    fail("%s: a group needs a list `params`", self.name)
  end
  local groups = copy(self.param_groups)
  groups[#groups + 1] = new_group(self.name, given, self.defaults)
  refuse_shared(self.name, groups)
  self.param_groups = groups
end

--- Everything a restart needs: `state[i]` of parameter i (counted over all groups) with
-- `step` and its tensors, which are the optimizer's own; and the settings of the groups.
function Optimizer:state_dict()
  local state, groups, n = {}, {}, 0
  local names = kinds[self.name].states
  for i, group in ipairs(self.param_groups) do
    local settings = { params = {} }
    for key in pairs(self.defaults) do settings[key] = copy(group[key]) end
    for j = 1, #group.params do
      n = n + 1
      settings.params[j] = n
      local values = { c.state(group[HANDLE], j) }
      local entry = { step = values[1] }
      for k, name in ipairs(names) do entry[name] = values[k + 1] end
      state[n] = entry
    end
    groups[i] = settings
  end
  return { name = self.name, state = state, param_groups = groups }
end

local function check_state_dict(self, dict)
  if type(dict) ~= "table" or type(dict.state) ~= "table"
    or type(dict.param_groups) ~= "table" then
    fail("load_state_dict: expected what state_dict returned")
  end
  if dict.name ~= self.name then
    fail("load_state_dict: this is the state of %s, the optimizer is %s",
      tostring(dict.name), self.name)
  end
  if #dict.param_groups ~= #self.param_groups then
    fail("load_state_dict: the state has %d groups, the optimizer %d", #dict.param_groups,
      #self.param_groups)
  end
  local n = 0
  for i, group in ipairs(self.param_groups) do
    local given = dict.param_groups[i]
    if #given.params ~= #group.params then
      fail("load_state_dict: group %d of the state has %d parameters, the optimizer's %d", i,
        #given.params, #group.params)
    end
    check_group(self.name, given)
    for j, p in ipairs(group.params) do
      n = n + 1
      for _, name in ipairs(kinds[self.name].states) do
        local t = (dict.state[n] or {})[name]
        if t and table.concat(t.shape, ",") ~= table.concat(p.shape, ",") then
          fail("load_state_dict: %s of parameter %d of group %d is [%s], the parameter [%s]",
            name, j, i, table.concat(t.shape, ","), table.concat(p.shape, ","))
        end
      end
    end
  end
end

--- Go on from a `state_dict`. The tensors are copied. What does not fit changes nothing.
function Optimizer:load_state_dict(dict)
  check_state_dict(self, dict)
  local names, n = kinds[self.name].states, 0
  for i, group in ipairs(self.param_groups) do
    local given = dict.param_groups[i]
    for key in pairs(self.defaults) do
      if given[key] ~= nil then group[key] = copy(given[key]) end
    end
    for j = 1, #group.params do
      n = n + 1
      local s = dict.state[n] or {}
      c.set_state(group[HANDLE], j, s.step or 0, s[names[1]], s[names[2] or false],
        s[names[3] or false])
    end
  end
end

function Optimizer:__tostring()
  local lines = { self.name .. " (" }
  for i, group in ipairs(self.param_groups) do
    local keys, words = {}, {}
    for key in pairs(self.defaults) do keys[#keys + 1] = key end
    table.sort(keys)
    for k, key in ipairs(keys) do
      local v = group[key]
      words[k] = key .. " = " .. (type(v) == "table" and "{" .. table.concat(v, ", ") .. "}"
        or tostring(v))
    end
    lines[#lines + 1] = ("  group %d: %d tensors, %s"):format(i, #group.params,
      table.concat(words, ", "))
  end
  lines[#lines + 1] = ")"
  return table.concat(lines, "\n")
end

return optim
