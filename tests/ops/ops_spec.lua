-- Every operation of the engine's table, on the device under test, against the CPU: forward
-- and backward, each dtype, shapes of all classes, operands that lie in memory in four ways,
-- bit for bit; and gradients against differences. The device is the default one, which
-- RLENGINE_TEST_DEVICE names. Where the CPU refuses, it must refuse with the same words.
local core = require "rlengine.core"
local rl = require "rlengine"
local samples = require "op_samples"

local device = rl.default_device()
local unpack = samples.unpack
local ffi = require "ffi"

local dtypes = { "f32", "f64", "i32", "i64", "u8", "bool" }
local layouts = { "contiguous", "transposed", "expanded", "sliced" }

-- t, of the CPU, with other memory: the same values but for "expanded", where the first row
-- stands for all.
local function place(t, layout, where)
  local n = t:dim()
  if layout == "transposed" and n > 1 then
    local order = {}
    for i = 1, n do order[i] = n + 1 - i end
    return t:permute(order):contiguous():to(where):permute(order)
  elseif layout == "expanded" and n > 0 and t:size(1) > 1 then
    local shape = t.shape
    return t:narrow(1, 1, 1):to(where):expand(shape)
  elseif layout == "sliced" then
    local both = rl.stack({ t, rl.zeros_like(t) }, n + 1)
    return both:to(where):select(n + 1, 1)
  end
  return t:to(where):clone()
end

local function applies(case, layout)
  for _, t in ipairs(case.inputs) do
    if layout == "contiguous" or layout == "sliced" or t:dim() > 1
      or (layout == "expanded" and t:dim() == 1 and t:size(1) > 1) then return true end
  end
  return layout == "contiguous"
end

-- The elements as bytes, every NaN the same one.
local function bytes(t)
  t = t:detach():to "cpu"
  if t.dtype:match "^f" then t = rl.where(t:isnan(), 0 / 0, t) end
  return core.tensor.bytes(t)
end

local integer = { f32 = "int32_t", f64 = "int64_t" }

-- How many representable numbers lie between the two, at most: for the message.
local function ulps(a, b, dtype)
  local kind = integer[dtype]
  local x, y = ffi.new(kind .. "[?]", #a / ffi.sizeof(kind)), ffi.new(kind .. "[?]", #b)
  ffi.copy(x, a, #a)
  ffi.copy(y, b, #b)
  local worst = 0
  local low = ffi.cast(kind, kind == "int32_t" and -2 ^ 31 or -2 ^ 63)
  for i = 0, #a / ffi.sizeof(kind) - 1 do
    local p, q = ffi.cast("int64_t", x[i]), ffi.cast("int64_t", y[i])
    if p < 0 then p = ffi.cast("int64_t", low) - p end
    if q < 0 then q = ffi.cast("int64_t", low) - q end
    worst = math.max(worst, math.abs(tonumber(p - q)))
  end
  return worst
end

-- nil, or in words how `got` differs from `want`.
local function difference(what, want, got)
  if want.dtype ~= got.dtype then
    return ("%s is %s instead of %s"):format(what, got.dtype, want.dtype)
  end
  if table.concat(want.shape, ",") ~= table.concat(got.shape, ",") then
    return ("%s is [%s] instead of [%s]"):format(what, table.concat(got.shape, ","),
      table.concat(want.shape, ","))
  end
  local a, b = bytes(want), bytes(got)
  if a == b then return nil end
  if integer[want.dtype] then
    return ("%s differs by %.0f ulp"):format(what, ulps(a, b, want.dtype))
  end
  return what .. " differs"
end

-- The result of a case on a device, and the gradients of its inputs; or the error.
local function run(case, dtype, layout, where, graded)
  local inputs, leaves = {}, {}
  for i, t in ipairs(case.inputs) do
    if not (case.fixed and case.fixed[i]) then t = t:to(dtype) end
    inputs[i] = place(t, layout, where)
    if graded and inputs[i].dtype:match "^f" then
      leaves[#leaves + 1] = inputs[i]:requires_grad_()
    end
  end
  if #inputs == 0 then inputs[1] = false end
  inputs[#inputs + 1] = #case.inputs == 0 and where or nil
  local ok, out = pcall(case.call, unpack(inputs))
  if not ok then
    if type(out) ~= "table" then error(out, 0) end
    return nil, { code = out.code, message = out.message }
  end
  local grads = {}
  if out.requires_grad then
    local g = {}
    for i = 1, out:numel() do g[i] = (i * 7 % 11 - 5) / 4 + 0.125 end
    local options = { dtype = out.dtype, device = where }
    out:backward(#g > 0 and rl.tensor(g, options):reshape(out.shape)
      or rl.zeros(out.shape, options))
    for i, leaf in ipairs(leaves) do grads[i] = leaf.grad or false end
  end
  return out, grads
end

-- Every difference of a case, as a list of lines.
local function differences(case, graded, list)
  for _, dtype in ipairs(#case.inputs > 0 and dtypes or { "f32" }) do
    local with_grad = graded and not case.in_place and dtype:match "^f" ~= nil
    for _, layout in ipairs(layouts) do
      if applies(case, layout) then
        local function add(text)
          if text then
            list[#list + 1] = ("%s, %s, %s: %s"):format(case.name, dtype, layout, text)
          end
        end
        -- The CPU gets the same values, always contiguous: how operands lie must not show.
        local want, wanted = run(case, dtype, layout == "expanded" and layout or "contiguous",
          "cpu", with_grad)
        local got, grads = run(case, dtype, layout, device, with_grad)
        if not want then
          if got then
            add("no error; the CPU says " .. wanted.message)
          elseif wanted.code ~= grads.code
            or wanted.message ~= grads.message:gsub(device.name, "cpu") then
            add(("says %s: %s; the CPU %s: %s"):format(grads.code, grads.message, wanted.code,
              wanted.message))
          end
        elseif not got then
          add("raised " .. grads.code .. ": " .. grads.message)
        else
          add(difference("the result", want, got))
          if got.device ~= device then add("the result is on " .. got.device) end
          for i, gradient in ipairs(wanted) do
            if gradient then
              add(difference("gradient " .. i, gradient, grads[i]))
            elseif grads[i] then
              add("has gradient " .. i)
            end
          end
        end
      end
    end
  end
end

local function check(list)
  assert(#list == 0, ("%d differences\n  %s"):format(#list,
    table.concat(list, "\n  ", 1, math.min(#list, 12))))
end

describe("the table of operations on " .. device.name, function()
  local ops = core.autograd.ops()

  it("has a sample for every row", function()
    local missing = {}
    for _, op in ipairs(ops) do
      if not samples.of(op) then missing[#missing + 1] = op.name .. " of " .. op.family end
    end
    assert.same({}, missing)
    assert.is_true(#ops > 60)
  end)

  for _, op in ipairs(ops) do
    local cases = samples.of(op) or {}

    it(op.name .. " equals the CPU's", function()
      local list = {}
      for _, case in ipairs(cases) do
        differences(case, op.differentiable, list)
      end
      check(list)
    end)

    if op.differentiable then
      it(op.name .. " has the gradient that differences show", function()
        local checked = 0
        for _, case in ipairs(cases) do
          if case.smooth then
            for _, layout in ipairs { "contiguous", "transposed" } do
              local inputs = {}
              for i, t in ipairs(case.inputs) do inputs[i] = t:to(device) end
              local function fn(...)
                local given = { ... }
                for i, t in ipairs(given) do
                  -- The same numbers, turned in memory, with the gradient's way back.
                  if layout == "transposed" and t:dim() == 2 then
                    given[i] = t:t():clone():t()
                  end
                end
                return case.call(unpack(given))
              end
              local ok, err = pcall(rl.autograd.gradcheck, fn, inputs)
              assert(ok, ok or ("%s: %s"):format(case.name, tostring(err)))
              checked = checked + 1
            end
          end
        end
        assert.is_true(checked > 0)
      end)
    end
  end
end)

describe("on " .. device.name, function()
  for name, cases in pairs(samples.others()) do
    it(name .. " equals the CPU's", function()
      local list = {}
      for _, case in ipairs(cases) do differences(case, false, list) end
      check(list)
    end)
  end
end)
