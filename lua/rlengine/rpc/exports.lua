--- What other workers may call here: registered functions, declared classes, and the objects
-- that references were given out for. Part of `rlengine.rpc`.

local core = require "rlengine.core"
local batch = require "rlengine.rpc.batch"
local options = require "rlengine.options"

local c = core.rpc
local fail = options.fail

local exports = {}

local functions = {} -- name -> {fn, from}
local classes = {}   -- name -> record: {class, name, methods = {name -> true}, from}
local records = {}   -- class -> its record
local builtin = {}   -- name -> function(caller, ...), of the engine itself

-- Objects with references, by number, as long as anybody holds one.
exports.objects, exports.object_records = {}, {}
local objects, object_records = exports.objects, exports.object_records
exports.builtin = builtin

-- Whoever answers this hears what is asked.
builtin["rlengine.alive"] = function() return true end

local function check_name(name, what)
  if type(name) ~= "string" or #name < 1 or #name > 64 or name:find("[^%w_.]") then
    fail("INVALID_ARGUMENT", '%s must be 1 to 64 letters, digits, "_" or ".", not "%s"', what,
      tostring(name))
  end
  if name:find("^rlengine%.") then
    fail("INVALID_ARGUMENT", 'names that begin with "rlengine." belong to the engine')
  end
end

-- "obs_*" as a Lua pattern.
local function pattern_of(from)
  if from == nil then return nil end
  return "^" .. from:gsub("[^%w_*]", "%%%0"):gsub("%*", ".*") .. "$"
end

function exports.refuse(name)
  fail("NOT_FOUND", '"%s" exports no "%s"', c.name(), name)
end
local refuse = exports.refuse

local function check_caller(pattern, caller, name)
  if not caller:find(pattern) then
    fail("PERMISSION_DENIED", '"%s" may not call "%s" of "%s"', caller, name, c.name())
  end
end

--- rpc.class; see rpc.lua.
function exports.class(name, methods, given)
  check_name(name, "a class's name")
  local from = options.check("rpc.class", given, { from = "string" }).from
  if type(methods) ~= "table" then
    fail("INVALID_ARGUMENT", "rpc.class wants the list of methods that others may call")
  end
  if classes[name] then fail("ALREADY_EXISTS", 'a class "%s" is declared already', name) end
  local exported = {}
  for _, method in ipairs(methods) do
    check_name(method, "a method's name")
    if method == "init" then
      fail("INVALID_ARGUMENT", "init runs when an object is made; it cannot be exported")
    end
    exported[method] = true
  end
  local class = { __name = name }
  class.__index = class
  setmetatable(class, {
    __newindex = function(self, key, value)
      batch.declare(key, value)
      rawset(self, key, value)
    end,
    __call = function(self, ...)
      local object = setmetatable({}, self)
      local init = rawget(self, "init")
      if init then init(object, ...) end
      return object
    end,
    __tostring = function() return "class " .. name end,
  })
  local record = { class = class, name = name, methods = exported, from = pattern_of(from) }
  classes[name], records[class] = record, record
  return class
end

--- rpc.register; see rpc.lua.
function exports.register(name, fn, given)
  check_name(name, "a function's name")
  local from = options.check("rpc.register", given, { from = "string" }).from
  if type(fn) ~= "function" then
    fail("INVALID_ARGUMENT", "rpc.register wants a function, got %s", type(fn))
  end
  local before = functions[name]
  functions[name] = { fn = fn, from = pattern_of(from) }
  batch.declare(name, fn)
  if before then batch.declare(name, before.fn) end
end

--- The record of an object's class, or nil.
function exports.record_of(object)
  return records[getmetatable(object)]
end

--- The exported method of a class, or raises NOT_FOUND.
function exports.method(record, name)
  local fn = record.methods[name] and rawget(record.class, name)
  if not fn then refuse(name) end
  return fn
end

--- The registered function of that name, or raises NOT_FOUND.
function exports.fn(name)
  local entry = functions[name]
  if not entry then refuse(name) end
  return entry.fn
end

--- The record of a declared class, or raises NOT_FOUND.
function exports.class_named(name)
  local record = classes[name]
  if not record then refuse(name) end
  return record
end

--- The spec of the batched function that a worker calls, or nil; raises when it may not.
function exports.batched(number, name, caller)
  local record, fn
  if number == 0 then
    record = functions[name]
    fn = record and record.fn
  else
    record = object_records[number]
    fn = record and record.methods[name] and rawget(record.class, name)
  end
  local spec = fn and batch.spec_of(fn)
  if spec and record.from then check_caller(record.from, caller, name) end
  return spec
end

--- A call that arrived: find what it names and do it. Names are looked up in plain tables.
function exports.dispatch(construct, number, name, caller, ...)
  if number ~= 0 then
    local record = object_records[number]
    if not record then fail("NOT_FOUND", "reference %d was released", number) end
    local fn = record.methods[name] and rawget(record.class, name)
    if not fn then refuse(name) end
    if record.from then check_caller(record.from, caller, name) end
    return fn(objects[number], ...)
  end
  if construct then
    local record = classes[name]
    if not record then refuse(name) end
    if record.from then check_caller(record.from, caller, name) end
    return exports.rref(record.class(...))
  end
  local entry = functions[name]
  if entry then
    if entry.from then check_caller(entry.from, caller, name) end
    return entry.fn(...)
  end
  local fn = builtin[name]
  if fn then return fn(caller, ...) end
  refuse(name)
end

return exports
