--- check_budget.lua: registers and spilled bytes of every kernel, for every GPU that it was
-- compiled for, against tests/gpu/budget.txt. Prints TAP.
--   luajit tests/gpu/check_budget.lua [BUILD]             (build/)
--   luajit tests/gpu/check_budget.lua --update [BUILD]    rewrite the budget as it is now
--
-- The build keeps what ptxas says in <build>/cuda/<file>.ptxas. A kernel fails that spills, that
-- takes more registers than its row, or that has no row; so does a row without a kernel. Another
-- nvcc than the one the budget is of may take a few registers more. Without nvcc in the build
-- only the check itself is tested.

local budget_path = "tests/gpu/budget.txt"
local slack_of_another_nvcc = 16

local budget = {}

-- ---- what ptxas said ----

--- Name of a kernel without what is the same for all: its type, its arguments, namespaces.
local function shorten(name)
  name = name:gsub("%(anonymous namespace%)::", ""):gsub("^void ", "")
  -- The arguments: the last parenthesis that closes at the end.
  local depth = 0
  for i = #name, 1, -1 do
    local c = name:sub(i, i)
    if c == ")" then depth = depth + 1 end
    if c == "(" then
      depth = depth - 1
      if depth == 0 then return name:sub(1, i - 1) end
    end
    if depth == 0 then break end
  end
  return name
end

--- Kernels of one file's log, with names as c++filt gave them back:
-- a list of {kernel =, gpu =, registers =, spilled =} and a list of warnings.
function budget.parse(log)
  local list, warnings, current = {}, {}, nil
  for line in log:gmatch "[^\n]+" do
    local kernel, gpu = line:match "Compiling entry function '(.*)' for '(sm_%w+)'"
    if kernel then
      current = { kernel = shorten(kernel), gpu = gpu, spilled = 0 }
      list[#list + 1] = current
    end
    local stores, loads = line:match "(%d+) bytes spill stores, (%d+) bytes spill loads"
    if stores and current then current.spilled = current.spilled + stores + loads end
    local registers = line:match "Used (%d+) registers"
    if registers and current then current.registers = tonumber(registers) end
    if line:match "warning" then warnings[#warnings + 1] = line end
  end
  return list, warnings
end

-- ---- the budget file ----

local head = [[
# Registers a thread of each kernel may take on each GPU; none may spill to memory. Written by
# `luajit tests/gpu/check_budget.lua --update`, checked by the same.
]]

--- {nvcc =, gpus = {names}, rows = {["file kernel"] = {gpu = registers}}}
function budget.read(text)
  local b = { gpus = {}, rows = {} }
  for line in text:gmatch "[^\n]+" do
    local key, rest = line:match "^(%a+) (.*)$"
    if key == "nvcc" then
      b.nvcc = rest
    elseif key == "gpus" then
      for gpu in rest:gmatch "%S+" do b.gpus[#b.gpus + 1] = gpu end
    elseif not line:match "^#" then
      local numbers, name = line:match "^([%d%s-]+)(%S+%.cu .*)$"
      assert(name, budget_path .. ": not a row: " .. line)
      local row, i = {}, 0
      for n in numbers:gmatch "%S+" do
        i = i + 1
        row[b.gpus[i]] = tonumber(n)
      end
      b.rows[name] = row
    end
  end
  return b
end

function budget.write(b)
  local names = {}
  for name in pairs(b.rows) do names[#names + 1] = name end
  table.sort(names)
  local out = { head, "nvcc ", b.nvcc, "\ngpus ", table.concat(b.gpus, " "), "\n" }
  for _, name in ipairs(names) do
    for _, gpu in ipairs(b.gpus) do out[#out + 1] = ("%3s "):format(b.rows[name][gpu] or "-") end
    out[#out + 1] = name .. "\n"
  end
  return table.concat(out)
end

-- ---- the check ----

--- What is wrong with the kernels `found` ({["fill.cu"] = list}) by the budget b: four lists, of
-- kernels that spill, that take too many registers, that have no row, and rows without a kernel.
function budget.check(b, found, nvcc)
  local spill, over, unknown, gone, seen = {}, {}, {}, {}, {}
  local slack = nvcc == b.nvcc and 0 or slack_of_another_nvcc
  for file, list in pairs(found) do
    for _, k in ipairs(list) do
      local name = file .. " " .. k.kernel
      local row, where = b.rows[name], ("%s on %s"):format(name, k.gpu)
      seen[name] = true
      if k.spilled > 0 then spill[#spill + 1] = ("%s: %d bytes"):format(where, k.spilled) end
      if not row then
        unknown[#unknown + 1] = ("%s: %d registers"):format(where, k.registers)
      elseif row[k.gpu] and k.registers > row[k.gpu] + slack then
        over[#over + 1] = ("%s: %d registers, %d allowed"):format(where, k.registers, row[k.gpu])
      end
    end
  end
  for name in pairs(b.rows) do
    if not seen[name] then gone[#gone + 1] = name end
  end
  for _, list in ipairs { spill, over, unknown, gone } do table.sort(list) end
  return spill, over, unknown, gone
end

--- The budget that `found` just keeps.
function budget.of(found, nvcc)
  local b, gpus = { nvcc = nvcc, gpus = {}, rows = {} }, {}
  for file, list in pairs(found) do
    for _, k in ipairs(list) do
      local name = file .. " " .. k.kernel
      local row = b.rows[name] or {}
      b.rows[name] = row
      row[k.gpu] = math.max(row[k.gpu] or 0, k.registers)
      gpus[k.gpu] = true
    end
  end
  for gpu in pairs(gpus) do b.gpus[#b.gpus + 1] = gpu end
  table.sort(b.gpus, function(x, y) return tonumber(x:match "%d+") < tonumber(y:match "%d+") end)
  return b
end

-- ---- reading a build ----

local function slurp(command_or_path, command)
  local f = command and io.popen(command_or_path) or io.open(command_or_path, "rb")
  if not f then return nil end
  local text = f:read "*a"
  f:close()
  return text
end

--- The kernels of a build by file, warnings, nvcc's version; or nil and why there are none.
local function read_build(folder)
  local cache = slurp(folder .. "/CMakeCache.txt")
  if not cache then return nil, "there is no build in " .. folder end
  local trouble = cache:match "RLE_CUDA_TROUBLE:INTERNAL=([^\n]+)"
  if cache:match "\nRLE_CUDA:[^=]*=OFF" then return nil, "the build leaves CUDA out" end
  if cache:match "\nRLE_NVCC:[^=]*=[^\n]*NOTFOUND" then return nil, "nvcc was not found" end
  if trouble then return nil, trouble end
  local version = cache:match "RLE_CUDA_VERSION:INTERNAL=([^\n]+)"
  if not version then return nil, "the build is without nvcc" end
  local found, warnings, count = {}, {}, 0
  for path in slurp("ls kernels/*.cu", true):gmatch "[^\n]+" do
    local file = path:match "[^/]+$"
    local log = ("%s/cuda/%s.ptxas"):format(folder, file:match "^(.*)%.cu$")
    local more
    if not slurp(log) then error(log .. " is not there: build rlengine_cuda", 0) end
    found[file], more = budget.parse(slurp(("c++filt <'%s'"):format(log), true))
    for _, line in ipairs(more) do warnings[#warnings + 1] = file .. ": " .. line end
    count = count + #found[file]
  end
  assert(count > 0, "ptxas has said nothing of any kernel")
  return found, warnings, version
end

-- ---- TAP ----

local count, failed = 0, false
local function report(name, problems)
  count = count + 1
  print(("%s %d - budget: %s"):format(#problems == 0 and "ok" or "not ok", count, name))
  for i = 1, math.min(#problems, 20) do print("# " .. problems[i]) end
  if #problems > 20 then print(("# and %d more"):format(#problems - 20)) end
  failed = failed or #problems > 0
end

--- The check finds what it is for, in a made-up log.
local function self_test()
  local log = [[
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'void (anonymous namespace)::add<f>(int (*)())' for 'sm_80'
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 20 registers, used 0 barriers, 804 bytes cmem[0]
ptxas info    : Compiling entry function 'sum(rle_k_loop)' for 'sm_120'
    16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 255 registers, 804 bytes cmem[0]
a.cu(3): warning #177-D: variable "x" was declared but never referenced
]]
  local problems = {}
  local function expect(what, is, wanted)
    if is ~= wanted then
      problems[#problems + 1] = ("%s: %s, not %s"):format(what, tostring(is), tostring(wanted))
    end
  end
  local list, warnings = budget.parse(log)
  local found = { ["a.cu"] = list }
  expect("kernels", #list, 2)
  expect("name", list[1].kernel, "add<f>")
  expect("registers", list[1].registers, 20)
  expect("name without namespace", list[2].kernel, "sum")
  expect("spilled", list[2].spilled, 20)
  expect("warnings", #warnings, 1)
  local b = budget.of(found, "13.0")
  expect("gpus", table.concat(b.gpus, " "), "sm_80 sm_120")
  b = budget.read(budget.write(b))
  local function check(nvcc)
    local counts = {}
    for i, problem in ipairs { budget.check(b, found, nvcc) } do counts[i] = #problem end
    return table.concat(counts, " ")
  end
  expect("only the spill", check "13.0", "1 0 0 0")
  b.rows["a.cu add<f>"].sm_80 = 19
  expect("a register too many", check "13.0", "1 1 0 0")
  expect("which another nvcc may take", check "13.1", "1 0 0 0")
  b.rows["a.cu gone"], b.rows["a.cu sum"] = b.rows["a.cu sum"], nil
  expect("no row, no kernel", check "13.1", "1 0 1 1")
  report("the check finds what breaks it", problems)
end

local update = arg[1] == "--update"
local folder = arg[update and 2 or 1] or "build"
local found, warnings, nvcc = read_build(folder)

if update then
  assert(found, warnings)
  local b = budget.of(found, nvcc)
  local f = assert(io.open(budget_path, "wb"))
  f:write(budget.write(b))
  f:close()
  for _, line in ipairs((budget.check(b, found, nvcc))) do print("spills: " .. line) end
  os.exit(0)
end

self_test()
if found then
  local text = assert(slurp(budget_path), budget_path .. " is not there")
  local spill, over, unknown, gone = budget.check(budget.read(text), found, nvcc)
  report("no kernel spills registers to memory", spill)
  report("every kernel keeps within its registers", over)
  report("every kernel has a row in " .. budget_path, unknown)
  report("every row has a kernel", gone)
  report("nvcc warns of nothing", warnings)
else
  count = count + 1
  print(("ok %d - budget: kernels # SKIP %s"):format(count, warnings))
end
print("1.." .. count)
os.exit(failed and 1 or 0)
