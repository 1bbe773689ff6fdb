--- Batched functions: calls of many workers, answered together. Part of `rlengine.rpc`.
--
--     local Agent = rpc.class("Agent", {"select_action"})
--     Agent.select_action = rpc.batched(function(self, obs, batch)
--       return (self.policy:act(obs, {keys = batch.keys}))
--     end, {input = {"obs f32[4]"}, size = 512, delay = 200e-6})
--
-- What others call is an ordinary function with the arguments of one row, or of several:
-- `agent:rpc_sync():select_action(obs)` with obs f32[4] gives one action, with f32[64,4] an
-- action for each row. Here the function runs once for all who called meanwhile.
--
-- It runs when `size` rows are there, or the oldest call has waited `delay` seconds, or every
-- caller that can be expected has called: who called before, is connected, has not been missed
-- for a delay, and, where a call from here to it was open as it called (its run_episode), still
-- has one open. So callers in lock-step never wait for the delay, and one that died or hangs
-- is waited for once. With `when_idle` it also runs as soon as this worker has nothing else to
-- do and the device has done what it was given: batches are smaller, nobody waits for the sake of
-- others, and while one batch is computed the next one gathers. That is faster where a run of the
-- function costs little, as that of a small policy on a CPU; without it the fewest runs are made.
--
-- Its arguments are, for each entry of `input`, in order:
--   "obs f32[4]"    a tensor f32[rows,4] of all rows; numbers will do where a row is "f32[]"
--   {name = "obs", dtype = "f32", shape = {4}} means the same, for what a space says
--   "name any"      a list with an entry for each call, of any value but tensors
-- then `batch`, which has, until the function returns,
--   rows, calls     how many
--   callers         names of the callers, an entry for each call
--   counts          rows of each call
--   keys            a row key for each row (i64), for act, sample and dropout. It depends only on
--                   the caller, the number of its call and the row in it: what is drawn with
--                   keys does not depend on who else is in the batch, or where
-- The tensors lie in memory that the next batch is written to: keep copies, obs:clone().
--
-- A call that waits in a batch has been started: what its worker calls without waiting for its
-- result may run before.
--
-- It returns tensors with a row for each row of the batch (each caller gets its own), lists
-- with an entry for each call, or nil. A caller of a single row gets its row without the first
-- dimension, and where nothing is left of that a number.

local core = require "rlengine.core"
local options = require "rlengine.options"

local c = core.rpc
local fail = options.fail

local batch = {}

-- What rpc.batched returned -> its spec.
local specs = setmetatable({}, { __mode = "k" })

local dtypes = { f32 = true, f64 = true, i32 = true, i64 = true, u8 = true, bool = true }

-- ---- what a batched function is told about its batch ----

local lazy = {}
function lazy.keys() return c.batch_keys() end
function lazy.callers(self)
  local callers, counts = c.batch_callers()
  rawset(self, "counts", counts)
  return callers
end
function lazy.counts(self)
  local callers, counts = c.batch_callers()
  rawset(self, "callers", callers)
  return counts
end

local info_meta = {
  __index = function(self, key)
    local make = lazy[key]
    if not make then return nil end
    local value = make(self)
    rawset(self, key, value)
    return value
  end,
}

-- ---- declaring ----

local table_entry = { name = "string", dtype = "string", shape = "table" }

local function parse_input(i, entry)
  if type(entry) == "table" then
    options.check(("rpc.batched: input %d"):format(i), entry, table_entry)
    entry = ("%s %s[%s]"):format(entry.name or "argument_" .. i, entry.dtype or "f32",
      table.concat(entry.shape or {}, ","))
  end
  if type(entry) ~= "string" then
    fail("INVALID_ARGUMENT", 'rpc.batched: input %d must be a text like "obs f32[4]", got %s', i,
      type(entry))
  end
  local name, kind = entry:match "^([%a_][%w_]*)%s+(%S+)$"
  if not name then name, kind = "argument " .. i, entry:match "^%s*(%S+)%s*$" end
  if kind == "any" then return { name = name } end
  local dtype, sizes = (kind or ""):match "^(%w+)%[([%d,]*)%]$"
  if not dtype then dtype, sizes = (kind or ""):match "^(%w+)$", "" end
  if not dtypes[dtype or ""] then
    fail("INVALID_ARGUMENT", 'rpc.batched: input %d, "%s": expected a name and what a row is, '
      .. 'like "obs f32[4]" or "id i64", or "name any"', i, entry)
  end
  local shape = {}
  for size in sizes:gmatch "[^,]+" do shape[#shape + 1] = tonumber(size) end
  if #shape > 7 or sizes ~= "" and ("," .. sizes .. ","):find ",0*," then
    fail("INVALID_ARGUMENT", "rpc.batched: input %d: a row has at most 7 sizes, from 1 on, not %s",
      i, kind)
  end
  return { name = name, dtype = dtype, shape = shape }
end

local MOST_BYTES = 2 ^ 47 -- a process can address

local function check_room(i, input, rows)
  if not input.dtype then return end
  local bytes = rows * 8
  for _, size in ipairs(input.shape) do bytes = bytes * size end
  if bytes > MOST_BYTES then
    fail("INVALID_ARGUMENT", "rpc.batched: input %d: %d rows of %s[%s] are more than any memory "
      .. "holds", i, rows, input.dtype, table.concat(input.shape, ","))
  end
end

-- Is there such a kind of device? It is opened when the first call comes: who only declares
-- needs none.
local kinds = { cpu = true, cuda = true, emu = true, auto = true }
local function check_device(device)
  if type(device) == "string" and kinds[device:match "^(%a+)$" or device:match "^(%a+):%d%d?%d?$"]
  then return end
  core.device.get(device)
end

local known = {
  input = "table", size = "number", delay = "number", when_idle = "boolean", name = "string",
  device = "any",
}

-- ---- a call from this worker itself: a batch of its own ----

local function is_tensor(value) return core.tensor.is_tensor(value) end

local function same(shape, from, row)
  if #shape - from ~= #row then return false end
  for i = 1, #row do
    if shape[from + i] ~= row[i] then return false end
  end
  return true
end

local function wants(spec, input, value)
  local got = type(value)
  if is_tensor(value) then
    got = ("%s[%s]"):format(value.dtype, table.concat(value.shape, ","))
  end
  fail("INVALID_ARGUMENT", '%s of "%s" is %s, %s wants %s[%s]', input.name,
    c.active() and c.name() or "this worker", got, spec.name or "the function", input.dtype,
    table.concat(input.shape, ","))
end

-- An argument as rows: tensor, how many, whether it came without a dimension for them.
local function as_rows(spec, input, value)
  local tensor = core.tensor
  if type(value) == "number" or type(value) == "boolean" then
    if #input.shape > 0 then wants(spec, input, value) end
    value = tensor.tensor(value, { dtype = input.dtype })
  end
  if not is_tensor(value) or value.dtype ~= input.dtype then wants(spec, input, value) end
  local shape = value.shape
  if same(shape, 0, input.shape) then return value:unsqueeze(1), 1, true end
  if not same(shape, 1, input.shape) or shape[1] == 0 then wants(spec, input, value) end
  return value, shape[1], false
end

local function one_result(value, rows, single, i)
  if value == nil then return nil end
  if not is_tensor(value) then
    if type(value) ~= "table" or #value ~= 1 then
      fail("UNKNOWN", "result %d of a batched function is no tensor and no list with an entry "
        .. "for each call", i)
    end
    return value[1]
  end
  local shape = value.shape
  if shape[1] ~= rows then
    fail("UNKNOWN", "result %d has %d rows, the batch has %d", i, shape[1] or 0, rows)
  end
  if not single then return value end
  return #shape == 1 and value:item() or value[1]
end

local function results(rows, single, ...)
  local n = select("#", ...)
  if n == 1 then return one_result((...), rows, single, 1) end
  local list = { ... }
  for i = 1, n do list[i] = one_result(list[i], rows, single, i) end
  return (table.unpack or unpack)(list, 1, n)
end

local function run_alone(spec, ...)
  local n, given = select("#", ...), { ... }
  local inputs, object = spec.inputs, n > #spec.inputs and 1 or 0
  if n - object ~= #inputs then
    fail("INVALID_ARGUMENT", "a batched function takes %d argument%s, got %d", #inputs,
      #inputs == 1 and "" or "s", n)
  end
  local args, rows, single = {}, nil, true
  if object == 1 then args[1] = given[1] end
  for i, input in ipairs(inputs) do
    local value = given[object + i]
    if input.dtype then
      local its, alone
      value, its, alone = as_rows(spec, input, value)
      if rows and its ~= rows then
        fail("INVALID_ARGUMENT", "%s has %d rows, the argument before it %d", input.name, its,
          rows)
      end
      rows, single = its, single and alone
      args[object + i] = value
    else
      args[object + i] = { value }
    end
  end
  rows = rows or 1
  args[object + #inputs + 1] = {
    rows = rows, calls = 1, callers = { c.active() and c.name() or "" }, counts = { rows },
    keys = core.tensor.row_keys(rows),
  }
  return results(rows, single, spec.fn((table.unpack or unpack)(args, 1, object + #inputs + 1)))
end

--- rpc.batched; see rpc.lua.
function batch.batched(fn, given)
  given = options.check("rpc.batched", given, known)
  if type(fn) ~= "function" then
    fail("INVALID_ARGUMENT", "rpc.batched wants a function, got %s", type(fn))
  end
  if not given.input or #given.input == 0 or #given.input > 16 then
    fail("INVALID_ARGUMENT", "rpc.batched needs the option input, a list of 1 to 16 arguments: "
      .. '{"obs f32[4]"}')
  end
  local size, delay = given.size or 64, given.delay or 200e-6
  if size ~= math.floor(size) or size < 1 or size > 1e6 then
    fail("INVALID_ARGUMENT", "rpc.batched: size must be a whole number of rows from 1 to 1000000, "
      .. "got %s", tostring(size))
  end
  if not (delay >= 0 and delay <= 3600) then
    fail("INVALID_ARGUMENT", "rpc.batched: delay must be a number of seconds from 0, got %s",
      tostring(delay))
  end
  local inputs = {}
  for i, entry in ipairs(given.input) do
    inputs[i] = parse_input(i, entry)
    check_room(i, inputs[i], size)
  end
  if given.device ~= nil then check_device(given.device) end
  local spec = {
    fn = fn, inputs = inputs, size = size, delay = delay, when_idle = given.when_idle,
    name = given.name, device = given.device,
  }
  local function call(...) return run_alone(spec, ...) end
  specs[call] = spec
  return call
end

--- A function was declared under that name: the C side has to know when it is a batched one,
-- or was.
function batch.declare(name, fn)
  if specs[fn] then c.batch_declare(name) end
end

--- The spec of a batched function, or nil.
function batch.spec_of(fn) return specs[fn] end

-- ---- what the C side calls ----

--- Body of a flush's coroutine. `objects`: exported objects by number.
function batch.entry(objects)
  local batch_args, batch_reply = c.batch_args, c.batch_reply
  local function call(spec, number, ...)
    setmetatable((select(#spec.inputs + 1, ...)), info_meta)
    if number == 0 then return spec.fn(...) end
    local object = objects[number]
    if object == nil then fail("NOT_FOUND", "reference %d was released", number) end
    return spec.fn(object, ...)
  end
  return function() return batch_reply(call(batch_args())) end
end

return batch
