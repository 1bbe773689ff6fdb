--- process.lua: run programs from tests and look at what they did.
--
--   local r = process.run({ process.program(), "-e", "print(1)" })
--   -- r.code, r.out, r.err; r.signal when a signal ended it

local signal = require "posix.signal"
local stdlib = require "posix.stdlib"
local unistd = require "posix.unistd"
local wait = require "posix.sys.wait"

local process = {}

--- The `rlengine` under test: $RLENGINE, else the one this test runs in, else the build's.
function process.program()
  local named = os.getenv "RLENGINE"
  if named then return named end
  local exe = unistd.readlink "/proc/self/exe"
  if exe and exe:match "/rlengine$" then return exe end
  return unistd.getcwd() .. "/build/rlengine"
end

--- A new folder of its own; remove it with process.remove.
function process.folder()
  return assert(stdlib.mkdtemp((os.getenv "TMPDIR" or "/tmp") .. "/rlengine-test-XXXXXX"))
end

function process.remove(folder)
  assert(folder:match "/rlengine%-test%-", "not a test folder")
  process.run { "rm", "-rf", folder }
end

function process.write(path, text)
  local f = assert(io.open(path, "wb"))
  f:write(text)
  f:close()
end

function process.read(path)
  local f = assert(io.open(path, "rb"))
  local text = f:read "*a"
  f:close()
  return text
end

local function temporary(text)
  local fd, path = assert(stdlib.mkstemp((os.getenv "TMPDIR" or "/tmp") .. "/rlengine-test-XXXXXX"))
  os.remove(path)
  if text and #text > 0 then
    assert(unistd.write(fd, text) == #text)
    assert(unistd.lseek(fd, 0, unistd.SEEK_SET))
  end
  return fd
end

local function slurp(fd)
  unistd.lseek(fd, 0, unistd.SEEK_SET)
  local parts = {}
  while true do
    local data = unistd.read(fd, 65536)
    if not data or data == "" then break end
    parts[#parts + 1] = data
  end
  unistd.close(fd)
  return table.concat(parts)
end

--- Run argv to its end.
-- @param options input: text on standard input (none); env: variables to set, false
--   removes one; cwd: folder to run in
function process.run(argv, options)
  options = options or {}
  local input = temporary(options.input)
  local out, err = temporary(), temporary()
  io.stdout:flush()
  local pid = assert(unistd.fork())
  if pid == 0 then
    unistd.dup2(input, 0)
    unistd.dup2(out, 1)
    unistd.dup2(err, 2)
    for fd = 3, 20 do unistd.close(fd) end
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    for key, value in pairs(options.env or {}) do stdlib.setenv(key, value or nil) end
    if options.cwd then unistd.chdir(options.cwd) end
    local args = {}
    for i = 2, #argv do args[i - 1] = argv[i] end
    unistd.execp(argv[1], args)
    unistd.write(2, "cannot run " .. argv[1] .. "\n")
    unistd._exit(127)
  end
  local _, reason, code = wait.wait(pid)
  unistd.close(input)
  local result = { out = slurp(out), err = slurp(err) }
  result[reason == "exited" and "code" or "signal"] = code
  return result
end

--- Run argv and raise with everything it printed unless it exits with 0. Returns its output.
function process.check(argv, options)
  local r = process.run(argv, options)
  if r.code ~= 0 then
    error(("%s\nended with %s\n%s%s"):format(table.concat(argv, " "),
      tostring(r.code or "signal " .. r.signal), r.out, r.err), 2)
  end
  return r.out
end

return process
