--- Probability distributions: Categorical, Normal, Bernoulli. `rl.distributions`.
--
--     local dist = rl.distributions.Categorical{probs = policy(state)}
--     local action = dist:sample()                    -- i64, values from 0
--     local log_prob = dist:log_prob(action)
--
-- Samples come from the current random stream, or, with {keys = keys}, from the keys of the
-- rows: `sample{keys = keys}` gives the same actions for the same keys, one row at a time or
-- in a batch. NaN, infinite or negative probabilities raise and name the row.

local core = require "rlengine.core"
local options = require "rlengine.options"
local tensor = require "rlengine.tensor"

local t = core.tensor
local c = core.nn
local check_parameter = c.check_parameter
local is_tensor = core.tensor.is_tensor
local unpack = table.unpack or unpack
local distributions = {}

-- What the rows of parameters must be; numbers of engine/nn/distribution.h.
local FINITE, NONNEGATIVE, PROBS, LOGITS = 0, 1, 2, 3

local function fail(...) return options.fail("INVALID_ARGUMENT", ...) end

-- Keyed samples take draws far from those of dropout masks, which count from 0.
local SAMPLE_DRAW = 2 ^ 30
distributions.SAMPLE_DRAW = SAMPLE_DRAW

-- The shape of `sample{shape = …}` or of the table itself: dist:sample{5} draws five times.
local function sample_options(given)
  if given == nil then return nil, nil end
  if type(given) == "number" then return { given }, nil end
  if type(given) ~= "table" then
    fail("sample: expected a shape or options, got %s", type(given))
  end
  if given[1] ~= nil then return given, nil end
  options.check("sample", given, { shape = "table", keys = "userdata" })
  if given.shape and given.keys then
    fail("sample: give shape or keys; a row's keys give one sample")
  end
  return given.shape, given.keys
end

local function count(shape)
  local n = 1
  for _, size in ipairs(shape) do n = n * size end
  return n
end

local function join(a, b)
  local shape = {}
  for _, size in ipairs(a) do shape[#shape + 1] = size end
  for _, size in ipairs(b) do shape[#shape + 1] = size end
  return shape
end

-- Largest f32.
local MAX = 3.4028234663852886e38

-- Smallest step from 1: what probabilities are kept away from 0 and 1 by, as in PyTorch.
local epsilon = { f32 = 2 ^ -23, f64 = 2 ^ -52 }

-- Exactly one of the two parameters that a distribution can be made from: its name, and the
-- parameter. A table with one field, of one of the names, is the common case and comes first.
local function one_of(what, given, a, b)
  if type(given) == "table" then
    local key, x = next(given)
    if (key == a or key == b) and next(given, key) == nil then return key, x end
  end
  if is_tensor(given) then
    fail('%s: say which they are: %s{%s = …} or %s{%s = …}', what, what, a, what, b)
  end
  options.check(what, given, { [a] = "any", [b] = "any" })
  if (given[a] == nil) == (given[b] == nil) then
    fail("%s: give either %s or %s", what, a, b)
  end
  if given[a] ~= nil then return a, given[a] end
  return b, given[b]
end

-- A class of distributions: methods, and fields computed at first use (`lazy[name](self)`).
local function distribution(name, new)
  local methods, lazy = {}, {}
  local meta = { __name = name, methods = methods }
  function meta.__index(self, key)
    local method = methods[key]
    if method ~= nil then return method end
    local compute = lazy[key]
    if compute then
      local value = compute(self)
      rawset(self, key, value)
      return value
    end
  end
  function meta.__tostring(self) return name .. "(" .. self:describe() .. ")" end
  distributions[name] = function(...) return setmetatable(new(...), meta) end
  return methods, lazy, meta
end

local function shape_text(x)
  return x.dtype .. "[" .. table.concat(x.shape, ",") .. "]"
end

-- ---- Categorical ----

--- Categorical{probs = p} or {logits = l}, of [..., classes]. Probabilities need not sum
-- to 1. Fields: probs (that sum to 1), logits (log-probabilities).
local Categorical, categorical, categorical_meta = distribution("Categorical", function(given)
  local name, x = one_of("Categorical", given, "probs", "logits")
  if name == "probs" then
    check_parameter("Categorical: probs", PROBS, x, 1)
    return { given = x, from_probs = true }
  end
  check_parameter("Categorical: logits", LOGITS, x, 1)
  return { given = x, from_probs = false }
end)

function categorical.logits(self)
  if not self.from_probs then return t.log_softmax(self.given, -1) end
  local eps = epsilon[self.given.dtype]
  return self.probs:clamp(eps, 1 - eps):log()
end

function categorical.probs(self)
  if not self.from_probs then return t.softmax(self.given, -1) end
  return self.given / self.given:sum(-1, true)
end

--- Classes drawn: i64 of the batch's shape. `sample{5}` puts five draws of each in front;
-- `sample{keys = keys}` draws by row keys.
function Categorical:sample(given)
  local shape, keys = sample_options(given)
  local p = self.from_probs and self.given or self.probs
  if not shape then return c.sample(p, 0, keys, SAMPLE_DRAW) end
  local dims = p:dim()
  local drawn = c.sample(p, count(shape))
  if dims == 1 then return drawn:reshape(shape) end
  local batch = { unpack(p.shape, 1, dims - 1) }
  -- [batch..., n] -> [n, batch...]
  local order = { dims }
  for i = 1, dims - 1 do order[i + 1] = i end
  return drawn:permute(order):contiguous():reshape(join(shape, batch))
end

--- Log-probability of classes: i64 of a shape that broadcasts with the batch's.
function Categorical:log_prob(action)
  return c.categorical_log_prob(self.given, not self.from_probs, action)
end

--- Entropy in nats, of the batch's shape.
function Categorical:entropy()
  -- A class of probability 0 may have -inf as logit; 0 times that must be 0.
  return (self.logits:clamp(-MAX) * self.probs):sum(-1):neg()
end

--- The most probable class; the first among equals.
function Categorical:mode()
  return self.given:argmax(-1)
end

function Categorical:describe()
  return (self.from_probs and "probs: " or "logits: ") .. shape_text(self.given)
end

-- ---- Normal ----

local HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)

local function tensor_like(x, other)
  if type(x) ~= "number" then return x end
  return tensor.tensor(x, { dtype = other.dtype, device = other.device })
end

--- Normal{loc = m, scale = s} or Normal(m, s): independent normals, of mean loc and standard
-- deviation scale (a tensor or a number). Fields: loc, scale, mean, stddev, variance.
local Normal, normal, normal_meta = distribution("Normal", function(loc, scale)
  if scale == nil then
    local given = options.check("Normal", loc, { loc = "any", scale = "any" })
    loc, scale = given.loc, given.scale
  end
  if loc == nil or scale == nil then fail("Normal: give loc and scale") end
  if not is_tensor(loc) and not is_tensor(scale) then
    loc = tensor.tensor(loc)
  end
  loc = tensor_like(loc, scale)
  scale = tensor_like(scale, loc)
  check_parameter("Normal: loc", FINITE, loc)
  check_parameter("Normal: scale", NONNEGATIVE, scale)
  return { loc = loc, scale = scale }
end)

function normal.mean(self) return self.loc end
function normal.stddev(self) return self.scale end
function normal.variance(self) return self.scale:square() end

local function standard(self, shape)
  local like = self.loc + self.scale
  return tensor.randn(join(shape or {}, like.shape),
    { dtype = like.dtype, device = like.device })
end

--- A sample through which gradients flow: loc + scale · n.
function Normal:rsample(given)
  local shape = sample_options(given)
  return self.loc + self.scale * standard(self, shape)
end

--- A sample without history.
function Normal:sample(given)
  local shape = sample_options(given)
  return self.loc:detach() + self.scale:detach() * standard(self, shape)
end

--- Log-density of `value`, element by element.
function Normal:log_prob(value)
  local d = (value - self.loc) / self.scale
  return d:square() * -0.5 - self.scale:log() - HALF_LOG_TAU
end

--- Entropy in nats, element by element.
function Normal:entropy()
  return (self.loc * 0 + self.scale):log() + (0.5 + HALF_LOG_TAU)
end

function Normal:mode() return self.loc end

function Normal:describe()
  return "loc: " .. shape_text(self.loc) .. ", scale: " .. shape_text(self.scale)
end

-- ---- Bernoulli ----

--- Bernoulli{probs = p} or {logits = l}: 1 with probability p, element by element.
local Bernoulli, bernoulli, bernoulli_meta = distribution("Bernoulli", function(given)
  local name, x = one_of("Bernoulli", given, "probs", "logits")
  check_parameter("Bernoulli: " .. name, name == "probs" and NONNEGATIVE or FINITE, x)
  return { given = x, from_probs = name == "probs" }
end)

function bernoulli.probs(self)
  return self.from_probs and self.given or self.given:sigmoid()
end

function bernoulli.logits(self)
  if not self.from_probs then return self.given end
  local eps = epsilon[self.given.dtype]
  local p = self.given:clamp(eps, 1 - eps)
  return p:log() - (-p):log1p()
end

function Bernoulli:sample(given)
  local shape = sample_options(given)
  local p = self.probs:detach()
  if shape then p = p:expand(join(shape, p.shape)) end
  return tensor.bernoulli(p)
end

--- Log-probability of values 0 and 1.
function Bernoulli:log_prob(value)
  local l = self.logits
  return l * value - l:softplus()
end

function Bernoulli:entropy()
  local l = self.logits
  return l:softplus() - l * self.probs
end

function Bernoulli:mode()
  return self.probs:ge(0.5):to(self.given.dtype)
end

function Bernoulli:describe()
  return (self.from_probs and "probs: " or "logits: ") .. shape_text(self.given)
end

-- ---- divergence ----

--- KL divergence from q to p, E_p[log p - log q], of the batch's shape.
function distributions.kl_divergence(p, q)
  local meta = getmetatable(p)
  if type(p) ~= "table" or meta ~= getmetatable(q) then
    fail("kl_divergence: expected two distributions of one kind")
  end
  if meta == categorical_meta then
    local share = p.probs * (p.logits - q.logits)
    return t.where(p.probs:eq(0), 0, share):sum(-1)
  elseif meta == normal_meta then
    local ratio = (p.scale / q.scale):square()
    local shift = ((p.loc - q.loc) / q.scale):square()
    return (ratio + shift - 1 - ratio:log()) * 0.5
  elseif meta == bernoulli_meta then
    local lp, lq = p.logits, q.logits
    return p.probs * (lp - lq) - lp:softplus() + lq:softplus()
  end
  fail("kl_divergence: not a distribution")
end

return distributions
