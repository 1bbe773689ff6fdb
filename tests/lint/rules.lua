--- rules.lua: what lint.lua checks. Each rule has a name, check(sources) -> problems, and
-- examples: `breaks` must give exactly one problem each, `keeps` none.

local rules = {}

local function rule(r) rules[#rules + 1] = r end

local function is_c(path)
  return path:match "%.[ch]$" or path:match "%.cc$" or path:match "%.cuh?$"
end

--- C text with comments and strings blanked out, lines kept.
local function without_comments(text)
  local function blank(s) return (s:gsub("[^\n]", " ")) end
  local out, at = {}, 1
  while at <= #text do
    local first = text:find("[/\"']", at)
    if not first then break end
    out[#out + 1] = text:sub(at, first - 1)
    local two, stop = text:sub(first, first + 1), nil
    if two == "/*" then
      stop = select(2, text:find("*/", first + 2, true))
    elseif two == "//" then
      stop = (text:find("\n", first, true) or #text + 1) - 1
    elseif two:sub(1, 1) ~= "/" then
      local quote = two:sub(1, 1)
      stop = first + 1
      while stop <= #text and text:sub(stop, stop) ~= quote do
        stop = stop + (text:sub(stop, stop) == "\\" and 2 or 1)
      end
    end
    stop = stop or (two:sub(1, 1) == "/" and two ~= "/*" and first or #text)
    out[#out + 1] = stop == first and text:sub(first, first) or blank(text:sub(first, stop))
    at = stop + 1
  end
  out[#out + 1] = text:sub(at)
  return table.concat(out)
end

local function each_line(text, fn)
  local number = 0
  for line in (text .. "\n"):gmatch "(.-)\n" do
    number = number + 1
    fn(line, number)
  end
end

-- ---- layers ----

-- What a layer may include beside itself; see engine/README.md.
local layers = {
  base = {},
  device = { "base" },
  tensor = { "base", "device" },
  autograd = { "base", "device", "tensor" },
  nn = { "base", "device", "tensor", "autograd" },
  optim = { "base", "device", "tensor", "autograd", "nn" },
  env = { "base" },
  rollout = { "base", "device", "tensor" },
  rpc = { "base" },
  comm = { "base", "device", "tensor", "rpc" },
  io = { "base", "tensor" },
}
local everything = {}
for layer in pairs(layers) do everything[#everything + 1] = layer end
layers.lua = everything
layers.cli = { "lua", unpack(everything) }

local may = {}
for layer, list in pairs(layers) do
  may[layer] = { [layer] = true, common = true }
  for _, other in ipairs(list) do may[layer][other] = true end
end

-- Headers of libraries, and the only folders that may see them.
local libraries = {
  { "^lua%.h$", "lua", "cli" }, { "^lauxlib%.h$", "lua", "cli" }, { "^lualib%.h$", "lua", "cli" },
  { "^luajit%.h$", "lua", "cli" }, { "^event2?[/.]", "rpc" }, { "^histedit%.h$", "cli" },
  { "^editline/", "cli" }, { "^cuda", "device/cuda", "kernels" },
  { "^cublas", "device/cuda", "kernels" },
}

local function folder_allowed(path, entry)
  for i = 2, #entry do
    local folder = entry[i]
    if path:find("^engine/" .. folder .. "/") or path:find("^" .. folder .. "/") then
      return true
    end
  end
  return false
end

rule {
  name = "includes follow the layers",
  check = function(sources)
    local problems = {}
    for _, s in ipairs(sources) do
      local layer = s.path:match "^engine/([^/]+)/.*%.[ch]$"
      for number, line in ipairs(is_c(s.path) and layer and s.lines or {}) do
        local target = line:match '^%s*#%s*include%s*"([^/"]+)/'
        local allowed = may[layer]
        -- The codec of remote calls reads and writes tensors.
        if target == "tensor" and s.path:match "^engine/rpc/codec" then allowed = nil end
        if not may[layer] then
          problems[#problems + 1] = ("%s: no layer is called %s"):format(s.path, layer)
          break
        elseif target and allowed and not allowed[target] then
          problems[#problems + 1] = ("%s:%d: layer %s may not include %s")
            :format(s.path, number, layer, target)
        end
      end
    end
    return problems
  end,
  breaks = {
    { "engine/base/a.c", '#include "tensor/tensor.h"\n' },
    { "engine/env/a.h", '#include "base/mem.h"\n#include "device/device.h"\n' },
    { "engine/rpc/server.c", '#  include "tensor/tensor.h"\n' },
    { "engine/nn/a.c", '#include "optim/optim.h"\n' },
    { "engine/tensor/a.c", '#include "lua/lua_internal.h"\n' },
    { "engine/new/a.c", "int x;\n" },
  },
  keeps = {
    { "engine/optim/a.c", '#include "nn/nn.h"\n#include "base/mem.h"\n#include <math.h>\n' },
    { "engine/rpc/codec.c", '#include "tensor/tensor.h"\n' },
    { "engine/device/cpu/a.c", '#include "device/device.h"\n#include "common/philox.h"\n' },
    { "engine/cli/main.c", '#include "lua/lua_module.h"\n' },
    { "tests/c/test_x.c", '#include "rpc/rpc.h"\n' },
  },
}

rule {
  name = "libraries are seen by their one layer only",
  check = function(sources)
    local problems = {}
    for _, s in ipairs(sources) do
      local ours = s.path:match "^engine/" or s.path:match "^kernels/"
      for number, line in ipairs(is_c(s.path) and ours and s.lines or {}) do
        local header = line:match '^%s*#%s*include%s*[<"]([^>"]+)[>"]'
        for _, entry in ipairs(header and libraries or {}) do
          if header:find(entry[1]) and not folder_allowed(s.path, entry) then
            problems[#problems + 1] = ("%s:%d: <%s> is for %s only"):format(s.path, number, header,
              table.concat(entry, ", ", 2))
          end
        end
      end
    end
    return problems
  end,
  breaks = {
    { "engine/tensor/a.c", "#include <lua.h>\n" },
    { "engine/lua/lua_rpc.c", "#include <event2/event.h>\n" },
    { "engine/device/device.c", "#include <cuda_runtime.h>\n" },
    { "engine/lua/a.c", "#include <histedit.h>\n" },
  },
  keeps = {
    { "engine/lua/a.c", "#include <lauxlib.h>\n" },
    { "engine/rpc/loop.c", "#include <event2/event.h>\n" },
    { "engine/device/cuda/a.c", "#include <cublas_v2.h>\n" },
    { "engine/cli/edit.c", "#include <histedit.h>\n" },
  },
}

rule {
  name = "internal headers stay in their folder",
  check = function(sources)
    local problems = {}
    for _, s in ipairs(sources) do
      local layer = s.path:match "^engine/([^/]+)/"
      for number, line in ipairs(is_c(s.path) and layer and s.lines or {}) do
        local target, file = line:match '^%s*#%s*include%s*"([^/"]+)/([^"]*_internal%.h)"'
        if target and target ~= layer then
          problems[#problems + 1] = ("%s:%d: %s/%s is internal")
            :format(s.path, number, target, file)
        end
      end
    end
    return problems
  end,
  breaks = {
    { "engine/lua/a.c", '#include "rpc/rpc_internal.h"\n' },
    { "engine/tensor/a.c", '#include "device/cpu/cpu_internal.h"\n' },
  },
  keeps = {
    { "engine/rpc/a.c", '#include "rpc/rpc_internal.h"\n' },
    { "engine/device/a.c", '#include "device/cpu/cpu_internal.h"\n' },
    { "tests/c/test_a.c", '#include "rpc/rpc_internal.h"\n' },
  },
}

-- ---- size and form ----

rule {
  name = "files stay under 600 lines",
  check = function(sources)
    local problems = {}
    for _, s in ipairs(sources) do
      local code = is_c(s.path) or s.path:match "%.lua$" or s.path:match "%.sh$"
      if (code or s.path:match "%.py$") and #s.lines > 600 then
        problems[#problems + 1] = ("%s: %d lines"):format(s.path, #s.lines)
      end
    end
    return problems
  end,
  breaks = {
    { "engine/base/a.c", ("int x;\n"):rep(601) }, { "lua/rlengine/a.lua", ("\n"):rep(601) },
  },
  keeps = {
    { "engine/base/a.c", ("int x;\n"):rep(600) }, { "tests/golden/t.txt", ("1\n"):rep(700) },
  },
}

local function columns(line) return select(2, line:gsub("[^\128-\191]", "")) end

rule {
  name = "lines of C stay within 100 columns, without tabs or blanks at their end",
  check = function(sources)
    local problems = {}
    for _, s in ipairs(sources) do
      for number, line in ipairs(is_c(s.path) and s.lines or {}) do
        if columns(line) > 100 then
          problems[#problems + 1] = ("%s:%d: %d columns"):format(s.path, number, columns(line))
        elseif line:find "[ \t\r]$" or line:find("\t", 1, true) then
          problems[#problems + 1] = ("%s:%d: tab or blank at the end"):format(s.path, number)
        end
      end
    end
    return problems
  end,
  breaks = {
    { "engine/base/a.c", "/*" .. ("x"):rep(97) .. "*/\n" }, { "engine/base/a.h", "int x; \n" },
    { "kernels/a.cu", "\tint x;\n" },
  },
  keeps = { { "engine/base/a.c", "/* " .. ("é"):rep(90) .. " */\n" } },
}

rule {
  name = "a file begins with what it is for",
  check = function(sources)
    local problems = {}
    for _, s in ipairs(sources) do
      local text = s.text:gsub("^#![^\n]*\n", "")
      local good = true
      if is_c(s.path) then
        good = text:find "^/%*[%s%*]*%S"
      elseif s.path:match "%.lua$" then
        good = text:find "^%-%-%-? ?%S" or text:find "^%-%-%[%["
      elseif s.path:match "%.cmake$" or s.path:match "%.sh$" then
        good = text:find "^#%s*%S"
      elseif s.path:match "%.py$" then
        good = text:find '^"""' or text:find "^#%s*%S"
      end
      if not good then problems[#problems + 1] = s.path .. ": no comment at the top" end
    end
    return problems
  end,
  breaks = {
    { "engine/base/a.c", "#include <a.h>\n" }, { "lua/rlengine/a.lua", "local m = {}\n" },
    { "scripts/a.sh", "#!/bin/sh\necho\n" }, { "tests/a.py", "import os\n" },
  },
  keeps = {
    { "engine/base/a.c", "/* a.c - does a. */\n" },
    { "lua/rlengine/a.lua", "--- a.lua: does a.\n" },
    { "scripts/a.sh", "#!/bin/sh\n# Does a.\n" },
    { "tests/a.py", '#!/usr/bin/env python3\n"""A."""\n' },
  },
}

-- Lines of a header that declare a function at file level: { line number, name }.
local function declarations(s)
  local found, depth, code = {}, 0, without_comments(s.text)
  local statement, start, macro = "", nil, false
  each_line(code, function(line, number)
    macro = macro or line:match "^%s*#" ~= nil -- and the lines it goes on in
    if macro then
      macro = line:match "\\$" ~= nil
      return
    end
    if depth == 0 and not start and line:match "%S" then statement, start = "", number end
    statement = statement .. line .. "\n"
    for c in line:gmatch "[{};]" do
      if c == "{" then depth = depth + 1 elseif c == "}" then depth = depth - 1 end
    end
    if depth == 0 and (line:match ";%s*$" or line:match "}%s*$") then
      local name = statement:match "^[%w_%s%*]-([%w_]+)%s*%("
      local inline = statement:match "^%s*static"
      if start and name and not inline and not statement:match "^%s*typedef" then
        found[#found + 1] = { start, name }
      end
      start = nil
    end
  end)
  return found
end

rule {
  name = "every public function in a header is documented",
  check = function(sources)
    local problems = {}
    for _, s in ipairs(sources) do
      local public = s.path:match "^engine/.*%.h$" and not s.path:match "_internal%.h$"
        and not s.path:match "/isa/"
      for _, d in ipairs(public and declarations(s) or {}) do
        -- Documented: a comment in the paragraph it belongs to (a comment may cover several
        -- functions that follow each other without an empty line).
        local first, last = d[1], d[1]
        while first > 1 and s.lines[first - 1]:match "%S" do first = first - 1 end
        while last < #s.lines and s.lines[last + 1]:match "%S" do last = last + 1 end
        local paragraph = table.concat(s.lines, "\n", first, last)
        if not paragraph:find("/*", 1, true) and not paragraph:find("*/", 1, true) then
          problems[#problems + 1] = ("%s:%d: nothing says what %s does"):format(s.path, d[1], d[2])
        end
      end
    end
    return problems
  end,
  breaks = {
    { "engine/base/a.h", "/* a.h */\n\nint rle_a(void);\n" },
    { "engine/base/a.h",
      "/* a.h */\n\n/* Good. */\nint rle_a(void);\n\nrle_status rle_b(int a,\n    int b);\n" },
  },
  keeps = {
    { "engine/base/a.h", "/* a.h */\n\n/* Does a; b: b. */\nint rle_a(void);\nint rle_b(void);\n" },
    { "engine/base/a.h", "/* a.h */\n\nint rle_a(void); /* does a */\n" },
    { "engine/base/a_internal.h", "/* a */\n\nint rle_a(void);\n" },
    { "engine/base/a.h", "/* a.h */\n\ntypedef struct a {\n    int (*now)(void *);\n} a;\n" },
    { "engine/base/a.h", "/* a.h */\n\n#define EACH(m) \\\n    if (m) \\\n    f(m)\n\nint x;\n" },
    { "engine/base/a.h", "/* a.h */\n\nstatic inline int rle_c(void)\n{\n    return 1;\n}\n" },
  },
}

-- ---- what is not there ----

-- Spelt in two halves, or this file would break its own rule.
local left_open = {
  "%f[%w]TO" .. "DO%f[%W]", "%f[%w]FIX" .. "ME%f[%W]", "%f[%w]XX" .. "X%f[%W]",
  "%f[%w]HA" .. "CK%f[%W]", "not " .. "implemented", "not yet " .. "implemented",
  "place" .. "holder",
}

rule {
  name = "nothing is left open",
  check = function(sources)
    local problems = {}
    for _, s in ipairs(sources) do
      for number, line in ipairs(s.lines) do
        for _, pattern in ipairs(left_open) do
          if line:find(pattern) then
            problems[#problems + 1] = ("%s:%d: %s"):format(s.path, number, line:match "%S.*")
            break
          end
        end
      end
    end
    return problems
  end,
  breaks = {
    { "engine/base/a.c", "/* TO" .. "DO: b */\n" }, { "scripts/a.lua", "-- FIX" .. "ME\n" },
  },
  keeps = { { "engine/base/a.c", "/* toDOs */\n" } },
}

-- Calls that belong to few folders: pattern, where it is fine, what to use instead.
local calls = {
  { "exit", { "^engine/cli/" }, "return a status" },
  { "abort", {}, "return a status" },
  { "printf", { "^engine/cli/", "^engine/base/log%.c$" }, "rle_log" },
  { "fprintf", { "^engine/cli/", "^engine/base/log%.c$" }, "rle_log" },
  { "puts", { "^engine/cli/" }, "rle_log" },
  { "perror", {}, "rle_fail" },
  -- mem.c counts; status.c keeps the message that says that mem.c has none left.
  { "malloc", { "^engine/base/mem%.c$", "^engine/base/status%.c$" }, "rle_malloc" },
  { "calloc", { "^engine/base/mem%.c$" }, "rle_calloc" },
  { "realloc", { "^engine/base/mem%.c$" }, "rle_realloc" },
  { "strdup", { "^engine/base/mem%.c$" }, "rle_strdup" },
  { "strcpy", {}, "snprintf" }, { "strcat", {}, "snprintf" }, { "sprintf", {}, "snprintf" },
  { "gets", {}, "fgets" }, { "rand", {}, "an rle_rng" },
  -- A simulation has its own (base/world.h).
  { "getrandom", { "^engine/base/world%.c$" }, "rle_entropy" },
}

rule {
  name = "calls that only a few folders may make",
  check = function(sources)
    local problems = {}
    for _, s in ipairs(sources) do
      if s.path:match "^engine/.*%.[ch]$" then
        each_line(without_comments(s.text), function(line, number)
          for _, call in ipairs(calls) do
            local fine = false
            for _, folder in ipairs(call[2]) do fine = fine or s.path:find(folder) end
            if not fine and line:find("%f[%w_>.]" .. call[1] .. "%s*%(") then
              problems[#problems + 1] = ("%s:%d: %s(): %s"):format(s.path, number, call[1], call[3])
            end
          end
        end)
      end
    end
    return problems
  end,
  breaks = {
    { "engine/base/a.c", "    exit(1);\n" }, { "engine/rpc/a.c", "x = malloc (5);\n" },
    { "engine/nn/a.c", "    fprintf(stderr, s);\n" },
  },
  keeps = {
    { "engine/base/a.c", "    _exit(1); rle_malloc(5); snprintf(b, 1, s); p->exit(1);\n" },
    { "engine/base/a.c", '    const char *s = "printf("; /* exit(1) */\n' },
    { "engine/cli/a.c", "printf(s);\n" },
  },
}

-- Variables of a whole process, although a simulation runs several processes in one: what is the
-- same for all, or means nothing between two turns.
local shared = {
  recents = true, own_prefix = true, hook_ran = true, rle_sim_world = true, found = true,
  found_count = true, table = true, table_once = true, starter = true, padding = true,
}

rule {
  name = "state of a process in engine/lua and engine/rpc is marked RLE_PER_PROCESS",
  check = function(sources)
    local problems = {}
    for _, s in ipairs(sources) do
      if s.path:match "^engine/lua/.*%.c$" or s.path:match "^engine/rpc/.*%.c$" then
        each_line(without_comments(s.text), function(line, number)
          local head = line:match "^([%w_][%w_ *]+)%s*[;=%[]"
          if not head or head:find "^typedef" or head:find "%f[%w_]const%f[^%w_]"
            or head:find "^extern" or head:find "_Thread_local" or head:find "RLE_PER_PROCESS"
            or head:find "^struct [%w_]+%s*$" or not head:find "[%w_]+[ *]+[%w_]+%s*$" then
            return
          end
          local name = head:match "([%w_]+)%s*$"
          if not shared[name] then
            problems[#problems + 1] = ("%s:%d: %s"):format(s.path, number, name)
          end
        end)
      end
    end
    return problems
  end,
  breaks = {
    { "engine/lua/a.c", "static int called;\n" }, { "engine/rpc/a.c", "rle_rpc *all = NULL;\n" },
    { "engine/lua/a.c", "static char name[64];\n" },
  },
  keeps = {
    { "engine/lua/a.c", "static RLE_PER_PROCESS int called;\nstatic const int a[] = {1};\n" },
    { "engine/rpc/a.c", "struct a;\nstatic int f(void);\nstatic const struct b c = {0};\n" },
    { "engine/base/a.c", "static int called;\n" },
  },
}

-- What is said in docs/faults.md to be read, as the pieces between what differs: names in quotes,
-- numbers, places. "" when nothing is left.
local function fixed_pieces(text)
  text = text:gsub("^[A-Z_]+: ", ""):gsub('"[^"]*"', "\n"):gsub("%S*%.lua%S*", "\n")
    :gsub("%S*/%S*", "\n"):gsub("%S*%d%S*", "\n"):gsub("%.%.%.", "\n")
    :gsub("%f[%w][KMG]iB", "\n")
  local pieces = {}
  for piece in text:gmatch "[^\n]+" do
    piece = piece:match "^[%s:;,()]*(.-)[%s:;,()]*$"
    if piece:find "%a%a%a" then pieces[#pieces + 1] = piece end
  end
  return pieces
end

-- The text of a test with its strings as they will be: joined, and without what a pattern needs.
local function as_said(text)
  return (text:gsub("[\"']%s*%.%.%s*[\"']", ""):gsub('"%s*\n%s*"', ""):gsub('\\"', '"')
    :gsub("%%+(%p)", "%1"))
end

rule {
  name = "what docs/faults.md says is read, a test looks for in these words",
  check = function(sources)
    local problems, said = {}, {}
    for _, s in ipairs(sources) do
      if s.path:match "^tests/" and not s.path:match "^tests/lint/" then
        said[#said + 1] = as_said(s.text)
      end
    end
    local function looked_for(pieces)
      for _, text in ipairs(said) do
        local all = true
        for _, piece in ipairs(pieces) do all = all and text:find(piece, 1, true) end
        if all then return true end
      end
      return #pieces == 0
    end
    for _, s in ipairs(sources) do
      if s.path == "docs/faults.md" then
        each_line(s.text, function(line, number)
          local read = line:match "^| %u%d%d | .- | (.-) | "
          for text in (read or ""):gmatch "`([^`]+)`" do
            if not looked_for(fixed_pieces(text)) then
              problems[#problems + 1] = ("%s:%d: %s"):format(s.path, number, text)
            end
          end
        end)
      end
    end
    return problems
  end,
  breaks = {
    { "docs/faults.md", '| F02 | killed | `UNAVAILABLE: worker "a" went away` | 1 s | - |\n' },
    { "docs/faults.md", '| F12 | slow | `a: x`<br>*log:* `"a" lost: 8 MiB waited; ...` | - |\n' },
  },
  keeps = {
    { "docs/faults.md", '| F13 | slow | nothing | `f` is called 5 times | - |\n' },
    { "docs/faults.md", 'Somewhere else: `worker "a" went away`\n' },
  },
}

return rules
