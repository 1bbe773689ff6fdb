--- launched.lua: scripts that start processes of their own, watched from outside while they
-- run: what they say, who is there, what they leave behind.

local process = require "process"

local launched = {}

local function read(path)
  local f = io.open(path, "rb")
  if not f then return nil end
  local text = f:read "*a"
  f:close()
  return text
end

local function capture(command)
  local pipe = assert(io.popen(command))
  local text = pipe:read "*a"
  pipe:close()
  return text
end

local function quote(word) return "'" .. tostring(word):gsub("'", "'\\''") .. "'" end

--- Wait until condition() is true; false after `seconds`.
function launched.eventually(condition, seconds)
  for _ = 1, (seconds or 10) * 50 do
    if condition() then return true end
    os.execute "sleep 0.02"
  end
  return false
end

local Run = {}
Run.__index = Run

local count = 0

--- Start a script. Options: args (list of words), stdin (text), text (instead of a file,
-- give the script with "-e" or on standard input: "-"). Its processes are known by a
-- variable in their environment.
function launched.start(script, given)
  given = given or {}
  count = count + 1
  local folder = process.folder()
  local self = setmetatable({ folder = folder, id = folder:match "[^/]*$" .. count }, Run)
  process.write(folder .. "/script.lua", script)
  local words = { quote(process.program()) }
  if given.text == "-e" then
    words[#words + 1] = "-e " .. quote(script)
  elseif given.text == "-" then
    words[#words + 1] = "-"
    given.stdin = script
  else
    words[#words + 1] = quote(folder .. "/script.lua")
  end
  for _, word in ipairs(given.args or {}) do words[#words + 1] = quote(word) end
  process.write(folder .. "/stdin", given.stdin or "")
  -- A shell lets what it starts in the background ignore Ctrl-C; undo that. The inner shell
  -- redirects, or the outer one's "Terminated" would stand among the program's own words.
  os.execute(("( env --default-signal=INT,QUIT RLE_TEST_RUN=%s TMPDIR=%s XDG_RUNTIME_DIR= sh -c "
    .. "'cd=$1; shift; echo $$ >$cd/pid; exec \"$@\" <$cd/stdin >$cd/out 2>$cd/err' sh %s %s; "
    .. "echo $? >%s/code ) 2>/dev/null &")
    :format(self.id, folder, folder, table.concat(words, " "), folder))
  return self
end

function Run:out() return read(self.folder .. "/out") or "" end
function Run:err() return read(self.folder .. "/err") or "" end
function Run:pid() return tonumber((read(self.folder .. "/pid") or ""):match "%d+") end

--- Numbers of the processes of this run that are there now, and their names.
function Run:processes()
  local list = {}
  local command = ("grep -l --null-data -x RLE_TEST_RUN=%s /proc/[0-9]*/environ 2>/dev/null")
    :format(self.id)
  for pid in capture(command):gmatch "/proc/(%d+)/" do
    local name = (read("/proc/" .. pid .. "/comm") or ""):gsub("\n", "")
    local state = (read("/proc/" .. pid .. "/stat") or ""):match "%) (%a)"
    if state and state ~= "Z" then list[#list + 1] = { pid = tonumber(pid), name = name } end
  end
  return list
end

--- The process of that name ("obs_0_for_0"), or nil.
function Run:process(name)
  for _, each in ipairs(self:processes()) do
    if each.name == name then return each.pid end
  end
end

function Run:signal(signal, pid)
  os.execute(("kill -%s %d 2>/dev/null"):format(signal, pid or self:pid()))
end

--- Wait for a text on standard output (or error).
function Run:says(text, seconds)
  return launched.eventually(function()
    return self:out():find(text, 1, true) or self:err():find(text, 1, true)
  end, seconds)
end

--- Wait for the end; returns the exit code, or kills what is left and returns nil.
function Run:wait(seconds)
  local ended = launched.eventually(function()
    return (read(self.folder .. "/code") or "") ~= ""
  end, seconds or 30)
  if not ended then
    for _, each in ipairs(self:processes()) do self:signal("KILL", each.pid) end
    return nil
  end
  return tonumber(read(self.folder .. "/code"))
end

--- Private folders (of rl.launch) that are still there.
function Run:leftovers()
  return capture(("ls -d %s/rlengine-* 2>/dev/null"):format(self.folder))
end

function Run:remove() process.remove(self.folder) end

return launched
