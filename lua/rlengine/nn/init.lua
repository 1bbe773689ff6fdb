--- Initial values of weights: rl.nn.init. Each function fills its tensor in place, outside
-- any graph, and returns it. Random ones draw from the current stream (rl.manual_seed).

local core = require "rlengine.core"
local options = require "rlengine.options"

local c = core.nn
local init = {}

local function fail(...) return options.fail("INVALID_ARGUMENT", ...) end

-- Inputs and outputs of a weight [out, in, ...]: what lies behind the first two multiplies.
local function fans(what, t)
  local shape = t.shape
  if #shape < 2 then
    fail("%s: a weight has two dimensions or more, got [%s]", what, table.concat(shape, ","))
  end
  local field = 1
  for i = 3, #shape do field = field * shape[i] end
  return shape[2] * field, shape[1] * field
end

--- Uniform between low (0) and high (1).
function init.uniform_(t, low, high)
  c.fill_uniform(t, low or 0, high or 1)
  return t
end

--- Normal with a mean (0) and a standard deviation (1).
function init.normal_(t, mean, std)
  c.fill_normal(t, mean or 0, std or 1)
  return t
end

--- Every element `value`.
function init.constant_(t, value)
  c.fill_constant(t, value)
  return t
end

function init.zeros_(t) return init.constant_(t, 0) end
function init.ones_(t) return init.constant_(t, 1) end

--- Recommended gain for what follows the layer: "linear", "sigmoid", "tanh" (5/3), "relu"
-- (√2), "leaky_relu" (with its slope), "selu" (3/4).
function init.calculate_gain(nonlinearity, slope)
  if nonlinearity == "linear" or nonlinearity == "sigmoid" then return 1 end
  if nonlinearity == "tanh" then return 5 / 3 end
  if nonlinearity == "relu" then return math.sqrt(2) end
  if nonlinearity == "leaky_relu" then return math.sqrt(2 / (1 + (slope or 0.01) ^ 2)) end
  if nonlinearity == "selu" then return 3 / 4 end
  fail("calculate_gain: unknown nonlinearity %s%s", tostring(nonlinearity),
    options.hint(nonlinearity, { "linear", "sigmoid", "tanh", "relu", "leaky_relu", "selu" }))
end

--- Glorot's uniform: ±gain·√(6 / (in + out)).
function init.xavier_uniform_(t, gain)
  local fan_in, fan_out = fans("xavier_uniform_", t)
  local bound = (gain or 1) * math.sqrt(6 / (fan_in + fan_out))
  return init.uniform_(t, -bound, bound)
end

--- Glorot's normal: standard deviation gain·√(2 / (in + out)).
function init.xavier_normal_(t, gain)
  local fan_in, fan_out = fans("xavier_normal_", t)
  return init.normal_(t, 0, (gain or 1) * math.sqrt(2 / (fan_in + fan_out)))
end

local function kaiming_std(what, t, given)
  given = options.check(what, given, { a = "number", mode = "string", nonlinearity = "string" })
  local fan_in, fan_out = fans(what, t)
  local mode = given.mode or "fan_in"
  if mode ~= "fan_in" and mode ~= "fan_out" then
    fail('%s: mode must be "fan_in" or "fan_out", got "%s"', what, mode)
  end
  local gain = init.calculate_gain(given.nonlinearity or "leaky_relu", given.a or 0)
  return gain / math.sqrt(mode == "fan_in" and fan_in or fan_out)
end

--- He's uniform, {a = 0, mode = "fan_in", nonlinearity = "leaky_relu"}: ±√3·gain/√fan.
function init.kaiming_uniform_(t, given)
  local bound = math.sqrt(3) * kaiming_std("kaiming_uniform_", t, given)
  return init.uniform_(t, -bound, bound)
end

--- He's normal, options as kaiming_uniform_.
function init.kaiming_normal_(t, given)
  return init.normal_(t, 0, kaiming_std("kaiming_normal_", t, given))
end

--- A (semi-)orthogonal matrix times gain (1): rows, or columns when there are fewer, of
-- length gain at right angles. Dimensions behind the first are taken together.
function init.orthogonal_(t, gain)
  c.fill_orthogonal(t, gain or 1)
  return t
end

return init
