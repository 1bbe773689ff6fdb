--- Modules made of modules: Sequential, ModuleList.

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

function Sequential:forward(x)
  for i = 1, #self do x = self[i](x) end
  return x
end

return containers
