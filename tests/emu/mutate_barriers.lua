--- mutate_barriers.lua - takes away one barrier after another and looks whether a test notices.
--
--   build/rlengine tests/emu/mutate_barriers.lua [--build DIR] [--sample N] [--seed N] [--list]
--     [file ...]
--
-- A barrier is a __syncthreads or __syncwarp of a kernel, or a wait of engine/device/cuda for a
-- stream or an event. Without each of them the plug-in is linked anew, into a folder of its own,
-- and the tests of devices run with it until one fails. One that no test misses is printed with
-- its place, and the exit code is 1. --sample takes a few, chosen by --seed.
--
-- A barrier that cannot be missed on the emulated device has a comment on its line or the line
-- above (or the one before) that says why: "not seen emulated: ...".

package.path = "tests/support/?.lua;tests/emu/?.lua;" .. package.path
local plugin = require "plugin"
local process = require "process"

-- The tests that use a file; for others all of them.
local USERS = {
  ["kernels/fill.cu"] = { "elementwise" },
  ["kernels/elementwise.cu"] = { "elementwise" },
  ["kernels/gemm.cu"] = { "matmul", "policy" },
  ["kernels/index.cu"] = { "index" },
  ["kernels/optim.cu"] = { "optim" },
  ["kernels/policy.cu"] = { "policy" },
  ["kernels/reduce.cu"] = { "reduce" },
  ["kernels/scan.cu"] = { "reduce" },
  ["kernels/share.cu"] = { "share" },
  ["kernels/softmax.cu"] = { "reduce", "share" },
  ["kernels/sort.cu"] = { "reduce" },
  ["engine/device/cuda/ops_index.c"] = { "index" },
  ["engine/device/cuda/scratch.c"] = { "index", "optim", "policy", "reduce" },
  ["engine/device/cuda/staging.c"] = { "stream", "index", "oom" },
  ["engine/device/cuda/stream.c"] = { "stream" },
  ["engine/device/cuda/plugin.c"] = { "stream", "memory", "oom" },
}

local WAITS = {
  "cudaStreamWaitEvent", "cudaEventSynchronize", "cudaStreamSynchronize", "cudaEventRecord",
}

local SECONDS = 300 -- a test that takes longer has noticed something

-- ---- options ----

local options = { build = "build", files = {} }
do
  local i = 1
  while arg[i] do
    local a = arg[i]
    if a == "--list" then
      options.list = true
    elseif a == "--build" or a == "--sample" or a == "--seed" then
      i = i + 1
      options[a:sub(3)] = a == "--build" and arg[i] or assert(tonumber(arg[i]), a)
    else
      options.files[#options.files + 1] = a
    end
    i = i + 1
  end
end

-- ---- barriers ----

--- Text without comments and strings, of the same length.
local function code_of(text)
  local function blank(s) return (s:gsub("[^\n]", " ")) end
  return (text:gsub("/%*.-%*/", blank):gsub('"[^"\n]*"', blank))
end

local function line_at(text, position)
  local _, n = text:sub(1, position - 1):gsub("\n", "")
  return n + 1
end

--- Why a barrier is not seen, from its line or the two above.
local function excuse(lines, line)
  for l = line, line - 2, -1 do
    local why = (lines[l] or ""):match "not seen emulated:%s*(.-)%s*%*/"
    if why then return why end
  end
end

local function barriers_of(path, list)
  local text = process.read(path)
  local code, lines = code_of(text), {}
  for line in (text .. "\n"):gmatch "(.-)\n" do lines[#lines + 1] = line end
  local function add(first, last, instead)
    local line = line_at(text, first)
    list[#list + 1] = {
      path = path, line = line, what = text:sub(first, last), excuse = excuse(lines, line),
      mutant = text:sub(1, first - 1) .. instead .. text:sub(last + 1),
    }
  end
  if path:match "^kernels/" then
    for first, last in code:gmatch "()__sync%a+%b()()" do
      local name = code:match("^__sync(%a+)", first)
      if name == "threads" or name == "warp" then add(first, last - 1, "(void)0") end
    end
  else
    for _, wait in ipairs(WAITS) do
      for first, last in code:gmatch("()" .. wait .. "%b()()") do
        add(first, last - 1, "cudaSuccess")
      end
    end
  end
end

local function all_barriers()
  local list = {}
  local find = process.run { "sh", "-c",
    "ls kernels/*.cu kernels/*.h engine/device/cuda/*.c | LC_ALL=C sort" }
  for path in find.out:gmatch "%S+" do
    local wanted = #options.files == 0
    for _, f in ipairs(options.files) do wanted = wanted or path:find(f, 1, true) end
    if wanted then barriers_of(path, list) end
  end
  return list
end

--- `n` of the list, by a generator of our own: the same everywhere.
local function sample(list, n, seed)
  local state = seed % 2147483647
  if state == 0 then state = 1 end
  for i = 1, math.min(n, #list) do
    state = state * 16807 % 2147483647
    local j = i + state % (#list - i + 1)
    list[i], list[j] = list[j], list[i]
  end
  for i = #list, n + 1, -1 do list[i] = nil end
end

-- ---- tests ----

local function all_tests()
  local names = {}
  local find = process.run { "sh", "-c", "ls " .. options.build .. "/tests | LC_ALL=C sort" }
  for name in find.out:gmatch "%S+" do
    local family = name:match "^test_device_(%w+)$"
    if family then names[#names + 1] = family end
  end
  assert(#names > 0, "no tests of devices in " .. options.build .. "/tests")
  return names
end

--- Does the test notice? It is stopped at its first failure. Returns what failed.
local function notices(family, folder)
  local command = ("echo $$; exec timeout %d env RLENGINE_PLUGINS=%s RLENGINE_TEST_DEVICE=emu " ..
    "%s/tests/test_device_%s 2>&1"):format(SECONDS, folder, options.build, family)
  local out = io.popen("sh -c '" .. command .. "' 2>/dev/null; echo ended $?")
  local pid, failed = out:read "*l", nil
  for line in out:lines() do
    local code = line:match "^ended (%d+)"
    failed = line:match "^%[  FAILED  %] (%S+)" or code and code ~= "0" and "exit code " .. code
    if failed then
      os.execute("kill " .. pid .. " 2>/dev/null")
      break
    end
  end
  out:close()
  return failed
end

-- ---- one mutant ----

--- The units that a changed file is compiled into.
local function units_with(units, path)
  local changed = {}
  local header = path:match "([%w_]+%.h)$"
  for _, unit in ipairs(units) do
    local includes = header and unit.source:match "%.cu$"
      and process.read(unit.path):find('#include "' .. header .. '"', 1, true)
    if unit.source == path or includes then changed[#changed + 1] = unit end
  end
  return changed
end

local function try(barrier, units, tests, folder)
  local by = {}
  for _, unit in ipairs(units_with(units, barrier.path)) do
    local source = folder .. "/" .. unit.source:match "[^/]+$"
    local object = source .. ".o"
    process.write(source, process.read(unit.path))
    process.write(folder .. "/" .. barrier.path:match "[^/]+$", barrier.mutant)
    local compiled, why = plugin.compile(unit, source, object, "-O1 -Wno-error")
    assert(compiled, why)
    by[unit.source] = object
  end
  plugin.link(units, by, folder)
  for _, family in ipairs(USERS[barrier.path] or tests) do
    local failed = notices(family, folder)
    if failed then return "test_device_" .. family .. ", " .. failed end
  end
end

local list = all_barriers()
if options.list then
  for _, b in ipairs(list) do
    print(("%s:%d: %s%s"):format(b.path, b.line, b.what:gsub("%s+", " "),
      b.excuse and " (not seen: " .. b.excuse .. ")" or ""))
  end
  return
end
for i = #list, 1, -1 do
  if list[i].excuse then table.remove(list, i) end
end
if options.sample then sample(list, options.sample, options.seed or 1) end

local units, tests = plugin.units(options.build), all_tests()
local folder = process.folder()
local survivors = 0
print("1.." .. #list)
for i, barrier in ipairs(list) do
  local t0 = os.time()
  local seen = try(barrier, units, tests, folder)
  if not seen then survivors = survivors + 1 end
  print(("%s %d - without %s:%d %s"):format(seen and "ok" or "not ok", i, barrier.path,
    barrier.line, barrier.what:match "^[%w_]+"))
  print(("# %s, %d s"):format(seen and "seen by " .. seen or "no test notices", os.time() - t0))
  io.stdout:flush()
end
process.remove(folder)
os.exit(survivors == 0 and 0 or 1)
