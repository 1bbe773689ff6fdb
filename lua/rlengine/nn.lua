--- Networks: modules, layers, functions of layers, initial values. `rl.nn`.
--
--     local policy = rl.nn.Sequential(rl.nn.Linear(4, 128), rl.nn.ReLU(), rl.nn.Linear(128, 2))
--
-- Own modules: see nn/module.lua.

local core = require "rlengine.core"
local module = require "rlengine.nn.module"

local nn = {
  Module = module.Module, class = module.class, Parameter = module.Parameter,
  functional = require "rlengine.nn.functional", init = require "rlengine.nn.init",
}

for _, name in ipairs{ "layers", "container" } do
  for class_name, class in pairs(require("rlengine.nn." .. name)) do nn[class_name] = class end
end

nn.utils = {}

local function as_list(parameters)
  if type(parameters) == "table" and not module.is_module(parameters) then return parameters end
  if module.is_module(parameters) then return parameters:parameters() end
  return { parameters }
end

--- Scale the gradients of `parameters` (a list, a tensor or a module) so that their common
-- norm is at most max_norm; norm_type 2 by default, math.huge for the largest element.
-- Returns the norm that was, a number. NaN gradients stay NaN.
function nn.utils.clip_grad_norm_(parameters, max_norm, norm_type)
  return core.optim.clip_grad_norm(as_list(parameters), max_norm, norm_type or 2)
end

--- Clamp every element of the gradients to [-limit, limit].
function nn.utils.clip_grad_value_(parameters, limit)
  core.optim.clip_grad_value(as_list(parameters), limit)
end

nn.clip_grad_norm_ = nn.utils.clip_grad_norm_
nn.clip_grad_value_ = nn.utils.clip_grad_value_

return nn
