--- Reads the records of tests/golden and compares with them. tests/golden/golden_format.py
-- says how they read.

local rl = require "rlengine"

local golden = {}

local unpack = table.unpack or unpack
local load_text = loadstring or load

local function number(word)
  if word == "nan" then return 0 / 0 end
  if word == "inf" then return math.huge end
  if word == "-inf" then return -math.huge end
  return assert(tonumber(word), word)
end

-- "[2,3] 1 2 3 4 5 6" -> shape, flat list of words
local function parse_values(text)
  local sizes, rest = text:match("^%[([%d,]*)%]%s*(.*)$")
  local shape, words = {}, {}
  for size in sizes:gmatch("%d+") do shape[#shape + 1] = tonumber(size) end
  for word in rest:gmatch("%S+") do words[#words + 1] = word end
  return shape, words
end

--- A tensor of the shape and values of a record.
function golden.tensor(text, dtype)
  local shape, words = parse_values(text)
  if dtype == "i64" then
    -- 2^53 and above do not fit a Lua number: put together from two halves.
    local high, low = {}, {}
    for i, word in ipairs(words) do
      local sign, digits = word:match("^(%-?)(%d+)$")
      local h = tonumber(digits:sub(1, -10)) or 0
      local l = tonumber(digits:sub(-9))
      if sign == "-" then h, l = -h, -l end
      high[i], low[i] = h, l
    end
    local options = { dtype = "i64" }
    if #words == 0 then return rl.zeros(shape, options) end
    return (rl.tensor(high, options) * 1e9 + rl.tensor(low, options)):reshape(shape)
  end
  local values = {}
  for i, word in ipairs(words) do
    values[i] = number(word)
    if dtype == "bool" then values[i] = values[i] ~= 0 end
  end
  if #values == 0 then return rl.zeros(shape, { dtype = dtype }) end
  return rl.tensor(values, { dtype = dtype }):reshape(shape)
end

--- The cases of a file, in order.
function golden.read(path)
  local cases, case = {}, nil
  for line in io.lines(path) do
    local word, rest = line:match("^(%S+) ?(.*)$")
    if word == "case" then
      case = { name = rest, inputs = {}, f32 = { out = {}, grad = {} },
               f64 = { out = {}, grad = {} } }
      cases[#cases + 1] = case
    elseif word == "lua" then
      case.lua = rest
    elseif word == "tol" then
      case.rtol, case.atol = rest:match("^(%S+) (%S+)$")
      case.rtol, case.atol = tonumber(case.rtol), tonumber(case.atol)
    elseif word == "in" then
      local name, dtype, shape, more = rest:match("^(%S+) (%a+%d*)(%b[])(.*)$")
      local grad = more:match("^ grad") ~= nil
      more = more:gsub("^ grad", "")
      table.insert(case.inputs, { name = name, dtype = dtype, grad = grad,
                                  text = shape .. " " .. more })
    elseif word == "f32" or word == "f64" then
      local what, more = rest:match("^(%a+) (.*)$")
      if what == "out" then
        local dtype, values = more:match("^(%a+%d*)(%[.*)$")
        table.insert(case[word].out, { dtype = dtype, text = values })
      else
        local name, values = more:match("^(%S+) ?(.*)$")
        case[word].grad[name] = values
      end
    end
  end
  return cases
end

-- Element i (from 0) of an output is weighted with ((7 i) mod 11 - 5) / 4 + 0.125.
local function weights(out)
  local w = {}
  for i = 0, out:numel() - 1 do w[i + 1] = (i * 7 % 11 - 5) / 4 + 0.125 end
  if #w == 0 then return rl.zeros(out.shape, { dtype = out.dtype }) end
  return rl.tensor(w, { dtype = out.dtype }):reshape(out.shape)
end

local function flat(t)
  local list = t:detach():reshape(-1):totable()
  return type(list) == "table" and list or { list }
end

local function near(a, b, rtol, atol)
  if a ~= a or b ~= b then return a ~= a and b ~= b end
  if a == b then return true end
  return math.abs(a - b) <= atol + rtol * math.abs(b)
end

-- nil, or what differs.
local function compare(what, got, words, rtol, atol)
  local values = flat(got)
  if #values ~= #words then
    return ("%s: %d values, expected %d"):format(what, #values, #words)
  end
  for i, word in ipairs(words) do
    local a = values[i]
    if type(a) == "boolean" then a = a and 1 or 0 end
    if got.dtype == "i64" and #word > 15 then
      local want = golden.tensor("[1] " .. word, "i64")
      if not got:reshape(-1)[i]:eq(want):all():item() then
        return ("%s[%d]: %s, expected %s"):format(what, i, tostring(a), word)
      end
    elseif not near(a, number(word), rtol, atol) then
      return ("%s[%d]: %.17g, expected %s"):format(what, i, a, word)
    end
  end
end

local tolerance = { f32 = { 4e-6, 1e-6 }, f64 = { 1e-12, 1e-13 } }

local environment = setmetatable({}, { __index = function(_, key)
  if key == "rl" then return rl end
  if key == "F" then return rl.nn.functional end
  return _G[key]
end })

local function compile(case)
  local names = {}
  for i, input in ipairs(case.inputs) do names[i] = input.name end
  local body = case.lua:find("return", 1, true) and case.lua or "return " .. case.lua
  local text = ("local rl, F = ... return function(%s) %s end"):format(table.concat(names, ", "),
    body)
  return assert(load_text(text, "=" .. case.lua))(environment.rl, environment.F)
end

--- Run a case in a float type. Returns nil when it equals the record, else what differs.
function golden.run(case, kind)
  local record = case[kind]
  if #record.out == 0 then return nil end
  local rtol = case.rtol and kind == "f32" and case.rtol or tolerance[kind][1]
  local atol = case.atol and kind == "f32" and case.atol or tolerance[kind][2]
  local given, leaves = {}, {}
  for i, input in ipairs(case.inputs) do
    local dtype = input.dtype == "float" and kind or input.dtype
    given[i] = golden.tensor(input.text, dtype)
    if input.grad then
      given[i]:requires_grad_()
      leaves[input.name] = given[i]
    end
  end
  local outs = { compile(case)(unpack(given, 1, #case.inputs)) }
  if #outs == 1 and type(outs[1]) == "table" then outs = outs[1] end
  if #outs ~= #record.out then
    return ("%d results, expected %d"):format(#outs, #record.out)
  end
  local loss
  for i, want in ipairs(record.out) do
    local got = outs[i]
    local shape, words = parse_values(want.text)
    if got.dtype ~= want.dtype then
      return ("result %d is %s, expected %s"):format(i, got.dtype, want.dtype)
    end
    if table.concat(got.shape, ",") ~= table.concat(shape, ",") then
      return ("result %d is [%s], expected [%s]"):format(i, table.concat(got.shape, ","),
        table.concat(shape, ","))
    end
    local difference = compare("result " .. i, got, words, rtol, atol)
    if difference then return difference end
    if got.requires_grad then
      local part = (got * weights(got)):sum()
      loss = loss and loss + part or part
    end
  end
  if not next(leaves) then return nil end
  if not loss then return "no result requires grad" end
  loss:backward()
  for name, leaf in pairs(leaves) do
    local _, words = parse_values("[] " .. record.grad[name])
    if not leaf.grad then return "no gradient for " .. name end
    if table.concat(leaf.grad.shape, ",") ~= table.concat(leaf.shape, ",") then
      return ("gradient of %s is [%s]"):format(name, table.concat(leaf.grad.shape, ","))
    end
    local difference = compare("gradient of " .. name, leaf.grad, words, rtol * 4, atol * 4)
    if difference then return difference end
  end
end

--- One busted test per family of a file, which runs all of its cases in both float types and
-- reports every difference.
function golden.describe(path)
  local families, order = {}, {}
  for _, case in ipairs(golden.read(path)) do
    local family = case.name:match("^%S+")
    if not families[family] then
      families[family] = {}
      order[#order + 1] = family
    end
    table.insert(families[family], case)
  end
  return order, function(family)
    local differences = {}
    for _, case in ipairs(families[family]) do
      for _, kind in ipairs{ "f32", "f64" } do
        local ok, difference = pcall(golden.run, case, kind)
        if not ok then difference = "raised " .. tostring(difference) end
        if difference then
          local shapes = {}
          for i, input in ipairs(case.inputs) do
            shapes[i] = input.name .. input.text:match("%b[]")
          end
          differences[#differences + 1] = ("%s, %s: %s (%s): %s"):format(case.name, kind, case.lua,
            table.concat(shapes, " "), difference)
        end
      end
    end
    return differences
  end
end

return golden
