--- coverage.lua - which lines of kernels/*.cu and engine/device/cuda/*.c the tests of devices run.
--
--   build/rlengine tests/emu/coverage.lua [--build DIR] [--least PERCENT] [--lines] [--tap]
--     [test ...]
--
-- Tests run in one order of threads only, the one in which they take their largest sizes: another
-- runs the same lines.
--
-- These files are compiled anew with gcov's counters and linked with the rest of the build's
-- emulated device; then every tests/test_device_* runs with that plug-in, or those that are named.
-- Prints a table and fails below --least (95). --lines also prints the lines that were not run;
-- --tap prints all of it as one test of a suite.

package.path = "tests/support/?.lua;tests/emu/?.lua;" .. package.path
local plugin = require "plugin"
local process = require "process"

local print = print -- with --tap what is printed are comments
local options = { build = "build", least = 95, tests = {} }
do
  local i = 1
  while arg[i] do
    local a = arg[i]
    if a == "--lines" or a == "--tap" then
      options[a:sub(3)] = true
    elseif a == "--build" or a == "--least" then
      i = i + 1
      options[a:sub(3)] = a == "--build" and arg[i] or assert(tonumber(arg[i]), a)
    else
      options.tests[#options.tests + 1] = a
    end
    i = i + 1
  end
end

if options.tap then
  local plain = print
  function print(text) plain((("# " .. text):gsub("\n(.)", "\n# %1"))) end
end

local folder = process.folder()
local units = plugin.units(options.build)

-- ---- build ----

local function counted(unit)
  return unit.source:match "^kernels/[^/]*%.cu$" or unit.source:match "^engine/device/cuda/"
end

local by = {}
do
  -- As many at once as there are processors: each line of `make` is one file.
  local rules, objects = {}, {}
  for _, unit in ipairs(units) do
    if counted(unit) then
      local object = folder .. "/" .. unit.source:gsub("/", "_") .. ".o"
      by[unit.source] = object
      objects[#objects + 1] = object
      rules[#rules + 1] = ("%s:\n\t@cd %s && %s -O1 --coverage -Wno-error -o %s -c %s\n"):format(
        object, unit.folder, unit.command, object, unit.path)
    end
  end
  process.write(folder .. "/rules", "all: " .. table.concat(objects, " ") .. "\n" ..
    table.concat(rules))
  local r = process.run { "sh", "-c", "make -s -j$(nproc) -f " .. folder .. "/rules all" }
  assert(r.code == 0, r.err)
  plugin.link(units, by, folder, "--coverage")
end

-- ---- tests ----

local failed = false
do
  local tests = options.tests
  if #tests == 0 then
    local find = process.run { "sh", "-c",
      "ls " .. options.build .. "/tests | grep '^test_device_' | LC_ALL=C sort" }
    for name in find.out:gmatch "%S+" do tests[#tests + 1] = name end
  end
  for _, name in ipairs(tests) do
    local r = process.run { "sh", "-c", ("RLENGINE_CHECK_MODE=5 RLENGINE_PLUGINS=%s " ..
      "RLENGINE_TEST_DEVICE=emu %s/tests/%s"):format(folder, options.build, name) }
    if r.code ~= 0 then
      failed = true
      print(name .. " failed:\n" .. r.out .. r.err)
    end
  end
end

-- ---- counters ----

--- Lines of code in one file, those that ran, and the others, from gcov's listing.
local function lines_of(unit)
  process.run { "sh", "-c", ("cd %s && gcov -o %s %s.gcda >/dev/null 2>&1"):format(folder,
    folder, (by[unit.source]:gsub("%.o$", ""))) }
  local name = folder .. "/" .. unit.source:match "[^/]+$" .. ".gcov"
  local f = io.open(name, "rb")
  local ran, missed = {}, {}
  if f then
    for line in f:lines() do
      local count, number = line:match "^%s*([^:]+):%s*(%d+):"
      number = tonumber(number)
      -- A line of a template is listed once for each of its instances, and summed up first.
      if count and number > 0 then
        if count:match "^%d" then
          ran[number] = true
        elseif count:match "^[#=]" then
          missed[number] = true
        end
      end
    end
    f:close()
    os.remove(name)
  end
  local n, list = 0, {}
  for _ in pairs(ran) do n = n + 1 end
  for number in pairs(missed) do
    if not ran[number] then list[#list + 1] = number end
  end
  table.sort(list)
  return n, list
end

local total, run = 0, 0
print(("%-42s %6s %6s %6s"):format("", "lines", "run", "%"))
for _, unit in ipairs(units) do
  if counted(unit) then
    local n, missed = lines_of(unit)
    total, run = total + n + #missed, run + n
    print(("%-42s %6d %6d %6.1f"):format(unit.source, n + #missed, n,
      100 * n / math.max(1, n + #missed)))
    if options.lines and #missed > 0 then
      local text = process.read(unit.path) .. "\n"
      local lines = {}
      for line in text:gmatch "(.-)\n" do lines[#lines + 1] = line end
      for _, number in ipairs(missed) do
        print(("  %s:%d: %s"):format(unit.source, number, lines[number]))
      end
    end
  end
end
local percent = 100 * run / math.max(1, total)
print(("%-42s %6d %6d %6.1f"):format("all", total, run, percent))
process.remove(folder)
if percent < options.least then
  print(("less than %g %%"):format(options.least))
  failed = true
end
if options.tap then
  io.stdout:write(failed and "not ok" or "ok", " 1 - tests of devices run their code\n1..1\n")
end
os.exit(failed and 1 or 0)
