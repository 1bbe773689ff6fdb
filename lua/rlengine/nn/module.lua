--- Modules: what owns parameters and has a forward pass.
--
--     local Policy = rl.nn.class "Policy"
--     function Policy:init() self.affine1 = rl.nn.Linear(4, 128) … end
--     function Policy:forward(x) return self.affine1(x):relu() end
--     local policy = Policy()
--
-- A field of a module that is a module, a parameter (rl.nn.Parameter, or a leaf that
-- requires grad) or a buffer (register_buffer) is part of it: it is listed by parameters(),
-- saved by state_dict(), moved by to(). Order is the order of first assignment.
--
-- An instance is a table. What was assigned lies in it as plain fields, so that a forward
-- pass reads `self.affine1` at the price of a table access; the names and their order lie
-- under a private key, written when a field first appears.

local core = require "rlengine.core"
local io = require "rlengine.io"
local options = require "rlengine.options"

local c = core.nn
local set_row_keys = core.autograd.set_row_keys

local STATE = {} -- private key of an instance: { order = names, kind = name -> kind }
local META = {} -- private key of a class: the metatable of its instances

-- Tensors made by Parameter: they are parameters also while they do not require grad.
local is_parameter = setmetatable({}, { __mode = "k" })

local Module = { __name = "Module" }

local describe -- below

local function is_module(value)
  return type(value) == "table" and rawget(value, STATE) ~= nil
end

local is_tensor = core.tensor.is_tensor

-- What a value is to a module that it is assigned to; nil: an ordinary field.
local function kind_of(value)
  if is_module(value) then return "module" end
  if is_tensor(value) and (is_parameter[value] or c.is_trainable_leaf(value)) then
    return "parameter"
  end
end

local function register(self, name, kind)
  local state = rawget(self, STATE)
  if not state.kind[name] then state.order[#state.order + 1] = name end
  state.kind[name] = kind
end

-- The call of an instance whose class does not define forward itself, or whose instance
-- brought its own.
local function call_by_name(self, ...)
  return self:forward(...)
end

local function assign(self, name, value)
  local kind = kind_of(value)
  if kind then register(self, name, kind) end
  rawset(self, name, value)
  if name == "forward" then
    local own = {}
    for k, v in pairs(getmetatable(self)) do own[k] = v end
    own.__call = call_by_name
    setmetatable(self, own)
  end
end

-- ---- calls: with row keys for dropout, or without ----

local function with_keys(keys, before, draws, ok, ...)
  set_row_keys(before, draws)
  if not ok then error((...), 0) end
  local n = select("#", ...)
  if n == 1 then return (...), keys end
  local results = { ... }
  results[n + 1] = keys
  return (table.unpack or unpack)(results, 1, n + 1)
end

-- policy(x, {keys = true}) takes fresh keys, policy(x, {keys = keys}) repeats; both return
-- the keys behind the results.
local function call_keyed(forward, self, x, given, ...)
  options.check("forward", given, { keys = "userdata|boolean" })
  local keys = given.keys
  if keys == true then keys = c.row_keys(x) end
  local before, draws = set_row_keys(keys)
  return with_keys(keys, before, draws, pcall(forward, self, x, ...))
end

local function asks_for_keys(given)
  return type(given) == "table" and getmetatable(given) == nil and given.keys ~= nil
end

-- Whether fn is function(self, x): as far as this Lua tells.
local function takes_one_input(fn)
  local info = debug and debug.getinfo(fn, "u")
  return info ~= nil and info.nparams == 2 and not info.isvararg
end

-- The call of instances of a class with `forward`. The plain cases come first: one call of a
-- layer is some tens of instructions.
local function caller(forward)
  if takes_one_input(forward) then
    return function(self, x, given)
      if given == nil then return forward(self, x) end
      if asks_for_keys(given) then return call_keyed(forward, self, x, given) end
      return forward(self, x, given)
    end
  end
  return function(self, x, given, ...)
    if given ~= nil and asks_for_keys(given) then
      return call_keyed(forward, self, x, given, ...)
    end
    return forward(self, x, given, ...)
  end
end

-- ---- classes ----

local function construct(class, ...)
  local self = setmetatable({ training = true, [STATE] = { order = {}, kind = {} } },
    rawget(class, META))
  local init = class.init
  if init then init(self, ...) end
  return self
end

local function define(class, name, value)
  rawset(class, name, value)
  if name == "forward" then class[META].__call = caller(value) end
end

--- A new class of modules. `base` is the class that it extends; default Module.
-- Instances are made by calling it; init receives the arguments.
local function new_class(name, base)
  if type(name) ~= "string" then
    options.fail("INVALID_ARGUMENT", "nn.class: expected a name, got %s", type(name))
  end
  base = base or Module
  local class = { __name = name, super = base }
  local inherited = rawget(base, META)
  class[META] = {
    __index = class,
    __newindex = assign,
    __call = inherited and inherited.__call or call_by_name,
    __tostring = function(self) return describe(self) end,
    __name = name,
  }
  return setmetatable(class, {
    __index = base,
    __call = construct,
    __newindex = define,
    __tostring = function() return "class " .. name end,
  })
end

-- The class of an instance.
local function class_of(self)
  return getmetatable(self).__index
end

--- A parameter: `tensor` itself, marked, requiring grad unless `requires_grad` is false.
local function Parameter(tensor, requires_grad)
  if not is_tensor(tensor) then
    options.fail("INVALID_ARGUMENT", "nn.Parameter: expected a tensor, got %s", type(tensor))
  end
  if tensor.requires_grad and not c.is_trainable_leaf(tensor) then tensor = tensor:detach() end
  c.own_as_weights(tensor)
  if requires_grad ~= false then tensor:requires_grad_() end
  is_parameter[tensor] = true
  return tensor
end

function Module:forward()
  options.fail("UNIMPLEMENTED", "%s has no forward; define function %s:forward(x)", self.__name,
    self.__name)
end

-- ---- what a module consists of ----

-- The name of a field in state_dict. Positions in Sequential and ModuleList are named from 0,
-- as PyTorch's are: files of weights fit both.
local function name_of(key)
  return type(key) == "number" and tostring(key - 1) or tostring(key)
end

-- Fields that hold a member now but appeared as something else (self.head = false; later a
-- module) are found by looking.
local function late_members(self, state)
  local late = {}
  for key, value in pairs(self) do
    if key ~= STATE and not state.kind[key] and kind_of(value) then late[#late + 1] = key end
  end
  table.sort(late, function(a, b)
    if type(a) == type(b) then return a < b end
    return type(a) == "number"
  end)
  for _, key in ipairs(late) do register(self, key, kind_of(self[key])) end
end

-- Iterate over the members of one kind: key, value.
local function members(self, kind)
  local state = rawget(self, STATE)
  late_members(self, state)
  local i, order, kinds = 0, state.order, state.kind
  return function()
    while true do
      i = i + 1
      local key = order[i]
      if key == nil then return nil end
      local value = rawget(self, key)
      if value ~= nil and value ~= false then
        local now = is_module(value) and "module" or (kinds[key] ~= "module" and is_tensor(value)
          and kinds[key]) or nil
        if now == kind then return key, value end
      end
    end
  end
end

-- Depth first, each module once: fn(module, prefix).
local function visit(self, prefix, seen, fn)
  if seen[self] then return end
  seen[self] = true
  fn(self, prefix)
  for key, child in members(self, "module") do
    visit(child, prefix .. name_of(key) .. ".", seen, fn)
  end
end

local function collect(self, kind, once)
  local names, values, seen = {}, {}, {}
  visit(self, "", {}, function(module, prefix)
    for key, tensor in members(module, kind) do
      if not (once and seen[tensor]) then
        seen[tensor] = true
        names[#names + 1], values[#values + 1] = prefix .. name_of(key), tensor
      end
    end
  end)
  return names, values
end

local function pairs_of(names, values)
  local i = 0
  return function()
    i = i + 1
    return names[i], values[i]
  end
end

--- List of all parameters, each once.
function Module:parameters()
  local _, values = collect(self, "parameter", true)
  return values
end

--- Iterate over name, parameter: `for name, p in policy:named_parameters() do`.
function Module:named_parameters()
  return pairs_of(collect(self, "parameter", true))
end

function Module:buffers()
  local _, values = collect(self, "buffer", true)
  return values
end

function Module:named_buffers()
  return pairs_of(collect(self, "buffer", true))
end

--- List of the modules directly in this one.
function Module:children()
  local list = {}
  for _, child in members(self, "module") do list[#list + 1] = child end
  return list
end

function Module:named_children()
  local names, values = {}, {}
  for key, child in members(self, "module") do
    names[#names + 1], values[#values + 1] = name_of(key), child
  end
  return pairs_of(names, values)
end

--- List of this module and all below it.
function Module:modules()
  local list = {}
  visit(self, "", {}, function(module) list[#list + 1] = module end)
  return list
end

function Module:named_modules()
  local names, values = {}, {}
  visit(self, "", {}, function(module, prefix)
    names[#names + 1], values[#values + 1] = prefix:sub(1, -2), module
  end)
  return pairs_of(names, values)
end

--- A tensor that is saved and moved with the module but not trained.
function Module:register_buffer(name, tensor)
  if not is_tensor(tensor) then
    options.fail("INVALID_ARGUMENT", "register_buffer: %s must be a tensor, got %s",
      tostring(name), type(tensor))
  end
  rawset(self, name, tensor)
  register(self, name, "buffer")
end

--- A parameter under a name: the same as `self[name] = rl.nn.Parameter(tensor)`.
function Module:register_parameter(name, tensor)
  rawset(self, name, Parameter(tensor, tensor.requires_grad))
  register(self, name, "parameter")
end

-- ---- saving and loading ----

local function all_tensors(self)
  local names, values = collect(self, "parameter")
  local more, buffers = collect(self, "buffer")
  for i, name in ipairs(more) do names[#names + 1], values[#values + 1] = name, buffers[i] end
  return names, values
end

--- Table of name -> tensor. The tensors share memory with the module's and have no history.
function Module:state_dict()
  local dict = {}
  local names, values = all_tensors(self)
  for i, name in ipairs(names) do dict[name] = values[i]:detach() end
  return dict
end

local function shape_text(t)
  return "[" .. table.concat(t.shape, ",") .. "]"
end

--- Copy a state_dict into this module. By default every name must be in both, with the same
-- shape; `{strict = false}` skips what is missing or unexpected. Anything wrong raises, names
-- all that is wrong and changes nothing. Returns { missing = names, unexpected = names }.
-- `policy:load_state_dict(rl.load(path))` is fine: a file's metadata are no options.
function Module:load_state_dict(dict, given)
  if given ~= nil and io._is_metadata(given) then given = nil end
  local strict = options.check("load_state_dict", given, { strict = "boolean" }).strict ~= false
  if type(dict) ~= "table" then
    options.fail("INVALID_ARGUMENT", "load_state_dict: expected a table of tensors, got %s",
      type(dict))
  end
  local names, values = all_tensors(self)
  local known, missing, unexpected, wrong = {}, {}, {}, {}
  for i, name in ipairs(names) do
    known[name] = true
    local t = dict[name]
    if t == nil then
      missing[#missing + 1] = name
    elseif not is_tensor(t) then
      wrong[#wrong + 1] = ("%s is a %s, no tensor"):format(name, type(t))
    elseif shape_text(t) ~= shape_text(values[i]) then
      wrong[#wrong + 1] = ("%s is %s, expected %s"):format(name, shape_text(t),
        shape_text(values[i]))
    end
  end
  for name in pairs(dict) do
    if not known[name] then unexpected[#unexpected + 1] = tostring(name) end
  end
  table.sort(unexpected)
  local faults = {}
  if strict and #missing > 0 then
    faults[#faults + 1] = "missing: " .. table.concat(missing, ", ")
  end
  if strict and #unexpected > 0 then
    faults[#faults + 1] = "unexpected: " .. table.concat(unexpected, ", ")
  end
  if #wrong > 0 then faults[#faults + 1] = "wrong: " .. table.concat(wrong, "; ") end
  if #faults > 0 then
    options.fail("INVALID_ARGUMENT", "load_state_dict: nothing was loaded into %s; %s",
      self.__name, table.concat(faults, "; "))
  end
  for i, name in ipairs(names) do
    if dict[name] ~= nil then c.copy_data(values[i], dict[name]) end
  end
  return { missing = missing, unexpected = unexpected }
end

-- ---- modes and places ----

--- Training mode on (default) or off, for this module and all below it.
function Module:train(mode)
  mode = mode ~= false
  visit(self, "", {}, function(module) rawset(module, "training", mode) end)
  return self
end

--- The same as train(false).
function Module:eval()
  return self:train(false)
end

local dtypes = { f32 = true, f64 = true, i32 = true, i64 = true, u8 = true, bool = true }

-- The dtype among the arguments of to(), if there is one.
local function dtype_argument(...)
  for i = 1, select("#", ...) do
    local a = select(i, ...)
    if type(a) == "table" and a.dtype then return a.dtype end
    if dtypes[a] then return a end
  end
end

--- Move all parameters and buffers to a device, a float type, or both: `policy:to(dev)`,
-- `policy:to("f64")`, `policy:to{device = dev, dtype = "f32"}`. The tensors stay the same
-- objects, so an optimizer made before goes on with them. A float type leaves integer
-- buffers alone.
function Module:to(...)
  if (...) == nil and select(2, ...) == nil then
    options.fail("INVALID_ARGUMENT", "%s:to: expected a device, a float type or both, got %s",
      self.__name, select("#", ...) == 0 and "nothing" or "nil")
  end
  local dtype = dtype_argument(...)
  if dtype and not dtype:match("^f") then
    options.fail("INVALID_ARGUMENT", "%s:to: parameters are floats, not %s", self.__name, dtype)
  end
  local moved, grads = {}, {}
  local _, values = all_tensors(self)
  for i, t in ipairs(values) do
    local is_float = t.dtype:match("^f") ~= nil
    if is_float or not dtype then
      moved[i] = t:detach():to(...)
      if t.grad then grads[i] = t.grad:to(...) end
    elseif select("#", ...) == 1 and type((...)) == "table" and (...).device then
      moved[i] = t:detach():to((...).device)
    end
  end
  for i, t in ipairs(values) do
    if moved[i] then c.set_data(t, moved[i], grads[i]) end
  end
  return self
end

--- Move all parameters and buffers to the CPU.
function Module:cpu()
  return self:to "cpu"
end

--- Move all parameters and buffers to a GPU: the first, or that of an index from 0.
function Module:cuda(index)
  return self:to(index and "cuda:" .. index or "cuda")
end

--- Let go of the gradients of all parameters.
function Module:zero_grad()
  for _, p in ipairs(self:parameters()) do p.grad = nil end
end

--- Let all parameters require grad, or not.
function Module:requires_grad_(on)
  for _, p in ipairs(self:parameters()) do
    is_parameter[p] = true
    p:requires_grad_(on ~= false)
  end
  return self
end

--- Call fn(module) for this module and all below it, children first.
function Module:apply(fn)
  local list = self:modules()
  for i = #list, 1, -1 do fn(list[i]) end
  return self
end

-- ---- text ----

--- What stands between the parentheses of a layer, for print; layers define it.
function Module:extra_repr()
  return ""
end

local function layers(self, indent, seen)
  local lines = {}
  local inner = indent .. "  "
  if seen[self] then return self.__name .. "(...)" end
  seen[self] = true
  for key, child in members(self, "module") do
    lines[#lines + 1] = ("%s(%s): %s"):format(inner, name_of(key), layers(child, inner, seen))
  end
  seen[self] = nil
  local extra = self:extra_repr()
  if #lines == 0 then return self.__name .. "(" .. extra .. ")" end
  if extra ~= "" then table.insert(lines, 1, inner .. extra) end
  return self.__name .. "(\n" .. table.concat(lines, "\n") .. "\n" .. indent .. ")"
end

-- The text of print: layers and the number of parameters.
function describe(self)
  local count = 0
  for _, p in ipairs(self:parameters()) do count = count + p:numel() end
  return ("%s  %d parameters"):format(layers(self, "", {}), count)
end

return {
  Module = Module, class = new_class, Parameter = Parameter, is_module = is_module,
  is_tensor = is_tensor, class_of = class_of,
}
