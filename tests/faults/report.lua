-- What tests/faults/run.sh has found, as a table; and its figures into the table of a document.
--   rlengine tests/faults/report.lua FOLDER DOCUMENT [ROW...]
-- FOLDER holds `tap`, what the tests printed, and `figures`: lines of a row, a tab and a text.
-- DOCUMENT ("" for none) has a table whose first column names rows and whose fourth is what was
-- measured; between its lines "<!-- measured -->" and "<!-- /measured -->" stands when and where.

local folder, document = arg[1], arg[2]
local only = {}
for i = 3, #arg do only[arg[i]] = true end

local function read(path)
  local f = assert(io.open(path, "rb"))
  local text = f:read "*a"
  f:close()
  return text
end

local rows, order = {}, {}
local function row(name)
  if not rows[name] then
    rows[name] = { passed = 0, failed = 0, skipped = {}, figures = {} }
    order[#order + 1] = name
  end
  return rows[name]
end

-- ---- what happened ----

local failed = false
for line in read(folder .. "/tap"):gmatch "[^\n]+" do
  local verdict, rest = line:match "^(o?k?n?o?t? ?ok)(.*)$"
  if verdict == "ok" or verdict == "not ok" then
    -- Names are "F02: ..." within a sentence, or f02_... of a function.
    local names = {}
    for letter, digits in rest:gmatch "%f[%w]([FBfb])(%d%d)%f[^%d]" do
      local name = letter:upper() .. digits
      if not names[name] then
        names[name] = true
        local entry = row(name)
        local why = rest:match "# SKIP (.*)$"
        if why then
          entry.skipped[#entry.skipped + 1] = why:gsub("^%S+:%d+: ", "")
        elseif verdict == "ok" then
          entry.passed = entry.passed + 1
        else
          entry.failed = entry.failed + 1
        end
      end
    end
    if verdict == "not ok" then
      failed = true
      io.stderr:write(line, "\n")
    end
  end
end
-- What only differs in measured numbers, those with a fraction, is one figure measured again:
-- the first one stands. Whole numbers are what was done.
local function kind_of(text)
  return (text:gsub("%d+%.%d+", "?"))
end
for line in read(folder .. "/figures"):gmatch "[^\n]+" do
  local name, text = line:match "^(%S+)\t(.*)$"
  if name then
    local figures = row(name).figures
    local known
    for _, each in ipairs(figures) do known = known or kind_of(each) == kind_of(text) end
    if not known then figures[#figures + 1] = text end
  end
end
table.sort(order, function(a, b)
  if a:sub(1, 1) ~= b:sub(1, 1) then return a:sub(1, 1) > b:sub(1, 1) end
  return a < b
end)

-- ---- the table ----

local tests = 0
for _, name in ipairs(order) do
  if not next(only) or only[name] then
    local entry = rows[name]
    tests = tests + entry.passed + entry.failed
    local verdict = entry.failed > 0 and "FAIL" or entry.passed > 0 and "ok"
      or #entry.skipped > 0 and "skip" or "" -- only measured, in a test of another row
    print(("%s  %-4s %s"):format(name, verdict, entry.figures[1] or ""))
    for i = 2, #entry.figures do print("          " .. entry.figures[i]) end
    for _, why in ipairs(entry.skipped) do print("          skipped: " .. why) end
  end
end
print(("%d tests of rows%s"):format(tests, failed and "; some failed" or ", all held"))

-- ---- the document ----

local function machine()
  local cores = 0
  for _ in read "/proc/cpuinfo":gmatch "\nprocessor" do cores = cores + 1 end
  local model = read "/proc/cpuinfo":match "model name%s*:%s*([^\n]+)" or "unknown processor"
  return ("%d cores of %s"):format(cores + 1, model)
end

if document and document ~= "" then
  local changed, lines = 0, {}
  for line in (read(document)):gmatch "([^\n]*)\n" do
    local name = line:match "^| ([FB]%d%d) "
    local entry = name and rows[name]
    if entry and #entry.figures > 0 and (not next(only) or only[name]) then
      local columns = {}
      for column in line:gmatch "|([^|]*)" do columns[#columns + 1] = column end
      columns[4] = " " .. table.concat(entry.figures, "<br>"):gsub("|", "/") .. " "
      if columns[#columns]:match "^%s*$" then columns[#columns] = nil end
      line = "|" .. table.concat(columns, "|") .. "|"
      changed = changed + 1
    end
    lines[#lines + 1] = line
  end
  local text = table.concat(lines, "\n") .. "\n"
  text = text:gsub("(<!%-%- measured %-%->\n).-(<!%-%- /measured %-%->)", function(first, last)
    return ("%sMeasured on %s, %s, %s form.\n%s"):format(first, os.date "%Y-%m-%d", machine(),
      os.getenv "RLE_FULL" == "1" and "full" or "quick", last)
  end)
  local f = assert(io.open(document, "wb"))
  f:write(text)
  f:close()
  print(("%d rows of %s have new figures"):format(changed, document))
end

os.exit(failed and 1 or 0, true)
