--- Functions of layers and losses without state: rl.nn.functional.
--
-- Losses take {reduction = "mean" | "sum" | "none"} at the end, as PyTorch's keywords.

local core = require "rlengine.core"
local options = require "rlengine.options"

local t = core.tensor
local functional = {}

--- x[..., K] · weight[N, K]ᵀ + bias[N] (may be nil) -> [..., N].
functional.linear = t.linear

for _, name in ipairs{ "relu", "tanh", "sigmoid", "softplus", "softmax", "log_softmax",
                       "one_hot" } do
  functional[name] = t[name]
end

--- Dropout with probability p (default 0.5) while `training` (default true).
function functional.dropout(x, p, training)
  if training == false or p == 0 then return x end
  return t.dropout(x, p or 0.5)
end

--- x where x > 0, slope·x elsewhere; slope 0.01 by default.
function functional.leaky_relu(x, slope)
  return t.where(x:gt(0), x, x * (slope or 0.01))
end

--- x where x > 0, alpha·(eˣ - 1) elsewhere; alpha 1 by default.
function functional.elu(x, alpha)
  local positive = x:gt(0)
  local negative = t.where(positive, 0, x):expm1()
  return t.where(positive, x, alpha and alpha ~= 1 and negative * alpha or negative)
end

--- x · sigmoid(x).
function functional.silu(x)
  return x * x:sigmoid()
end

-- ---- losses ----

local function reduced(what, loss, reduction)
  if reduction == nil or reduction == "mean" then return loss:mean() end
  if reduction == "sum" then return loss:sum() end
  if reduction == "none" then return loss end
  options.fail("INVALID_ARGUMENT", '%s: reduction must be "mean", "sum" or "none", got %s', what,
    tostring(reduction))
end

local function same_shape(what, input, target)
  local a, b = input.shape, target.shape
  local same = #a == #b
  for i = 1, #a do same = same and a[i] == b[i] end
  if not same then
    options.fail("INVALID_ARGUMENT", "%s: input is [%s], target [%s]; they must be the same",
      what, table.concat(a, ","), table.concat(b, ","))
  end
end

local plain = { reduction = "string" }

--- Mean of (input - target)².
function functional.mse_loss(input, target, given)
  given = options.check("mse_loss", given, plain)
  same_shape("mse_loss", input, target)
  return reduced("mse_loss", (input - target):square(), given.reduction)
end

--- Mean of |input - target|.
function functional.l1_loss(input, target, given)
  given = options.check("l1_loss", given, plain)
  same_shape("l1_loss", input, target)
  return reduced("l1_loss", (input - target):abs(), given.reduction)
end

-- 0.5·d² where |d| < delta, delta·(|d| - 0.5·delta) elsewhere: with m = min(|d|, delta) both
-- are m·(|d| - 0.5·m).
local function huber(input, target, delta)
  local d = (input - target):abs()
  local m = d:clamp(nil, delta)
  return m * (d - m * 0.5)
end

local function positive(what, name, value)
  if value <= 0 or value ~= value then
    options.fail("INVALID_ARGUMENT", "%s: %s must be above 0, got %g", what, name, value)
  end
end

--- Huber's loss, {delta = 1}: quadratic within delta, linear beyond.
function functional.huber_loss(input, target, given)
  given = options.check("huber_loss", given, { reduction = "string", delta = "number" })
  same_shape("huber_loss", input, target)
  local delta = given.delta or 1
  positive("huber_loss", "delta", delta)
  return reduced("huber_loss", huber(input, target, delta), given.reduction)
end

--- Smooth L1, {beta = 1}: Huber's loss with delta = beta, divided by beta.
function functional.smooth_l1_loss(input, target, given)
  given = options.check("smooth_l1_loss", given, { reduction = "string", beta = "number" })
  same_shape("smooth_l1_loss", input, target)
  local beta = given.beta or 1
  positive("smooth_l1_loss", "beta", beta)
  local loss = huber(input, target, beta)
  if beta ~= 1 then loss = loss / beta end
  return reduced("smooth_l1_loss", loss, given.reduction)
end

--- Minus the log-probability of the targets: input [N, C] (or [C]) of log-probabilities,
-- target i64 [N] (or a scalar) of classes from 0.
function functional.nll_loss(input, target, given)
  given = options.check("nll_loss", given, plain)
  if #input.shape > 2 or #target.shape ~= #input.shape - 1 then
    options.fail("INVALID_ARGUMENT",
      "nll_loss: expected input [N,C] and target [N], or [C] and a scalar, got [%s] and [%s]",
      table.concat(input.shape, ","), table.concat(target.shape, ","))
  end
  local picked = input:gather(-1, target:unsqueeze(-1)):squeeze(-1):neg()
  return reduced("nll_loss", picked, given.reduction)
end

--- nll_loss of log_softmax(input) over the classes.
function functional.cross_entropy(input, target, given)
  return functional.nll_loss(input:log_softmax(-1), target, given)
end

--- Cross entropy of sigmoid(input) with probabilities `target`, safe for large inputs.
function functional.binary_cross_entropy_with_logits(input, target, given)
  given = options.check("binary_cross_entropy_with_logits", given, plain)
  same_shape("binary_cross_entropy_with_logits", input, target)
  return reduced("binary_cross_entropy_with_logits", input:softplus() - input * target,
    given.reduction)
end

return functional
