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

-- ---- the check of gradients ----

local unpack = table.unpack or unpack

-- Fixed weights between 0.5 and 1.5, so that no error of a gradient cancels another.
local function weights(out)
  local list = {}
  for i = 1, out:numel() do list[i] = 0.5 + (i * 7 % 11) / 11 end
  local w = core.tensor.tensor(list, { dtype = "f64", device = out.device })
  return w:reshape(out.shape)
end

-- The weighted sum of fn's result, without recording.
local function loss_of(fn, args, w)
  return autograd.no_grad(function()
    local out = fn(unpack(args, 1, args.n))
    return (out * w):sum():item()
  end)
end

local function check_input(fn, args, i, w, eps, tolerance)
  local leaf = args[i]
  if not leaf.grad then
    fail(("gradcheck: input %d got no gradient"):format(i))
  end
  local flat, slopes = leaf:detach():view(-1), leaf.grad:reshape(-1):totable()
  local worst = 0
  for k, at in ipairs(flat:totable()) do
    local h = eps * (1 + math.abs(at))
    flat[k] = at + h
    local up = loss_of(fn, args, w)
    flat[k] = at - h
    local down = loss_of(fn, args, w)
    flat[k] = at
    local slope = (up - down) / (2 * h)
    local off = math.abs(slope - slopes[k]) / (1 + math.abs(slope))
    if not (off <= tolerance) then
      error(core.error.new{ code = "FAILED_PRECONDITION", message =
        ("gradcheck: the gradient of element %d of input %d is %.9g, differences say %.9g")
        :format(k, i, slopes[k], slope) }, 0)
    end
    worst = math.max(worst, off)
  end
  return worst
end

--- Compare the gradients that backward gives with central differences, as PyTorch's
-- gradcheck. `fn` gets the inputs and returns one tensor; the f64 tensors among the inputs
-- are checked, others are passed on. Raises FAILED_PRECONDITION naming the first element
-- that is off. options: eps (1e-6), the step, relative to the element; tol (1e-6).
-- @return the largest |a - b| / (1 + |b|)
function autograd.gradcheck(fn, inputs, options)
  options = options or {}
  for key in pairs(options) do
    if key ~= "eps" and key ~= "tol" then
      fail(("gradcheck: unknown option \"%s\"; there are eps and tol"):format(tostring(key)))
    end
  end
  local args, checked = { n = #inputs }, {}
  for i, input in ipairs(inputs) do
    args[i] = input
    if core.tensor.is_tensor(input) and input.dtype == "f64" then
      args[i] = input:detach():clone():requires_grad_()
      checked[#checked + 1] = i
    end
  end
  if #checked == 0 then fail "gradcheck: no input is a f64 tensor" end
  local out = autograd.enable_grad(fn, unpack(args, 1, args.n))
  if not core.tensor.is_tensor(out) then
    fail(("gradcheck: the function must return a tensor, got %s"):format(type(out)))
  end
  local w, worst = weights(out), 0
  out:backward(w)
  for _, i in ipairs(checked) do
    worst = math.max(worst,
      check_input(fn, args, i, w, options.eps or 1e-6, options.tol or 1e-6))
  end
  return worst
end

return autograd
