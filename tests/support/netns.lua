--- netns.lua: a network of its own for some processes, to be broken from outside.
--
--   local net, why = require("netns").new()
--   if not net then pending(why) return end
--   world.group:run(script, "trainer", nil, net:wrapper(folder .. "/in-net"))
--   net:check "ip link set lo down"
--   net:finish()

local process = require "process"
local signal = require "posix.signal"
local unistd = require "posix.unistd"
local wait = require "posix.sys.wait"

local netns = {}

local Net = {}
Net.__index = Net

local function number_of(pid)
  return unistd.readlink(("/proc/%s/ns/net"):format(pid))
end

--- A network with a loopback that is up; or nil and what is missing.
function netns.new()
  for _, program in ipairs { "unshare", "nsenter", "ip" } do
    if process.run({ "sh", "-c", "command -v " .. program }).code ~= 0 then
      return nil, "needs the program " .. program
    end
  end
  local try = process.run { "unshare", "-n", "true" }
  if try.code ~= 0 then
    return nil, "needs CAP_NET_ADMIN, for a network namespace: " .. try.err:gsub("%s+$", "")
  end
  io.stdout:flush()
  local pid = assert(unistd.fork())
  if pid == 0 then
    for fd = 0, 255 do unistd.close(fd) end
    unistd.execp("unshare", { "-n", "sleep", "2000" })
    unistd._exit(127)
  end
  local self = setmetatable({ pid = pid }, Net)
  for _ = 1, 500 do
    if number_of(pid) and number_of(pid) ~= number_of "self" then break end
    os.execute "sleep 0.01"
  end
  self:check "ip link set lo up"
  return self
end

--- Run a shell command in there; returns what process.run does.
function Net:sh(command)
  return process.run { "nsenter", "-t", tostring(self.pid), "-n", "--", "sh", "-c", command }
end

function Net:check(command)
  local r = self:sh(command)
  if r.code ~= 0 then error(command .. ": " .. r.err, 2) end
end

--- Writes a program that runs rlengine in there with its arguments; returns its path.
function Net:wrapper(path)
  process.write(path, ('#!/bin/sh\nexec nsenter -t %d -n -- %s "$@"\n'):format(self.pid,
    process.program()))
  process.check { "chmod", "+x", path }
  return path
end

--- End it; does nothing the second time.
function Net:finish()
  if not self.pid then return end
  signal.kill(self.pid, signal.SIGKILL)
  wait.wait(self.pid)
  self.pid = nil
end

return netns
