--- A script's arguments: `local args = rl.args{ episodes = {500, "episodes to run"} }`.
--
-- Each entry is {default, help} and may name more: `type` ("string", "number", "integer",
-- "boolean"; without it the default's own, where a whole number means integer), `choices`
-- (a list), and no default at all ({help = "...", type = "string"}: nil unless given). A
-- plain value is an entry without help.
--
-- Understood: --key=value, --key value, --flag, --no-flag, `--` before words that are no
-- options, -h and --help. Underscores and dashes in names mean the same. What is no option
-- goes, in order, to the positions 1, 2, ... of the result.
--
-- The script's own words may end the program: --help with exit code 0, a wrong word with a
-- line on standard error and exit code 2. With a second argument that list of words is
-- parsed instead; what is wrong in it raises INVALID_ARGUMENT, and --help returns nil and
-- the text.

local core = require "rlengine.core"
local options = require "rlengine.options"

local types = { string = true, number = true, integer = true, boolean = true }

local function is_integer(n) return n == math.floor(n) and math.abs(n) < 2 ^ 53 end

local function type_of(key, entry)
  local default = entry[1]
  if entry.type then
    if not types[entry.type] then
      options.fail("INVALID_ARGUMENT",
        'rl.args: type of "%s" must be string, number, integer or boolean, not "%s"', key,
        tostring(entry.type))
    end
    return entry.type
  end
  if type(default) == "number" then return is_integer(default) and "integer" or "number" end
  if types[type(default)] then return type(default) end
  options.fail("INVALID_ARGUMENT", 'rl.args: the default of "%s" is a %s; give a string, '
    .. "number or boolean, or name the type", key, type(default))
end

-- Name -> {name, type, default, help, choices}, and the names in order.
local function read_spec(spec)
  if type(spec) ~= "table" then
    options.fail("INVALID_ARGUMENT", "rl.args: expected a table of arguments, got %s", type(spec))
  end
  local known, names = {}, {}
  for key, entry in pairs(spec) do
    if type(key) ~= "string" or not key:find("^[%a][%w_-]*$") then
      options.fail("INVALID_ARGUMENT", "rl.args: %s is no name for an argument", tostring(key))
    end
    if type(entry) ~= "table" then entry = { entry } end
    local help = entry.help or entry[2]
    known[key:gsub("-", "_")] = {
      key = key, type = type_of(key, entry), default = entry[1],
      help = help and tostring(help) or "", choices = entry.choices,
    }
    names[#names + 1] = key
  end
  table.sort(names)
  return known, names
end

local function shown(name) return "--" .. name:gsub("_", "-") end

local function convert(option, text)
  local value = text
  if option.type == "number" or option.type == "integer" then
    value = tonumber(text)
    if not value or value ~= value then
      return nil, ('%s needs a number, got "%s"'):format(shown(option.key), text)
    end
    if option.type == "integer" then
      if not is_integer(value) then
        return nil, ('%s needs a whole number, got "%s"'):format(shown(option.key), text)
      end
      value = math.floor(value) -- 1e3 is an integer in every Lua
    end
  elseif option.type == "boolean" then
    value = ({ ["true"] = true, yes = true, ["1"] = true,
      ["false"] = false, no = false, ["0"] = false })[text]
    if value == nil then
      return nil, ('%s needs true or false, got "%s"'):format(shown(option.key), text)
    end
  end
  if option.choices then
    local allowed = {}
    for i, choice in ipairs(option.choices) do
      if choice == value then return value end
      allowed[i] = tostring(choice)
    end
    return nil, ('%s must be one of %s, got "%s"'):format(shown(option.key),
      table.concat(allowed, ", "), text)
  end
  return value
end

-- The option that a word such as "no-render" or "learning-rate" names, and what "no-" says.
local function find(known, names, name)
  local key = name:gsub("-", "_")
  if known[key] then return known[key] end
  local positive = key:match("^no_(.*)$")
  if positive and known[positive] and known[positive].type == "boolean" then
    return known[positive], "false"
  end
  local words = { "help" }
  for _, each in ipairs(names) do words[#words + 1] = (each:gsub("_", "-")) end
  local near = core.error.nearest((name:gsub("_", "-")), words)
  return nil, ("unknown option --%s%s"):format(name,
    near and ("; did you mean --%s?"):format(near) or "")
end

-- Returns values, nil; or nil, message; or "help".
local function parse(known, names, words)
  local values, rest = {}, {}
  for key, option in pairs(known) do values[key] = option.default end
  local i, only_rest = 1, false
  while i <= #words do
    local word = words[i]
    local name, value = word:match("^%-%-([^=]+)=(.*)$")
    name = name or word:match("^%-%-(.+)$")
    if only_rest or not (name or word:find("^%-%a")) then
      if word == "--" and not only_rest then only_rest = true else rest[#rest + 1] = word end
    elseif name == "help" or word == "-h" then
      return "help"
    elseif not name then
      return nil, ("unknown option %s; options have two dashes"):format(word)
    else
      local option, said = find(known, names, name)
      if not option then return nil, said end
      if said and value then
        return nil, ("--%s takes no value, got \"%s\""):format(name, value)
      end
      value = value or said or (option.type == "boolean" and "true")
      if not value then
        i = i + 1
        value = words[i]
        if not value or value:find("^%-%-") then
          return nil, ("--%s needs a value (%s)"):format(name, option.type)
        end
      end
      local converted, wrong = convert(option, value)
      if wrong then return nil, wrong end
      values[option.key:gsub("-", "_")] = converted
    end
    i = i + 1
  end
  for n, word in ipairs(rest) do values[n] = word end
  return values
end

local function program_name(script)
  local lowest = 0
  while script[lowest - 1] do lowest = lowest - 1 end
  local program = (script[lowest] or "rlengine"):match("[^/]*$")
  return lowest < 0 and script[0] and program .. " " .. script[0] or program
end

local function usage(known, names, program)
  local left, width = {}, 0
  for i, name in ipairs(names) do
    local option = known[name:gsub("-", "_")]
    local text = shown(name)
    if option.type ~= "boolean" then text = text .. " " .. option.type:upper() end
    if option.type == "boolean" and option.default then text = "--no-" .. text:sub(3) end
    left[i], width = text, math.max(width, #text)
  end
  width = math.max(width, #"--help")
  local lines = { "usage: " .. program .. " [options]", "" }
  for i, name in ipairs(names) do
    local option = known[name:gsub("-", "_")]
    local notes = {}
    if option.choices then
      local words = {}
      for n, choice in ipairs(option.choices) do words[n] = tostring(choice) end
      notes[#notes + 1] = "one of " .. table.concat(words, ", ")
    end
    if option.default ~= nil then notes[#notes + 1] = "default: " .. tostring(option.default) end
    local help = option.help
    if #notes > 0 then
      help = help .. (help ~= "" and " " or "") .. "(" .. table.concat(notes, "; ") .. ")"
    end
    lines[#lines + 1] = ("  %-" .. width .. "s  %s"):format(left[i], help)
  end
  lines[#lines + 1] = ("  %-" .. width .. "s  %s"):format("--help", "show this text and end")
  return table.concat(lines, "\n") .. "\n"
end

-- A misspelt `args.epsiodes` in the script is an error, not nil.
local function strict(known, names)
  return { __index = function(_, key)
    if type(key) ~= "string" or known[key] then return nil end
    options.fail("NOT_FOUND", 'no argument "%s" was declared with rl.args%s', key,
      options.hint(key, names))
  end }
end

return function(spec, words)
  local known, names = read_spec(spec)
  local script = rawget(_G, "arg") or {}
  local values, wrong = parse(known, names, words or script)
  if values == "help" and not words then
    io.stdout:write(usage(known, names, program_name(script)))
    io.stdout:flush()
    os.exit(0)
  elseif values == "help" then
    return nil, usage(known, names, program_name(script))
  elseif wrong and not words then
    io.stderr:write(("%s: %s (--help lists the options)\n"):format(
      script[0] or "rlengine", wrong))
    os.exit(2)
  elseif wrong then
    options.fail("INVALID_ARGUMENT", "%s", wrong)
  end
  local declared = {}
  for i, name in ipairs(names) do declared[i] = (name:gsub("-", "_")) end
  return setmetatable(values, strict(known, declared))
end
