--- proxy.lua: drives tests/faults/proxy.c, a line between two workers that can be broken.
--
--   local proxy = require("proxy").new(group.address)     -- forwards to that worker
--   group.address = proxy.address                         -- who joins now comes through it
--   proxy:cut("up", "CALL", 100)                          -- see the top of proxy.c
--   proxy:stat()["down.RESULT"]                           -- frames and bytes so far
--   proxy:finish()

local process = require "process"
local signal = require "posix.signal"
local unistd = require "posix.unistd"
local wait = require "posix.sys.wait"

local proxy = {}

local Proxy = {}
Proxy.__index = Proxy

local function program()
  return os.getenv "RLENGINE_FAULT_PROXY"
    or process.program():gsub("[^/]*$", "") .. "tests/fault_proxy"
end

local function line_of(self)
  while not self.text:find "\n" do
    local more = unistd.read(self.answers, 4096)
    if not more or more == "" then error("the fault proxy has ended", 3) end
    self.text = self.text .. more
  end
  local line, rest = self.text:match "^(.-)\n(.*)$"
  self.text = rest
  return line
end

--- Start one that forwards to `target`. `listen`: an address; default: a port of its own for
-- TCP, else the target's path with a number.
function proxy.new(target, listen)
  proxy.count = (proxy.count or 0) + 1
  listen = listen or (target:find "^tcp" and "tcp://127.0.0.1:0" or target .. proxy.count)
  local commands_out, commands = unistd.pipe()
  local answers, answers_in = unistd.pipe()
  io.stdout:flush()
  local pid = assert(unistd.fork())
  if pid == 0 then
    unistd.dup2(commands_out, 0)
    unistd.dup2(answers_in, 1)
    for fd = 3, 255 do unistd.close(fd) end
    unistd.execp(program(), { listen, target })
    unistd.write(2, "cannot run " .. program() .. "\n")
    unistd._exit(127)
  end
  unistd.close(commands_out)
  unistd.close(answers_in)
  local self = setmetatable({ pid = pid, commands = commands, answers = answers, text = "" }, Proxy)
  self.address = assert(line_of(self):match "^listening (.+)$")
  return self
end

--- A command as it is written in proxy.c; returns its answer.
function Proxy:tell(...)
  assert(unistd.write(self.commands, table.concat({ ... }, " ") .. "\n"))
  local line = line_of(self)
  if not line:find "^ok" then error("fault proxy: " .. line, 2) end
  return line
end

for _, verb in ipairs { "hold", "swallow", "release", "rate", "dribble", "delay", "cut", "flip",
  "drop", "reorder", "record", "replay", "refuse", "accept", "close", "reset", "clear" } do
  Proxy[verb] = function(self, ...) return self:tell(verb, ...) end
end

--- Counters: links, fired (what happened to single frames), up and down (bytes), and frames by
-- type: "up.CALL".
function Proxy:stat()
  local all = {}
  for key, value in self:tell("stat"):gmatch "([%w._]+)=(%d+)" do all[key] = tonumber(value) end
  return all
end

--- End it, and every connection through it.
function Proxy:finish()
  if not self.pid then return end
  unistd.close(self.commands)
  unistd.close(self.answers)
  signal.kill(self.pid, signal.SIGTERM)
  wait.wait(self.pid)
  self.pid = nil
end

return proxy
