--- For tests that run whole programs: scripts in a temporary folder, their output, exit code
-- and what they leave behind.

local support = {}

local function read(path)
  local f = io.open(path, "rb")
  if not f then return nil end
  local text = f:read "*a"
  f:close()
  return text
end
support.read = read

local function write(path, text)
  local f = assert(io.open(path, "wb"))
  f:write(text)
  f:close()
end

local function capture(command)
  local pipe = assert(io.popen(command))
  local text = pipe:read "*a"
  pipe:close()
  return text
end
support.capture = capture

--- The program under test: $RLENGINE, the one that was built, or LuaJIT with the module.
function support.program()
  local wanted = os.getenv "RLENGINE"
  if wanted then return wanted end
  if read "build/rlengine" then return "build/rlengine" end
  return "luajit"
end

function support.is_rlengine() return support.program() ~= "luajit" end

local function quote(word) return "'" .. tostring(word):gsub("'", "'\\''") .. "'" end
support.quote = quote

function support.folder()
  return (capture("mktemp -d /tmp/rle-launch-XXXXXX"):gsub("\n", ""))
end

--- Wait until condition() is true; false after `seconds`.
function support.eventually(condition, seconds)
  for _ = 1, (seconds or 10) * 50 do
    if condition() then return true end
    os.execute "sleep 0.02"
  end
  return false
end

local Run = {}
Run.__index = Run

local count = 0

--- Start a script. Options: args (list of words), stdin (text), text (run with -e / stdin
-- instead of a file: "-e" or "-"), folder. Its processes are known by a variable in their
-- environment.
function support.start(script, given)
  given = given or {}
  count = count + 1
  local folder = support.folder()
  local self = setmetatable({ folder = folder, id = folder:match "[^/]*$" .. count }, Run)
  write(folder .. "/script.lua", script)
  local words = { quote(support.program()) }
  if given.text == "-e" then
    words[#words + 1] = "-e " .. quote(script)
  elseif given.text == "-" then
    words[#words + 1] = "-"
    given.stdin = script
  else
    words[#words + 1] = quote(folder .. "/script.lua")
  end
  for _, word in ipairs(given.args or {}) do words[#words + 1] = quote(word) end
  write(folder .. "/stdin", given.stdin or "")
  -- A shell lets what it starts in the background ignore Ctrl-C; undo that.
  os.execute(("( env --default-signal=INT,QUIT RLE_TEST_RUN=%s TMPDIR=%s XDG_RUNTIME_DIR= sh -c "
    .. "'echo $$ >%s/pid; exec \"$@\"' sh %s <%s/stdin >%s/out 2>%s/err; echo $? >%s/code ) &")
    :format(self.id, folder, folder, table.concat(words, " "), folder, folder, folder, folder))
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
  for _, process in ipairs(self:processes()) do
    if process.name == name then return process.pid end
  end
end

function Run:signal(signal, pid)
  os.execute(("kill -%s %d 2>/dev/null"):format(signal, pid or self:pid()))
end

--- Wait for a text on standard output (or error).
function Run:says(text, seconds)
  return support.eventually(function()
    return self:out():find(text, 1, true) or self:err():find(text, 1, true)
  end, seconds)
end

--- Wait for the end; returns the exit code, or kills what is left and returns nil.
function Run:wait(seconds)
  local ended = support.eventually(function()
    return (read(self.folder .. "/code") or "") ~= ""
  end, seconds or 30)
  if not ended then
    for _, process in ipairs(self:processes()) do self:signal("KILL", process.pid) end
    return nil
  end
  return tonumber(read(self.folder .. "/code"))
end

--- Private folders (of rl.launch) that are still there.
function Run:leftovers()
  return capture(("ls -d %s/rlengine-* 2>/dev/null"):format(self.folder))
end

function Run:remove() os.execute("rm -rf " .. quote(self.folder)) end

--- Run a script to its end: code, out, err, run.
function support.run(script, given)
  local run = support.start(script, given)
  local code = run:wait(given and given.seconds)
  return code, run:out(), run:err(), run
end

return support
