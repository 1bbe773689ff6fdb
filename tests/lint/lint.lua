--- lint.lua: rules about the sources that no compiler checks. Prints TAP.
--   build/rlengine tests/lint/lint.lua
-- Each rule is a function that returns a list of "file:line: what is wrong"; rules.lua has
-- them. `--self-test` runs them on made-up files that break each rule once, because a lint
-- that finds nothing may as well look at nothing.

package.path = "tests/lint/?.lua;" .. package.path
local rules = require "rules"

--- A source is {path =, text =, lines =}.
local function source(path, text)
  local lines = {}
  for line in (text .. "\n"):gmatch "(.-)\n" do lines[#lines + 1] = line end
  if lines[#lines] == "" then lines[#lines] = nil end
  return { path = path, text = text, lines = lines }
end

local function read_tree()
  local find = io.popen [[find engine kernels lua scripts tests docs CMakeLists.txt README.md \
    -type f \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cc' -o -name '*.lua' \
    -o -name '*.sh' -o -name '*.py' -o -name '*.md' -o -name '*.cmake' -o -name '*.txt' \) \
    2>/dev/null | grep -v '/\.' | LC_ALL=C sort]]
  local sources = {}
  for path in find:lines() do
    local f = assert(io.open(path, "rb"))
    sources[#sources + 1] = source(path, f:read "*a")
    f:close()
  end
  find:close()
  return sources
end

local count, failed = 0, false

local function report(name, problems)
  count = count + 1
  print(("%s %d - lint: %s"):format(#problems == 0 and "ok" or "not ok", count, name))
  for i = 1, math.min(#problems, 20) do print("# " .. problems[i]) end
  if #problems > 20 then print(("# and %d more"):format(#problems - 20)) end
  failed = failed or #problems > 0
end

if arg[1] == "--self-test" then
  for _, rule in ipairs(rules) do
    local problems = {}
    for _, example in ipairs(rule.breaks) do
      local found = rule.check { source(example[1], example[2]) }
      if #found ~= 1 then
        problems[#problems + 1] = ("%s: found %d problems, not 1, in: %s")
          :format(example[1], #found, example[2]:sub(1, 200):gsub("\n", "\\n"))
      end
    end
    for _, example in ipairs(rule.keeps) do
      local found = rule.check { source(example[1], example[2]) }
      for _, p in ipairs(found) do problems[#problems + 1] = "unfounded: " .. p end
    end
    report("rule \"" .. rule.name .. "\" finds what breaks it and nothing else", problems)
  end
else
  local sources = read_tree()
  report("there are sources to look at", #sources > 50 and {} or { "found " .. #sources })
  for _, rule in ipairs(rules) do report(rule.name, rule.check(sources)) end
end

print("1.." .. count)
os.exit(failed and 1 or 0)
