--- prompt.lua: what the interactive prompt does with a line.
-- The C side (repl.c, edit.c) brings lines in and asks for completions; here they are
-- compiled, run, and their results shown. Nothing here is part of the public module.

local prompt = {}

-- The prompt is part of the program, whose Lua is LuaJIT; scripts may redefine globals.
local load, unpack, xpcall = load, unpack, xpcall
local jit_off = jit and jit.off or function() end

-- ---- showing values ----

local WIDTH = 78 -- a table that fits is shown on one line
local ENTRIES = 200 -- entries of a table shown at most

local keywords = {}
for word in ([[and break do else elseif end false for function goto if in local nil not or
               repeat return then true until while]]):gmatch "%a+" do
  keywords[word] = true
end

local function is_name(key)
  return type(key) == "string" and key:match "^[%a_][%w_]*$" and not keywords[key]
end

local escapes = { ["\n"] = "\\n", ["\t"] = "\\t", ["\r"] = "\\r", ['"'] = '\\"', ["\\"] = "\\\\" }

local function quote(text)
  local short = text
  if #text > 2000 then short = text:sub(1, 2000) end
  short = short:gsub('[%c"\\\127]', function(c)
    return escapes[c] or ("\\%03d"):format(c:byte())
  end)
  if #text > 2000 then return ('"%s"… (%d bytes)'):format(short, #text) end
  return '"' .. short .. '"'
end

local function has_tostring(value)
  local meta = debug.getmetatable(value)
  return type(meta) == "table" and rawget(meta, "__tostring") ~= nil
end

--- A value inside a table: short, tables not opened.
local function show_inner(value)
  if type(value) == "string" then return quote(value) end
  if type(value) == "table" and not has_tostring(value) then
    return next(value) == nil and "{}" or "{…}"
  end
  return (tostring(value):gsub("\n", "\n  "))
end

local rank = { number = 1, string = 2 } -- other kinds of keys come last

local function sorted_keys(t)
  local keys = {}
  for key in next, t do keys[#keys + 1] = key end
  table.sort(keys, function(a, b)
    local ta, tb = type(a), type(b)
    if ta ~= tb then return (rank[ta] or 3) < (rank[tb] or 3) end
    if rank[ta] then return a < b end
    return tostring(a) < tostring(b)
  end)
  return keys
end

-- A list of tables, such as rpc.workers() and rpc.refs() return: each entry is opened.
local function is_rows(t)
  if #t == 0 then return false end
  for key, row in next, t do
    if type(key) ~= "number" or type(row) ~= "table" or has_tostring(row) or row == t then
      return false
    end
  end
  return true
end

local function show_table(t, inside)
  local parts, length, multiline = {}, 2, false
  local rows = not inside and is_rows(t)
  local keys = sorted_keys(t)
  for i, key in ipairs(keys) do
    if i > ENTRIES then
      parts[i] = ("… (%d more)"):format(#keys - ENTRIES)
      break
    end
    local value = rawget(t, key)
    local part = rows and show_table(value, true):gsub("\n", "\n  ") or show_inner(value)
    if key ~= i then
      part = (is_name(key) and key or "[" .. show_inner(key) .. "]") .. " = " .. part
    end
    parts[i] = part
    length = length + #part + 2
    multiline = multiline or part:find("\n", 1, true)
  end
  if length <= WIDTH and not multiline then return "{" .. table.concat(parts, ", ") .. "}" end

  -- Entries without a name flow, as many on a line as fit; named ones get a line each.
  local lines, line = {}, nil
  for i, part in ipairs(parts) do
    local flows = keys[i] == i and not part:find("\n", 1, true)
    if flows and line and #line + #part + 2 <= WIDTH then
      line = line .. ", " .. part
    else
      if line then lines[#lines + 1] = line .. "," end
      line = "  " .. part
    end
    if not flows then
      lines[#lines + 1] = line .. ","
      line = nil
    end
  end
  if line then lines[#lines + 1] = line end
  return "{\n" .. table.concat(lines, "\n") .. "\n}"
end

--- What the prompt prints for a value.
function prompt.show(value)
  if type(value) == "string" then return quote(value) end
  if type(value) == "table" and not has_tostring(value) then return show_table(value, false) end
  return tostring(value)
end

local function show_results(n, values)
  _G._ = values[1]
  local texts, separator = {}, "\t"
  for i = 1, n do
    texts[i] = prompt.show(values[i])
    if texts[i]:find("\n", 1, true) then separator = "\n" end
  end
  io.stdout:write(table.concat(texts, separator), "\n")
end

-- ---- running lines ----

local pending -- the lines of an unfinished chunk, or nil

local function unfinished(message)
  return message:find "near '?<eof>'?$" ~= nil
end

--- The function, and how many leading values it returns that are not results; or nil, and
-- the message: nil when the text may go on in the next line.
local function compile(text)
  local expression = text:match "^%s*=(.*)$" or text
  -- The leading value keeps a call from being a tail call, which has no line in errors.
  local chunk, not_expression = load("return nil, " .. expression, "=stdin", "t")
  if chunk then return chunk, 1 end
  local not_statement
  chunk, not_statement = load(text, "=stdin", "t")
  if chunk then return chunk, 0 end
  if unfinished(not_expression) or unfinished(not_statement) then return nil, nil end
  return nil, expression == text and not_statement or not_expression
end

local function pack(...)
  return { n = select("#", ...), ... }
end

local function run(handler, fn, ...)
  local results = pack(xpcall(fn, handler, ...))
  if results[1] then return results end
  if results[2] ~= nil then
    io.stdout:flush()
    io.stderr:write(tostring(results[2]), "\n")
  end
  return nil
end

--- Take one line; run what is complete. Returns true when more lines are needed.
-- @param line the text without its newline
-- @param handler message handler: error value -> text to print
function prompt.feed(line, handler)
  local text = pending and pending .. "\n" .. line or line
  pending = nil
  if not text:find "%S" then return false end
  local chunk, extra = compile(text)
  if not chunk then
    if not extra then
      pending = text
      return true
    end
    io.stderr:write(extra, "\n")
    return false
  end
  -- Compiled loops do not notice Ctrl-C, so what is typed here stays interpreted.
  jit_off(chunk, true)
  local results = run(handler, chunk)
  -- xpcall's true comes first. Showing is protected too: a __tostring may fail, or take long.
  local n = results and results.n - 1 - extra or 0
  if n > 0 then run(handler, show_results, n, { unpack(results, 2 + extra, results.n) }) end
  return false
end

--- Ctrl-C: forget an unfinished chunk.
function prompt.cancel()
  pending = nil
  return false
end

--- Before the first line: the engine as a global, and one line that says so.
function prompt.start()
  if rawget(_G, "rl") == nil then
    local ok, rl = pcall(require, "rlengine")
    if ok then
      rawset(_G, "rl", rl)
    else
      io.stderr:write("rlengine could not be loaded: ", tostring(rl), "\n")
    end
  end
  io.stdout:write("`rl` is the engine (in scripts: local rl = require \"rlengine\"); ",
    "_ is the last result;\nTab completes, Ctrl-C interrupts, Ctrl-D leaves.\n")
end

-- ---- completion ----

local function field(object, name) return object[name] end

local function is_callable(value)
  if type(value) == "function" then return true end
  local meta = debug.getmetatable(value)
  return type(meta) == "table" and rawget(meta, "__call") ~= nil
end

--- Names that may follow `object`: its keys, those its __index tables have, and what it says
-- of itself where __index is a function: `__names` in its metatable is a list, or a function
-- of the object that returns one; or `methods` there is a table.
local function collect(names, object, methods_only)
  local whole = object
  local function add(name)
    if not is_name(name) then return end
    if methods_only then
      local ok, value = pcall(field, whole, name)
      if not ok or not is_callable(value) then return end
    end
    names[name] = true
  end
  local function add_keys(t)
    for key in next, t do add(key) end
  end
  local seen = {}
  while object ~= nil and not seen[object] do
    seen[object] = true
    if type(object) == "table" then add_keys(object) end
    local meta = debug.getmetatable(object)
    if type(meta) ~= "table" then return end
    local listed = rawget(meta, "__names")
    if type(listed) == "function" then listed = listed(object) end
    for _, name in ipairs(type(listed) == "table" and listed or {}) do add(name) end
    object = rawget(meta, "__index")
    if type(object) ~= "table" then
      if type(rawget(meta, "methods")) == "table" then add_keys(meta.methods) end
      return
    end
  end
end

local function common_prefix(list)
  local first, last = list[1], list[#list]
  local n = 0
  while n < #first and first:byte(n + 1) == last:byte(n + 1) do n = n + 1 end
  return first:sub(1, n)
end

local function columns_text(list, width)
  local widest = 0
  for _, name in ipairs(list) do widest = math.max(widest, #name) end
  local across = math.max(1, math.floor(width / (widest + 2)))
  local down = math.ceil(#list / across)
  local lines = {}
  for row = 1, down do
    local cells = {}
    for column = 0, across - 1 do
      local name = list[row + column * down]
      if name then cells[#cells + 1] = name .. (" "):rep(widest + 2 - #name) end
    end
    lines[row] = table.concat(cells):gsub("%s+$", "")
  end
  return table.concat(lines, "\n")
end

--- Names that can follow `text`: the word being typed, and a sorted list of completions.
function prompt.candidates(text)
  local path = text:match "[%a_][%w_%.:]*$" or ""
  local before = text:sub(1, #text - #path):match "(.?)$"
  if before == "." or before == ":" or before:match "%d" then return "", {} end
  local parent, separator, word = path:match "^(.*)([%.:])([%w_]*)$"
  local names = {}
  if parent then
    local object = _G
    for name in parent:gmatch "[^%.:]+" do
      if object == nil then return word, {} end
      object = object[name]
    end
    if object == nil then return word, {} end
    collect(names, object, separator == ":")
  else
    word = path
    collect(names, _G, false)
    for name in pairs(keywords) do names[name] = true end
  end
  local list = {}
  for name in pairs(names) do
    local hidden = name:sub(1, 1) == "_" and word:sub(1, 1) ~= "_"
    if name:sub(1, #word) == word and not hidden then list[#list + 1] = name end
  end
  table.sort(list)
  return word, list
end

--- Answer Tab: the text to insert at the cursor, and what to list when that is "".
function prompt.complete(text, width)
  if not text:find "%S" then return "  ", nil end -- indentation
  local word, list = prompt.candidates(text)
  if #list == 0 then return "", nil end
  local insert = common_prefix(list):sub(#word + 1)
  if insert == "" and #list > 1 then return "", columns_text(list, width) end
  return insert, nil
end

return prompt
