--- bench_start.lua: how long the program takes to start, and how much memory.
--   build/rlengine tests/bench/bench_start.lua
-- Prints the best of many starts of `rlengine -e ''` and of `luajit -e ''`, taken in turns,
-- and their ratio; the peak of resident memory of each as the kernel reports it.

package.path = "tests/support/?.lua;" .. package.path
local process = require "process"
local unistd = require "posix.unistd"
local wait = require "posix.sys.wait"
local clock = require "posix.time"

local ROUNDS = 200

local function now()
  local t = clock.clock_gettime(clock.CLOCK_MONOTONIC)
  return t.tv_sec * 1e3 + t.tv_nsec / 1e6
end

--- Milliseconds from fork to the end of the process.
local function start(argv)
  local began = now()
  local pid = assert(unistd.fork())
  if pid == 0 then
    unistd.execp(argv[1], { unpack(argv, 2) })
    unistd._exit(127)
  end
  local _, reason, code = wait.wait(pid)
  assert(reason == "exited" and code == 0, argv[1])
  return now() - began
end

local function peak_megabytes(program, chunk)
  local ask = [[ local status = io.open "/proc/self/status":read "*a"
    io.write(status:match "VmHWM:%s+(%d+)") ]]
  return tonumber(process.check { program, "-e", chunk .. ask }) / 1024
end

local cases = {
  { "luajit -e ''", { "luajit", "-e", "" } },
  { "rlengine -e ''", { process.program(), "-e", "" } },
  { "rlengine -e 'require \"rlengine\"'", { process.program(), "-e", "require 'rlengine'" } },
}
for _ = 1, ROUNDS do
  for _, case in ipairs(cases) do
    case.best = math.min(case.best or math.huge, start(case[2]))
  end
end
for _, case in ipairs(cases) do
  print(("%-36s %5.2f ms  %4.2f x luajit  %4.1f MB"):format(case[1], case.best,
    case.best / cases[1].best, peak_megabytes(case[2][1], case[2][3])))
end
