--- Workers that come and go, and the functions of a script that want to know. Part of
-- `rlengine.rpc`.

local core = require "rlengine.core"
local options = require "rlengine.options"
local futures = require "rlengine.rpc.futures"

local c = core.rpc

local members = {}

local there = {} -- name -> incarnation, of the workers whose coming was told
local told = { on_join = {}, on_leave = {} } -- functions, in the order in which they were given

-- Body of a coroutine.
local function run(what, fn, ...)
  local ok, err = pcall(fn, ...)
  if ok or not c.active() then return end
  local trace = core.error.is(err) and err.traceback or ""
  io.stderr:write(("rlengine: error in a function given to rpc.%s: %s\n%s"):format(what,
    tostring(err), trace ~= "" and trace .. "\n" or ""))
end

local function tell(what, ...)
  for _, fn in ipairs(told[what]) do futures.spawn(run, what, fn, ...) end
end

--- A worker came, went, or both, one life after the other.
function members.changed(name, left, goodbye, joined)
  there[name] = joined
  if left then tell("on_leave", name, left, goodbye) end
  if joined then tell("on_join", name, joined) end
end

--- This worker has stopped: nobody is there.
function members.clear() there = {} end

-- The list is replaced, not changed: somebody may be walking it.
local function add(what, fn)
  if type(fn) ~= "function" then
    options.fail("INVALID_ARGUMENT", "rpc.%s wants a function, got %s", what, type(fn))
  end
  local function without()
    local rest = {}
    for _, each in ipairs(told[what]) do
      if each ~= fn then rest[#rest + 1] = each end
    end
    return rest
  end
  local with = without()
  with[#with + 1] = fn
  told[what] = with
  return function() told[what] = without() end
end

--- rpc.on_join; see rpc.lua.
function members.on_join(fn)
  local stop = add("on_join", fn)
  local names = {}
  for name in pairs(there) do names[#names + 1] = name end
  table.sort(names)
  for _, name in ipairs(names) do futures.spawn(run, "on_join", fn, name, there[name]) end
  return stop
end

--- rpc.on_leave; see rpc.lua.
function members.on_leave(fn) return add("on_leave", fn) end

return members
