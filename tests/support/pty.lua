--- pty.lua: drive a program through a pseudo-terminal, as a person would.
-- Nothing here sleeps: `expect` returns as soon as the text has come.
--
--   local term = pty.spawn({ "build/rlengine" }, { env = { HOME = dir } })
--   term:expect "> "
--   term:send "1+1\r"
--   term:expect "2\n"
--   local code = term:finish()

local fcntl = require "posix.fcntl"
local poll = require "posix.poll"
local signal = require "posix.signal"
local stdlib = require "posix.stdlib"
local unistd = require "posix.unistd"
local wait = require "posix.sys.wait"
local clock = require "posix.time"

local pty = {}
local Terminal = {}
Terminal.__index = Terminal

local TIMEOUT = 20 -- seconds until a test gives up on a text; it is not a measure of speed

local function now()
  local t = clock.clock_gettime(clock.CLOCK_MONOTONIC)
  return t.tv_sec + t.tv_nsec / 1e9
end

--- Start argv in a new session whose terminal is the pseudo-terminal.
-- @param options env: variables to set; columns: width of the terminal (200)
function pty.spawn(argv, options)
  options = options or {}
  local flags = fcntl.O_RDWR + fcntl.O_NOCTTY + fcntl.O_CLOEXEC
  local master = assert(fcntl.open("/dev/ptmx", flags))
  assert(stdlib.grantpt(master))
  assert(stdlib.unlockpt(master))
  local name = assert(stdlib.ptsname(master))
  local pid = assert(unistd.fork())
  if pid == 0 then
    unistd.setpid "s"
    local slave = fcntl.open(name, fcntl.O_RDWR)
    for fd = 0, 2 do unistd.dup2(slave, fd) end
    if slave > 2 then unistd.close(slave) end
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    stdlib.setenv("TERM", "xterm")
    for key, value in pairs(options.env or {}) do stdlib.setenv(key, value) end
    local script = ("stty rows 24 cols %d; exec \"$0\" \"$@\""):format(options.columns or 200)
    local args = { "-c", script }
    for _, a in ipairs(argv) do args[#args + 1] = a end
    unistd.execp("sh", args)
    unistd._exit(127)
  end
  local term = { fd = master, name = name, pid = pid, raw = "", text = "", at = 1 }
  return setmetatable(term, Terminal)
end

--- A screen of endless height: what a person sees when `raw` is written to a terminal.
-- Knows what a line editor sends to a narrow xterm without wrapping.
local function render(raw)
  local lines, row, column = { {} }, 1, 1
  local at = 1
  while at <= #raw do
    local line = lines[row]
    local _, stop, args, final = raw:find("^\27%[([%d;?]*)([@%a])", at)
    local n = tonumber(args) or 1
    if stop then
      if final == "C" then column = column + n
      elseif final == "D" then column = math.max(1, column - n)
      elseif final == "G" then column = n
      elseif final == "A" then row = math.max(1, row - n)
      elseif final == "K" or final == "J" then
        for c = #line, column, -1 do line[c] = nil end
        if final == "J" then for r = #lines, row + 1, -1 do lines[r] = nil end end
      elseif final == "@" then for _ = 1, n do table.insert(line, column, " ") end
      elseif final == "P" then for _ = 1, n do table.remove(line, column) end
      end
    elseif raw:find("^\27[=>]", at) then
      stop = at + 1
    elseif raw:find("^[\r\n\b\a\t]", at) then
      local c = raw:sub(at, at)
      stop = at
      if c == "\r" then column = 1
      elseif c == "\b" then column = math.max(1, column - 1)
      elseif c == "\n" then
        row = row + 1
        lines[row] = lines[row] or {}
      elseif c == "\t" then
        line[column] = c
        column = column + 1
      end
    else
      local c
      _, stop, c = raw:find("^([%z\1-\127\194-\244][\128-\191]*)", at)
      if not stop then stop, c = at, raw:sub(at, at) end
      for k = #line + 1, column - 1 do line[k] = " " end
      line[column] = c
      column = column + 1
    end
    at = stop + 1
  end
  for r, line in ipairs(lines) do lines[r] = table.concat(line) end
  return table.concat(lines, "\n")
end

--- Read once. False at the end of the program's output.
function Terminal:read(timeout)
  local ready = poll.rpoll(self.fd, math.max(0, math.floor(timeout * 1000)))
  if ready ~= 1 then return true end
  local data = unistd.read(self.fd, 4096)
  if not data or data == "" then return false end -- EIO: the other side is closed
  self.raw = self.raw .. data
  self.text = render(self.raw)
  return true
end

--- Wait until `wanted` (plain text) appears behind what was last expected.
-- Returns what came before it.
function Terminal:expect(wanted)
  local deadline = now() + TIMEOUT
  while true do
    local first, last = self.text:find(wanted, self.at, true)
    if first then
      local before = self.text:sub(self.at, first - 1)
      self.at = last + 1
      return before
    end
    local left = deadline - now()
    if left <= 0 or not self:read(left) then
      error(("expected %q, got %q"):format(wanted, self.text:sub(self.at)), 2)
    end
  end
end

--- Wait until the last line is `line`; what is expected next comes behind it.
function Terminal:expect_line(line)
  local deadline = now() + TIMEOUT
  while true do
    local last = self.text:match "[^\n]*$"
    if last == line then
      self.at = #self.text + 1
      return
    end
    local left = deadline - now()
    if left <= 0 or not self:read(left) then
      error(("expected the line %q, got %q"):format(line, last), 2)
    end
  end
end

--- Type: "\r" is Enter, "\t" Tab, "\3" Ctrl-C, "\4" Ctrl-D.
function Terminal:send(keys)
  assert(unistd.write(self.fd, keys))
end

--- Wait until the program sleeps in a system call. (A Ctrl-C between its last output and a
-- blocking read would otherwise be noticed only after the read.)
function Terminal:wait_asleep()
  repeat
    self:read(0.002)
    local f = assert(io.open(("/proc/%d/stat"):format(self.pid)))
    local state = f:read("*a"):match "%) (%a)"
    f:close()
  until state == "S"
end

--- Change the width of the terminal; the program gets a SIGWINCH.
function Terminal:resize(columns)
  assert(os.execute(("stty -F %s cols %d"):format(self.name, columns)))
end

--- True while the program runs.
function Terminal:alive()
  if self.ended then return false end
  local pid, reason, code = wait.wait(self.pid, wait.WNOHANG)
  if pid == self.pid then self.ended = { reason, code } end
  return not self.ended
end

--- End the program if it still runs.
function Terminal:close()
  if self:alive() then
    signal.kill(self.pid, signal.SIGKILL)
    wait.wait(self.pid)
  end
  unistd.close(self.fd)
end

--- Wait for the end. Returns the exit code, or "signal" and its number.
function Terminal:finish()
  local deadline = now() + TIMEOUT
  while self:read(0.05) do
    if now() > deadline then
      signal.kill(self.pid, signal.SIGKILL)
      break
    end
  end
  unistd.close(self.fd)
  local reason, code = unpack(self.ended or { select(2, wait.wait(self.pid)) })
  if reason == "exited" then return code end
  return reason, code
end

return pty
