--- op_samples.lua: for every row of the engine's table of operations, what to call it with.
--
-- samples.of(op) gives a list of cases, or nil for a row of a family that is not known here.
-- A case is {name, inputs, call, smooth}: tensors on the CPU, f64 unless they are indices or
-- masks (`fixed`), and a function of them. `smooth`: gradients may be compared with
-- differences there. A new row of a known family needs nothing; a new family one function.

local rl = require "rlengine"
local core = require "rlengine.core"

local samples = {}
local cpu = { device = "cpu", dtype = "f64" }
local unpack = table.unpack or unpack

local function shape_name(shape) return "[" .. table.concat(shape, ",") .. "]" end

local function numel(shape)
  local n = 1
  for _, size in ipairs(shape) do n = n * size end
  return n
end

-- Numbers between low and high that keep away from the kinks of relu, abs and rounding;
-- the same ones at each call.
local function values(shape, low, high, shift)
  local list, x = {}, 7 + (shift or 0)
  for i = 1, numel(shape) do
    x = x * 16807 % 2147483647
    local v = low + (high - low) * (x / 2147483647)
    local fraction = v - math.floor(v)
    if fraction < 0.02 or fraction > 0.98 or math.abs(fraction - 0.5) < 0.02 then v = v + 0.05 end
    list[i] = v
  end
  if #list == 0 then return rl.zeros(shape, cpu) end
  return rl.tensor(list, cpu):reshape(shape)
end

local function integers(shape, below, shift)
  local t = values(shape, 0, below - 0.1, shift)
  return t:to "i64"
end

local inf, nan = math.huge, 0 / 0
local odd = { 0, -0.0, 1, -1, 0.5, -0.5, 1.5, 2.5, -2.5, inf, -inf, nan, 1e-40, -1e-310, 3e38,
  -1e30, 88.5, -103, 709.5, 2 ^ 31, -2 ^ 53, 255, 256, 3 }

-- ---- elementwise ----

local shapes = { {}, { 1 }, { 0, 3 }, { 7 }, { 2, 3, 4 }, { 5, 129 } }
local positive = { log = true, sqrt = true, rsqrt = true, log1p = true, reciprocal = true }

local function unary(op)
  local f = core.tensor[op.name]
  local call = op.name == "clamp" and function(x) return f(x, -0.7, 0.9) end or f
  local list = {}
  for i, shape in ipairs(shapes) do
    list[i] = { name = shape_name(shape), call = call, smooth = #shape == 3,
      inputs = { values(shape, positive[op.name] and 0.3 or -1.8, 2.2) } }
  end
  list[#list + 1] = { name = "odd numbers", call = call, inputs = { rl.tensor(odd, cpu) } }
  local in_place = core.tensor[op.name .. "_"]
  local change = op.name == "clamp" and function(x) return in_place(x, -0.7, 0.9) end or in_place
  list[#list + 1] = { name = "in place", in_place = true, inputs = { values({ 3, 4 }, 0.3, 2) },
    call = function(x) return change(x:clone()) end }
  return list
end

local function binary(op)
  local f = core.tensor[op.name]
  local low = (op.name == "pow" or op.name == "div" or op.name == "remainder") and 0.3 or -1.6
  local list = {}
  local function add(name, a, b, smooth)
    list[#list + 1] = { name = name, call = f, smooth = smooth, inputs = { a, b } }
  end
  for _, shape in ipairs(shapes) do
    add(shape_name(shape), values(shape, low, 2.4), values(shape, low, 1.9, 3), #shape == 3)
  end
  for _, pair in ipairs { { { 2, 3 }, { 3 } }, { { 3 }, { 2, 1 } }, { {}, { 2, 3 } },
                          { { 5, 1, 70 }, { 6, 1 } } } do
    add(shape_name(pair[1]) .. shape_name(pair[2]), values(pair[1], low, 2.4),
      values(pair[2], low, 1.9, 5), numel(pair[1]) < 20)
  end
  local first, second = {}, {}
  for _, a in ipairs(odd) do
    for _, b in ipairs(odd) do first[#first + 1], second[#second + 1] = a, b end
  end
  add("odd numbers", rl.tensor(first, cpu), rl.tensor(second, cpu))
  for _, number in ipairs { 1.3, 2, 0, -3 } do
    for side = 1, 2 do
      list[#list + 1] = { name = side == 1 and "with " .. number or number .. " on the left",
        inputs = { values({ 4, 3 }, 0.3, 2.4) }, smooth = number == 1.3,
        call = function(x) if side == 1 then return f(x, number) else return f(number, x) end end }
    end
  end
  list[#list + 1] = { name = "in place", in_place = true, call = function(a, b)
    return core.tensor[op.name .. "_"](a:clone(), b)
  end, inputs = { values({ 3, 4 }, 0.3, 2), values({ 4 }, 0.3, 2, 5) } }
  return list
end

local function where()
  local list = {}
  for i, shape in ipairs { { 7 }, { 2, 3, 4 }, { 40, 41 }, { 0 } } do
    list[i] = { name = shape_name(shape), call = rl.where, smooth = i == 2, fixed = { true },
      inputs = { values(shape, -1, 1):gt(0), values(shape, -1, 1, 1),
                 values({ shape[#shape] }, -1, 1, 2) } }
  end
  return list
end

-- ---- along dimensions ----

local function reduce(op)
  local f, list = core.tensor[op.name], {}
  local function add(shape, dims, keepdim, low, high)
    list[#list + 1] = { inputs = { values(shape, low or -1.5, high or 2) },
      smooth = numel(shape) > 0 and numel(shape) < 30,
      call = function(x) return f(x, dims, keepdim) end,
      name = ("%s over %s"):format(shape_name(shape), type(dims) == "table"
        and table.concat(dims, ",") or tostring(dims or "all")) }
  end
  for _, dims in ipairs { false, 1, 2, 3, { 1, 3 }, { 1, 2, 3 } } do
    add({ 2, 3, 4 }, dims or nil, false)
    add({ 2, 3, 4 }, dims or nil, true)
  end
  add({}, nil)
  add({ 1 }, 1)
  -- Factors about 1, so that long products stay numbers.
  for _, shape in ipairs { { 300 }, { 3, 1000 }, { 1000, 3 }, { 40, 70 } } do
    for dim = 1, #shape do add(shape, dim, false, 0.9, 1.1) end
    add(shape, nil, false, 0.9, 1.1)
  end
  add({ 0, 3 }, 1)
  add({ 0, 3 }, 2)
  local x = values({ 2, 3, 4 }, -1.5, 2)
  x[{ 1, 2, 3 }] = 0
  list[#list + 1] = { name = "a zero", inputs = { x }, smooth = true,
    call = function(t) return f(t, { 2, 3 }) end }
  list[#list + 1] = { name = "odd numbers", inputs = { rl.tensor(odd, cpu):view(4, 6) },
    call = function(t) return f(t, 2) end }
  return list
end

local function along(op)
  local f, list = core.tensor[op.name], {}
  for _, shape in ipairs { { 7 }, { 1 }, { 2, 3, 4 }, { 4, 300 }, { 300, 4 }, { 2, 1030 }, { 0, 3 },
                           { 3, 0 } } do
    for dim = 1, #shape do
      list[#list + 1] = { name = shape_name(shape) .. " along " .. dim, smooth = numel(shape) < 30,
        inputs = { values(shape, -2, 2) }, call = function(x) return f(x, dim) end }
    end
  end
  list[#list + 1] = { name = "odd numbers", inputs = { rl.tensor(odd, cpu):view(12, 2) },
    call = function(x) return f(x, 2) end }
  list[#list + 1] = { name = "-inf alone", inputs = { rl.full({ 2, 3 }, -inf, cpu) },
    call = function(x) return f(x, 2) end }
  return list
end

-- ---- products ----

local function matmul()
  local list = {}
  for _, pair in ipairs { { { 4 }, { 4 } }, { { 3, 4 }, { 4 } }, { { 3 }, { 3, 5 } },
      { { 3, 4 }, { 4, 2 } }, { { 2, 3, 4 }, { 2, 4, 2 } }, { { 2, 3, 4 }, { 4, 2 } },
      { { 3, 4 }, { 2, 4, 2 } }, { { 4 }, { 2, 4, 3 } }, { { 2, 3, 4 }, { 4 } },
      { { 2, 1, 3, 4 }, { 3, 4, 2 } }, { { 33, 65 }, { 65, 17 } }, { { 1, 128 }, { 128, 2 } },
      { { 0, 3 }, { 3, 2 } }, { { 2, 0 }, { 0, 3 } } } do
    list[#list + 1] = { name = shape_name(pair[1]) .. shape_name(pair[2]), call = rl.matmul,
      smooth = numel(pair[1]) < 30, inputs = { values(pair[1], -1, 1), values(pair[2], -1, 1, 1) } }
  end
  return list
end

local function linear()
  local list = {}
  for _, shape in ipairs { { 3 }, { 4, 3 }, { 2, 2, 3 }, { 70, 3 }, { 0, 3 } } do
    for bias = 0, 1 do
      list[#list + 1] = { name = shape_name(shape) .. (bias == 1 and " with bias" or ""),
        smooth = numel(shape) < 30, call = rl.linear,
        inputs = { values(shape, -1, 1), values({ 5, 3 }, -1, 1, 1),
                   bias == 1 and values({ 5 }, -1, 1, 2) or nil } }
    end
  end
  return list
end

-- ---- shapes ----

local function one(call, shape)
  return { { name = shape_name(shape or { 2, 3, 4 }), smooth = true, call = call,
    inputs = { values(shape or { 2, 3, 4 }, -1, 1) } } }
end

local function to()
  local list = {}
  for _, dtype in ipairs { "f32", "f64", "i32", "i64", "u8", "bool" } do
    for i, given in ipairs { values({ 5, 3 }, -3, 200), rl.tensor(odd, cpu) } do
      list[#list + 1] = { name = dtype, inputs = { given }, smooth = dtype == "f64" and i == 1,
        call = function(x) return x:to(dtype) end }
    end
  end
  -- The way back from the device is an operation as well.
  list[#list + 1] = { name = "and back", smooth = true, inputs = { values({ 2, 3 }, -1, 1) },
    call = function(x) return x:to("cpu"):to(x.device) end }
  return list
end

-- ---- indices ----

local function gather()
  return {
    { name = "repeats", smooth = true, fixed = { false, true },
      inputs = { values({ 3, 4 }, -1, 1), integers({ 2, 3 }, 3) },
      call = function(x, index) return x:gather(2, index) end },
    { name = "large", fixed = { false, true },
      inputs = { values({ 50, 8 }, -1, 1), integers({ 400, 8 }, 50) },
      call = function(x, index) return x:gather(1, index) end },
    { name = "out of range", fixed = { false, true },
      inputs = { values({ 3, 4 }, -1, 1), rl.tensor({ { 0, 4 }, { 9, -1 } },
        { dtype = "i64", device = "cpu" }) },
      call = function(x, index) return x:gather(2, index) end },
  }
end

local function index_select()
  return {
    { name = "repeats", smooth = true, fixed = { false, true },
      inputs = { values({ 3, 4 }, -1, 1), integers({ 6 }, 3) },
      call = function(x, index) return x:index_select(1, index) end },
    { name = "columns", fixed = { false, true },
      inputs = { values({ 30, 40 }, -1, 1), integers({ 100 }, 40) },
      call = function(x, index) return x:index_select(2, index) end },
    { name = "out of range", fixed = { false, true },
      inputs = { values({ 3 }, -1, 1), rl.tensor({ 1, -2 }, { dtype = "i64", device = "cpu" }) },
      call = function(x, index) return x:index_select(1, index) end },
  }
end

local function cat(op)
  local f, list = core.tensor[op.name], {}
  local inputs = { values({ 2, 3 }, -1, 1), values({ 2, 3 }, -1, 1, 1), values({ 2, 3 }, 0, 2) }
  for dim = 1, op.name == "stack" and 3 or 2 do
    list[dim] = { name = "along " .. dim, smooth = true, inputs = inputs,
      call = function(...) return f({ ... }, dim) end }
  end
  return list
end

local function dropout()
  local list = {}
  for i, shape in ipairs { { 3, 4 }, { 1, 128 }, { 70, 5 }, { 2, 3, 4 }, { 6 }, { 0, 4 } } do
    local rows = numel(shape) / math.max(1, shape[#shape])
    list[i] = { name = shape_name(shape), smooth = numel(shape) < 30, fixed = { false, true },
      inputs = { values(shape, 0.5, 1), integers({ rows }, 1e9) },
      call = function(x, keys) return core.tensor.dropout(x, 0.4, keys, 3) end }
  end
  return list
end

local function copy_into()
  return { { name = "broadcast, cast", smooth = true,
    inputs = { values({ 2, 3 }, -1, 1), values({ 3 }, -1, 1, 1) },
    call = function(x, source) return (x * 1):copy_(source) end } }
end

local function custom()
  local double = rl.autograd.Function { name = "double",
    forward = function(_, x) return x + x end,
    backward = function(_, grad) return grad * 2 end }
  return one(double)
end

local families = {
  UNARY = unary, BINARY = binary, REDUCE = reduce, SOFTMAX = along, CUMSUM = along,
  WHERE = where, MATMUL = matmul, LINEAR = linear, TO = to, GATHER = gather,
  INDEX_SELECT = index_select, CAT = cat, DROPOUT = dropout, COPY_INTO = copy_into,
  CUSTOM = custom,
  SELECT = function() return one(function(x) return x:select(2, 3) end) end,
  NARROW = function() return one(function(x) return x:narrow(3, 2, 2) end) end,
  PERMUTE = function() return one(function(x) return x:permute(3, 1, 2) end) end,
  VIEW = function(op)
    return one(function(x) return core.tensor[op.name](x:contiguous(), -1, 6) end)
  end,
  EXPAND = function() return one(function(x) return x:expand(3, -1, 4) end, { 2, 1 }) end,
  COPY = function(op) return one(core.tensor[op.name]) end,
}

--- The cases of a row of core.autograd.ops(); nil: nobody knows how to call it.
function samples.of(op)
  local make = families[op.family]
  return make and make(op)
end

-- ---- what is no row of the table: no gradient flows ----

local function sorted(x, dim, descending)
  local v, i = x:sort(dim, descending)
  return rl.cat { v:to "f64":reshape(-1), i:to "f64":reshape(-1) }
end

--- Further operations of a device: name -> list of cases.
function samples.others()
  local function random(name, make) -- the numbers of a stream of its own
    return { name = name, inputs = {}, call = function(_, device)
      rl.manual_seed(17)
      local first = make(device)
      return rl.cat { first:to "f64":reshape(-1), make(device):to "f64":reshape(-1) }
    end }
  end
  local others = { sort = {}, arg = {}, random = {}, index = {} }
  for _, shape in ipairs { { 7 }, { 5, 3 }, { 3, 300 }, { 2, 1025 }, { 0, 3 } } do
    for dim = 1, #shape do
      local x = values(shape, -3, 3):mul(2):round() -- with equals
      local name = shape_name(shape) .. " along " .. dim
      for _, down in ipairs { false, true } do
        table.insert(others.sort, { name = name, inputs = { x },
          call = function(t) return sorted(t, dim, down) end })
      end
      table.insert(others.arg, { name = name, inputs = { x },
        call = function(t) return t:argmax(dim) end })
      table.insert(others.arg, { name = "least of " .. name, inputs = { x },
        call = function(t) return t:argmin(dim) end })
    end
  end
  table.insert(others.sort, { name = "odd numbers", inputs = { rl.tensor(odd, cpu) },
    call = function(t) return sorted(t, 1) end })
  table.insert(others.arg, { name = "odd numbers", inputs = { rl.tensor(odd, cpu):view(6, 4) },
    call = function(t) return t:argmax(2) end })
  local index, source = integers({ 6 }, 4), values({ 6, 3 }, -1, 1)
  others.index = {
    { name = "one_hot", inputs = { index }, fixed = { true },
      call = function(i) return rl.one_hot(i, 5) end },
    { name = "index_add_", inputs = { values({ 4, 3 }, -1, 1), index, source },
      fixed = { false, true },
      call = function(x, i, s) return x:clone():index_add_(1, i, s) end },
    { name = "scatter_add_", inputs = { values({ 3 }, -1, 1), integers({ 5 }, 3),
      values({ 5 }, -1, 1) }, fixed = { false, true },
      call = function(x, i, s) return x:clone():scatter_add_(1, i, s) end },
    { name = "scatter_add_ out of range", inputs = { values({ 3 }, -1, 1),
      rl.tensor({ 0, 7 }, { dtype = "i64", device = "cpu" }), values({ 2 }, -1, 1) },
      fixed = { false, true },
      call = function(x, i, s) return x:clone():scatter_add_(1, i, s) end },
    { name = "scatter_", inputs = { values({ 4 }, -1, 1),
      rl.tensor({ 2, 0 }, { dtype = "i64", device = "cpu" }), values({ 2 }, -1, 1) },
      fixed = { false, true },
      call = function(x, i, s) return x:clone():scatter_(1, i, s) end },
  }
  for _, dtype in ipairs { "f32", "f64" } do
    local function on(device) return { device = device, dtype = dtype } end
    for _, n in ipairs { 1, 3, 1000 } do
      table.insert(others.random, random("uniform " .. n, function(d) return rl.rand(n, on(d)) end))
      table.insert(others.random, random("normal " .. n, function(d) return rl.randn(n, on(d)) end))
    end
    table.insert(others.random, random("bernoulli", function(d)
      return rl.full({ 5, 7 }, 0.3, on(d)):bernoulli()
    end))
    table.insert(others.random, random("multinomial", function(d)
      return rl.tensor({ { 1, 2, 3 }, { 0, 1, 0 } }, on(d)):multinomial(9)
    end))
    table.insert(others.random, random("multinomial by keys", function(d)
      local keys = rl.tensor({ 5, 6 }, { dtype = "i64", device = d })
      return rl.tensor({ { 1, 2, 3 }, { 4, 1, 0 } }, on(d)):multinomial(0, keys, 2)
    end))
    table.insert(others.random, random("no row to draw from", function(d)
      return rl.tensor({ { 1, 2 }, { 0, 0 } }, on(d)):multinomial(1)
    end))
  end
  for _, dtype in ipairs { "i32", "i64", "u8" } do
    table.insert(others.random, random("integers", function(d)
      return rl.randint(3, 200, { 50 }, { device = d, dtype = dtype })
    end))
  end
  table.insert(others.random, random("randperm", function(d)
    return rl.randperm(1000, { device = d })
  end))
  table.insert(others.random, random("keys", function(d) return rl.row_keys(70, d) end))
  return others
end

samples.unpack = unpack
return samples
