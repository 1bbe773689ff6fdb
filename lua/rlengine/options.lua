--- Options tables of functions that are written in Lua: unknown keys and wrong types raise.

local core = require "rlengine.core"

local options = {}

--- Raise an error object: `options.fail("INVALID_ARGUMENT", "size %d ...", n)`.
function options.fail(code, message, ...)
  if select("#", ...) > 0 then message = message:format(...) end
  error(core.error.new{ code = code, message = message })
end

--- The word of `list` that is nearest to `word`, as ' did you mean "..."?', or "".
function options.hint(word, list)
  local near = core.error.nearest(tostring(word), list)
  return near and ('; did you mean "%s"?'):format(near) or ""
end

--- Check `given` against `known`, a table of key = type name ("number", "string|table", "any").
-- Returns `given`, or an empty table for nil. `what` names the function in messages.
function options.check(what, given, known)
  if given == nil then return {} end
  if type(given) ~= "table" then
    options.fail("INVALID_ARGUMENT", "%s: expected a table of options, got %s", what, type(given))
  end
  for key, value in pairs(given) do
    local types = known[key]
    if not types then
      local names = {}
      for name in pairs(known) do names[#names + 1] = name end
      table.sort(names)
      options.fail("INVALID_ARGUMENT", '%s: unknown option "%s"%s', what, tostring(key),
        options.hint(key, names))
    end
    if types ~= "any" and not ("|" .. types .. "|"):find("|" .. type(value) .. "|", 1, true) then
      options.fail("INVALID_ARGUMENT", '%s: option "%s" must be a %s, got %s', what, key,
        (types:gsub("|", " or a ")), type(value))
    end
  end
  return given
end

--- A whole number not below `least`, or `fallback` for nil.
function options.whole(what, key, value, least, fallback)
  if value == nil then return fallback end
  if value % 1 ~= 0 or value < least then
    options.fail("INVALID_ARGUMENT", "%s: %s must be a whole number from %d, got %.14g", what,
      key, least, value)
  end
  return value
end

return options
