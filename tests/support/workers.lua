--- workers.lua: the test process as a worker, and further workers as processes beside it.
--
--   local workers = require "workers"
--   local group = workers.group()                 -- rpc.init as "test", on a Unix socket
--   local obs = group:start("obs_1", [[rpc.register("f", function() return 1 end)]])
--   ...
--   group:finish()                                -- stops all, checks what was left behind

local rl = require "rlengine"
local core = require "rlengine.core"
local process = require "process"
local signal = require "posix.signal"
local dirent = require "posix.dirent"
local fcntl = require "posix.fcntl"
local stdlib = require "posix.stdlib"
local unistd = require "posix.unistd"
local wait = require "posix.sys.wait"

local rpc = rl.rpc
local workers = {}

-- Groups that are not finished: a test that fails does not come to its group:finish().
local unfinished = {}

-- In a new process: it dies with this one, however that ends.
local function die_with_parent()
  if not jit then return end -- luacheck: ignore
  local ffi = require "ffi"
  pcall(ffi.cdef, "int prctl(int option, unsigned long argument);")
  ffi.C.prctl(1, signal.SIGKILL) -- PR_SET_PDEATHSIG
end

do -- what the first tensor and the first noted script line allocate for good
  local t = rl.zeros(1)
  t:free()
end

workers.token = ("0123456789abcdef"):rep(2)

local function count_entries(folder)
  return #dirent.dir(folder)
end

--- What this process holds: descriptors, threads, bytes and blocks of the engine.
function workers.held()
  collectgarbage()
  collectgarbage()
  local bytes, blocks, lines = core.host_memory()
  blocks = blocks - lines
  return {
    fds = count_entries "/proc/self/fd",
    threads = count_entries "/proc/self/task",
    bytes = bytes, blocks = blocks,
  }
end

local Worker = {}
Worker.__index = Worker

--- Send a signal: worker:kill(signal.SIGKILL).
function Worker:kill(number)
  signal.kill(self.pid, number or signal.SIGKILL)
end

--- Wait for its end; returns the exit code, or nil and the signal.
function Worker:join()
  if not self.over then
    local _, reason, code = wait.wait(self.pid)
    self.over = { reason == "exited" and code or nil, reason ~= "exited" and code or nil }
  end
  return self.over[1], self.over[2]
end

--- As join, without waiting: false while it runs.
function Worker:poll()
  if not self.over then
    local pid, reason, code = wait.wait(self.pid, wait.WNOHANG)
    if pid ~= self.pid or reason == "running" then return false end
    self.over = { reason == "exited" and code or nil, reason ~= "exited" and code or nil }
  end
  return true
end

--- What it printed so far.
function Worker:output()
  local f = io.open(self.path, "rb")
  if not f then return "" end
  local text = f:read "*a"
  f:close()
  return text
end

local Group = {}
Group.__index = Group

local PRELUDE = [[
local rl = require "rlengine"
local rpc = rl.rpc
local NAME, ADDRESS, TOKEN = %q, %q, %q
local options = { name = NAME, connect = ADDRESS, token = TOKEN, %s }
%s
rpc.init(options)
rpc.serve()
]]

--- Start a worker that connects here and serves. `body` declares what it exports.
-- @param more text of further options for rpc.init
function Group:start(name, body, more)
  self.count = self.count + 1
  local path = ("%s/%d-%s"):format(self.folder, self.count, name)
  process.write(path .. ".lua", PRELUDE:format(name, self.address, workers.token, more or "",
    body or ""))
  return self:run(path .. ".lua", name)
end

--- Start a script of any content, with `program` (the one under test).
function Group:run(script, name, arguments, program)
  local path = script .. ".out"
  io.stdout:flush()
  local pid = assert(unistd.fork())
  if pid == 0 then
    local out = fcntl.open(path, fcntl.O_WRONLY + fcntl.O_CREAT + fcntl.O_TRUNC, 384)
    unistd.dup2(out, 1)
    unistd.dup2(out, 2)
    local null = fcntl.open("/dev/null", fcntl.O_RDONLY)
    unistd.dup2(null, 0)
    for fd = 3, 40 do unistd.close(fd) end
    die_with_parent()
    local args = { script }
    for _, a in ipairs(arguments or {}) do args[#args + 1] = a end
    unistd.execp(program or process.program(), args)
    unistd._exit(127)
  end
  local worker = setmetatable({ pid = pid, path = path, name = name }, Worker)
  self.workers[#self.workers + 1] = worker
  return worker
end

-- End all its processes, whatever they do.
local function kill_all(group)
  for _, worker in ipairs(group.workers) do
    if not worker.over then
      worker:kill(signal.SIGKILL)
      worker:join()
    end
  end
end

--- Stop being a worker, end the others, and check that nothing of it is left.
-- @param allow {blocks = true}: what need not be as before
function Group:finish(allow)
  unfinished[self] = nil
  rpc.shutdown { timeout = 2 }
  for _, worker in ipairs(self.workers) do
    if not worker.over then
      -- They end by themselves when this one says goodbye; who does not is stopped.
      for _ = 1, 200 do
        if worker:poll() then break end
        os.execute "sleep 0.01"
      end
      worker:poll()
    end
  end
  kill_all(self)
  process.remove(self.folder)
  local now = workers.held()
  for _, key in ipairs { "fds", "threads", "blocks" } do
    local before = self.before[key]
    if now[key] > before and not (allow and allow[key]) then
      error(("%s: %d before, %d now"):format(key, before, now[key]), 2)
    end
  end
end

--- Become the worker "test". Options: further ones for rpc.init.
function workers.group(options)
  rpc.shutdown { timeout = 0 }
  for group in pairs(unfinished) do
    unfinished[group] = nil
    kill_all(group)
    process.remove(group.folder)
  end
  local group = setmetatable({
    before = workers.held(), folder = process.folder(), workers = {}, count = 0,
  }, Group)
  unfinished[group] = true
  local all = {
    name = "test", listen = "unix:" .. group.folder .. "/test.sock", token = workers.token,
  }
  for key, value in pairs(options or {}) do all[key] = value end
  group.addresses = rpc.init(all)
  group.address = group.addresses[1]
  return group
end

--- Run the loop until condition() holds; false after `seconds` (10).
function workers.eventually(condition, seconds)
  for _ = 1, (seconds or 10) * 200 do
    if condition() then return true end
    rpc.sleep(0.005)
  end
  return false
end

--- Seconds of a clock that never goes back.
function workers.now()
  local t = require("posix.time").clock_gettime(1)
  return t.tv_sec + t.tv_nsec * 1e-9
end

--- Environment variables for this process, restored by the returned function.
function workers.setenv(values)
  local before = {}
  for key, value in pairs(values) do
    before[key] = os.getenv(key) or false
    stdlib.setenv(key, value)
  end
  return function()
    for key, value in pairs(before) do stdlib.setenv(key, value or nil) end
  end
end

return workers
