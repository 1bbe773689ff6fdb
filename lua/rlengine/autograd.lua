--- Gradient modes and operations of one's own.

local core = require "rlengine.core"
local grad_mode = core.autograd.grad_mode

local autograd = {}

local function restore(mode, ok, ...)
  grad_mode(mode)
  if not ok then error((...), 0) end
  return ...
end

--- Run fn(...) without recording; its results pass through, errors too.
function autograd.no_grad(fn, ...)
  return restore(grad_mode(false), pcall(fn, ...))
end

--- Run fn(...) with recording, inside no_grad too.
function autograd.enable_grad(fn, ...)
  return restore(grad_mode(true), pcall(fn, ...))
end

--- Whether operations are recorded now.
function autograd.is_grad_enabled() return (grad_mode()) end

local function fail(message)
  error(core.error.new{ code = "INVALID_ARGUMENT", message = message }, 0)
end

--- An operation defined in Lua.
-- `forward(ctx, ...)` gets the arguments of the call and returns a new tensor; what it puts
-- into the table ctx is there again in `backward(ctx, grad)`, which returns a gradient (or
-- nil) for each tensor among the arguments, in their order.
-- @usage local Clamp = rl.autograd.Function{
--   forward = function(ctx, x) ctx.x = x; return x:clamp(0, 1) end,
--   backward = function(ctx, grad) return grad * ctx.x:ge(0):to("f32") * ctx.x:le(1):to("f32") end,
-- }
function autograd.Function(definition)
  for key in pairs(definition) do
    if key ~= "forward" and key ~= "backward" and key ~= "name" then
      fail(("Function: unknown field \"%s\"; there are forward, backward and name")
        :format(tostring(key)))
    end
  end
  local forward, backward = definition.forward, definition.backward
  if type(forward) ~= "function" or type(backward) ~= "function" then
    fail("Function: forward and backward must be functions")
  end
  local name = definition.name or "Function"
  local is_tensor = core.tensor.is_tensor
  return function(...)
    local ctx, inputs, recording = {}, {}, grad_mode()
    for i = 1, select("#", ...) do
      local value = select(i, ...)
      if is_tensor(value) then inputs[#inputs + 1] = value end
    end
    local out = autograd.no_grad(forward, ctx, ...)
    if not is_tensor(out) then
      fail(("forward of %s must return a tensor, got %s"):format(name, type(out)))
    end
    if recording then core.autograd.record_custom(out, inputs, name, backward, ctx) end
    return out
  end
end

return autograd
