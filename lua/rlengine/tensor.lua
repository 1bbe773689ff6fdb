--- Tensors: the methods and operators of a tensor, and the functions of `rl`.
-- Most are rows of the engine's table of operations; what is composed of others is here.
-- Each exists as a method and as `rl.f(t, ...)`.

local core = require "rlengine.core"

local tensor = {}
for name, value in pairs(core.tensor) do
  if type(value) == "function" then tensor[name] = value end
end
local field = tensor.field
tensor.field = nil
tensor.counts, tensor.version = nil, nil

tensor.backward = core.autograd.backward
tensor.requires_grad_ = core.autograd.requires_grad_

local metatable = core.tensor.metatable

-- Methods first: nearly every access is one. Functions of `rl` that make tensors are no
-- methods.
local methods = {}
local constructors = {
  tensor = true, from_bytes = true, empty = true, zeros = true, ones = true, full = true,
  arange = true, linspace = true, eye = true, manual_seed = true, rand = true, randn = true,
  randint = true, randperm = true, row_keys = true, cat = true, stack = true,
  is_tensor = true,
}

metatable.__index = function(self, key)
  local method = methods[key]
  if method ~= nil then return method end
  return field(self, key)
end

metatable.__add = tensor.add
metatable.__sub = tensor.sub
metatable.__mul = tensor.mul
metatable.__div = tensor.div
metatable.__pow = tensor.pow
metatable.__mod = tensor.remainder
metatable.__unm = tensor.neg
metatable.__idiv = tensor.floor_divide
metatable.__concat = function(a, b) return tostring(a) .. tostring(b) end

--- Matrix products under the names PyTorch has for special cases.
tensor.mm, tensor.mv, tensor.bmm = tensor.matmul, tensor.matmul, tensor.matmul

--- Inner product of two vectors.
function tensor.dot(a, b) return tensor.matmul(a, b) end

--- Outer product of two vectors.
function tensor.outer(a, b) return tensor.mul(tensor.unsqueeze(a, 2), tensor.unsqueeze(b, 1)) end

--- Number of dimensions.
tensor.ndim = tensor.dim

local function count_along(t, dims)
  if dims == nil then return tensor.numel(t) end
  if type(dims) == "number" then return tensor.size(t, dims) end
  local n = 1
  for _, d in ipairs(dims) do n = n * tensor.size(t, d) end
  return n
end

local function fail(message, ...)
  error(core.error.new{ code = "INVALID_ARGUMENT", message = message:format(...) }, 0)
end

local function option(options, name, default, known)
  if options == nil then return default end
  for key in pairs(options) do
    if not known[key] then fail("unknown option \"%s\"", tostring(key)) end
  end
  if options[name] == nil then return default end
  return options[name]
end

local variance_options = { keepdim = true, correction = true }

--- Variance along dims (nil: all). options: correction (1: divide by n - 1), keepdim; or
-- keepdim alone, as a boolean.
function tensor.var(t, dims, options)
  if type(dims) == "table" and #dims == 0 then dims, options = nil, dims end
  if type(options) == "boolean" then options = { keepdim = options } end
  local correction = option(options, "correction", 1, variance_options)
  local keepdim = option(options, "keepdim", false, variance_options)
  local centred = t - tensor.mean(t, dims, true)
  return tensor.sumsq(centred, dims, keepdim) / math.max(0, count_along(t, dims) - correction)
end

--- Standard deviation; as var.
function tensor.std(t, dims, options) return tensor.sqrt(tensor.var(t, dims, options)) end

--- p-norm along dims (nil: all); p is 2 by default, 1 or math.huge.
function tensor.norm(t, p, dims, keepdim)
  p = p or 2
  if p == 2 then
    local s = tensor.sumsq(t, dims, keepdim)
    if not s.requires_grad then return tensor.sqrt(s) end
    -- the root has no slope at 0, the norm is given 0 there
    local zero = tensor.eq(s, 0)
    return tensor.where(zero, 0, tensor.sqrt(tensor.where(zero, 1, s)))
  end
  local magnitude = tensor.abs(t)
  if p == 1 then return tensor.sum(magnitude, dims, keepdim) end
  if p == math.huge then return tensor.amax(magnitude, dims, keepdim) end
  return tensor.sum(magnitude ^ p, dims, keepdim) ^ (1 / p)
end

--- The k largest along dim (the last by default), in order: values, indices (from 0).
function tensor.topk(t, k, dim, largest)
  local values, indices = tensor.sort(t, dim or -1, largest ~= false)
  return tensor.narrow(values, dim or -1, 1, k), tensor.narrow(indices, dim or -1, 1, k)
end

--- A list of views of `size` along dim (1 by default); the last may be smaller. Or a table
-- of sizes, which must add up.
function tensor.split(t, size, dim)
  dim = dim or 1
  if type(size) == "table" then
    local parts, start = {}, 1
    for i, n in ipairs(size) do
      parts[i] = tensor.narrow(t, dim, start, n)
      start = start + n
    end
    if start ~= tensor.size(t, dim) + 1 then
      error(core.error.new{ code = "INVALID_ARGUMENT",
        message = ("split: the sizes add up to %d, dimension %d has %d"):format(start - 1, dim,
          tensor.size(t, dim)) })
    end
    return parts
  end
  if type(size) ~= "number" or size < 1 then
    fail("split: the size must be at least 1")
  end
  local parts, total, start = {}, tensor.size(t, dim), 1
  while start <= total do
    parts[#parts + 1] = tensor.narrow(t, dim, start, math.min(size, total - start + 1))
    start = start + size
  end
  return parts
end

--- About `count` views of equal size along dim (1 by default).
function tensor.chunk(t, count, dim)
  return tensor.split(t, math.max(1, math.ceil(tensor.size(t, dim or 1) / count)), dim)
end

--- A list of the parts of t along dim (1 by default), without that dimension.
function tensor.unbind(t, dim)
  dim = dim or 1
  local parts = {}
  for i = 1, tensor.size(t, dim) do parts[i] = tensor.select(t, dim, i) end
  return parts
end

--- Dimension dim as several, of the given sizes; one may be -1.
function tensor.unflatten(t, dim, sizes)
  local shape, all = t.shape, {}
  if dim < 0 then dim = #shape + 1 + dim end
  for i, n in ipairs(shape) do
    if i == dim then
      for _, m in ipairs(sizes) do all[#all + 1] = m end
    else
      all[#all + 1] = n
    end
  end
  return tensor.reshape(t, all)
end

--- t with `value` where mask (bool, broadcast) is true.
function tensor.masked_fill(t, mask, value)
  return tensor.where(mask, value, t)
end

--- t plus the product of two matrices.
function tensor.addmm(t, a, b) return t + tensor.matmul(a, b) end

local function like(constructor)
  return function(t, options)
    local full = { dtype = t.dtype, device = t.device }
    for key, value in pairs(options or {}) do full[key] = value end
    return constructor(t.shape, full)
  end
end

tensor.zeros_like = like(tensor.zeros)
tensor.ones_like = like(tensor.ones)
tensor.empty_like = like(tensor.empty)
tensor.rand_like = like(tensor.rand)
tensor.randn_like = like(tensor.randn)

--- A tensor of t's shape, dtype and device filled with value.
function tensor.full_like(t, value, options)
  local full = { dtype = t.dtype, device = t.device }
  for key, v in pairs(options or {}) do full[key] = v end
  return tensor.full(t.shape, value, full)
end

--- A copy on the CPU, or t itself.
function tensor.cpu(t) return tensor.to(t, "cpu") end

--- A copy on a GPU (the first, or that of an index from 0), or t itself.
function tensor.cuda(t, index) return tensor.to(t, index and "cuda:" .. index or "cuda") end

--- Casts under PyTorch's names.
function tensor.float(t) return tensor.to(t, "f32") end
function tensor.double(t) return tensor.to(t, "f64") end
function tensor.long(t) return tensor.to(t, "i64") end
function tensor.int(t) return tensor.to(t, "i32") end
function tensor.bool(t) return tensor.to(t, "bool") end

--- The dtype of t's elements as another tensor's.
function tensor.type_as(t, other) return tensor.to(t, other.dtype) end

--- Largest absolute and relative difference stay within the tolerances: a boolean.
function tensor.allclose(a, b, rtol, atol)
  local bound = tensor.abs(b) * (rtol or 1e-5) + (atol or 1e-8)
  local close = tensor.le(tensor.abs(a - b), bound)
  return tensor.all(tensor.logical_or(close, tensor.eq(a, b))):item()
end

--- Same shape, dtype and elements: a boolean.
function tensor.equal(a, b)
  if a.dtype ~= b.dtype or tensor.dim(a) ~= tensor.dim(b) then return false end
  local sa, sb = a.shape, b.shape
  for i = 1, #sa do if sa[i] ~= sb[i] then return false end end
  if tensor.numel(a) == 0 then return true end
  return tensor.all(tensor.eq(a, b)):item()
end

local pointer_types = { f32 = "float", f64 = "double", i32 = "int32_t", i64 = "int64_t",
  u8 = "uint8_t", bool = "uint8_t" }
local ffi = jit and require "ffi" -- luacheck: ignore

--- The elements as an FFI pointer (LuaJIT; contiguous, on the CPU), valid while t lives.
function tensor.ffi(t)
  if not ffi then
    error(core.error.new{ code = "FAILED_PRECONDITION", message = "ffi needs LuaJIT" })
  end
  return ffi.cast(pointer_types[t.dtype] .. " *", tensor.pointer(t))
end

for name, fn in pairs(tensor) do
  if not constructors[name] then methods[name] = fn end
end

--- The methods of a tensor, to add one's own.
tensor.methods = methods

-- For Tab at the prompt: what __index knows.
metatable.__names = function()
  local names = { "shape", "dtype", "device", "grad", "requires_grad" }
  for name in pairs(methods) do names[#names + 1] = name end
  return names
end

return tensor
