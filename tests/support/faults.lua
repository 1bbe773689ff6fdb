--- faults.lua: tests that break something on purpose, with real processes.
--
--   local faults = require "faults"
--   it("F02: the future fails at once", faults.row(function(world)
--     local obs = world:start("obs_3", faults.SERVE)
--     local f = world:watch(rpc.rpc_async("obs_3", "sleep", 60))
--     local killed = obs:kill()
--     ...
--     world:logged('worker "obs_3" lost')
--   end))
--
-- The test process is the worker "trainer". What holds after every fault is checked when the
-- function has returned:
--   I1 each watched future was resolved, once, and no other one is open;
--   I2 references and device bytes are what they were;
--   I3 descriptors and threads are what they were;
--   I4 steps that were applied were acknowledged, none twice (world:steps);
--   I5 no process ended with a sanitizer's report;
--   I6 no line of the log was repeated within a second.
-- A test that takes longer than a minute is interrupted; then, and whenever one fails, everything
-- that is known of both sides is printed: open futures, calls, coroutines, tables, logs.

local rl = require "rlengine"
local core = require "rlengine.core"
local futures = require "rlengine.rpc.futures"
local process = require "process"
local workers = require "workers"
local fcntl = require "posix.fcntl"
local signal = require "posix.signal"
local stdlib = require "posix.stdlib"
local time = require "posix.time"
local unistd = require "posix.unistd"
local wait = require "posix.sys.wait"

local rpc = rl.rpc
local faults = {}

stdlib.setenv("RLENGINE_LOG_TIME", "1") -- here and in every process that is started

--- True when the counts of the fault matrix are wanted: RLE_FULL=1.
faults.full = (os.getenv "RLE_FULL" or "") == "1"

--- How often: `quick` in CI, `full` on demand.
function faults.count(quick, full)
  return faults.full and full or quick
end

--- Seconds of the clock that log lines are stamped with.
function faults.clock()
  local t = time.clock_gettime(time.CLOCK_REALTIME)
  return t.tv_sec + t.tv_nsec * 1e-9
end

--- The error that fn(...) raises.
function faults.fails(fn, ...)
  local ok, err = pcall(fn, ...)
  if ok then error("it did not fail", 2) end
  return err
end

--- Functions that many rows call.
faults.SERVE = [[
rpc.register("echo", function(...) return ... end)
rpc.register("sleep", function(s) rpc.sleep(s) return "slept" end)
rpc.register("busy", function(s)
  local t = require("posix.time")
  local function now() local v = t.clock_gettime(1) return v.tv_sec + v.tv_nsec * 1e-9 end
  local ends = now() + s
  while now() < ends do end
  return "done"
end)
]]

-- What every worker of a row can be asked, and how it keeps its steps: see World:steps.
local BOTH = [[
rpc.register("faults.dump", function() return rpc.dump() end)
rpc.register("faults.stop", function() rpc.shutdown() end)
local steps_file
function steps(episode, count)
  local unistd, fcntl = require "posix.unistd", require "posix.fcntl"
  local life = NAME .. "." .. unistd.getpid()
  steps_file = steps_file or fcntl.open(%q .. "/" .. life .. ".steps",
    fcntl.O_WRONLY + fcntl.O_CREAT + fcntl.O_APPEND, 384)
  for n = 1, count do
    local key = ("%%s episode %%s step %%d"):format(life, episode, n)
    rpc.rpc_sync("trainer", "faults.step", key)
    unistd.write(steps_file, key .. "\n")
  end
  return count
end
rpc.register("steps", steps)
]]

-- ---- standard error of this process -----------------------------------------

-- A copy of a descriptor out of the way, for this process alone.
local function aside(fd)
  local copy = fcntl.fcntl(fd, fcntl.F_DUPFD, 100)
  fcntl.fcntl(copy, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
  return copy
end

-- What is written to descriptor 2 goes into the file itself, so that a line is there as soon as
-- it was logged. A shell that hears of this process's end prints them, should that come early.
local function capture(path)
  local reading, writing = unistd.pipe()
  io.stdout:flush()
  local pid = assert(unistd.fork())
  if pid == 0 then
    unistd.dup2(reading, 0)
    for fd = 3, 255 do unistd.close(fd) end
    unistd.execp("sh", { "-c", 'trap "" INT; cat >/dev/null; [ -e "$1.ok" ] || cat "$1" >&2', "sh",
      path })
    unistd._exit(127)
  end
  unistd.close(reading)
  -- Workers that are started meanwhile must not hold the pipe open.
  local watched, kept = aside(writing), aside(2)
  unistd.close(writing)
  local file = assert(fcntl.open(path, fcntl.O_WRONLY + fcntl.O_CREAT + fcntl.O_APPEND, 384))
  unistd.dup2(file, 2)
  unistd.close(file)
  return function()
    process.write(path .. ".ok", "")
    unistd.dup2(kept, 2)
    unistd.close(kept)
    unistd.close(watched)
    wait.wait(pid)
  end
end

-- A process that interrupts this one when it takes too long.
local function start_guard(seconds)
  io.stdout:flush()
  local parent = unistd.getpid()
  local pid = assert(unistd.fork())
  if pid == 0 then
    for fd = 0, 255 do unistd.close(fd) end
    unistd.sleep(seconds)
    signal.kill(parent, signal.SIGINT)
    unistd._exit(0)
  end
  return function()
    signal.kill(pid, signal.SIGKILL)
    wait.wait(pid)
  end
end

-- ---- world ------------------------------------------------------------------

local World = {}
World.__index = World

--- Start a worker that joins this one and serves; see workers.lua. `through`: an address
-- (of a proxy) in place of this worker's own.
function World:start(name, body, more, through)
  local group = self.group
  local address = group.address
  group.address = through or address
  local worker = group:start(name, BOTH:format(group.folder) .. (body or ""),
    ("heartbeat = 0.3, timeout = %g, "):format(self.timeout) .. (more or ""))
  group.address = address
  return self:worker(worker)
end

--- A script of any content as another process.
function World:run(text, name)
  self.scripts = self.scripts + 1
  local path = ("%s/script%d.lua"):format(self.group.folder, self.scripts)
  process.write(path, text)
  return self:worker(self.group:run(path, name))
end

-- Signals with the time they were sent at.
function World:worker(worker)
  local kill = worker.kill
  function worker.kill(w, number)
    kill(w, number)
    return faults.clock()
  end
  function worker.stop(w) return w:kill(signal.SIGSTOP) end
  function worker.continue(w) return w:kill(signal.SIGCONT) end
  --- Lines it wrote, as {time = seconds or nil, text = }.
  function worker.lines(w) return faults.lines(w:output()) end
  --- When it first wrote that (plain) text; fails after `seconds` (15).
  function worker.said(w, text, seconds)
    return self:find(text, seconds, function() return w:output() end)
  end
  return worker
end

--- A breakable line to this worker; ended with the test.
function World:proxy(listen)
  local proxy = require("proxy").new(self.group.address, listen)
  self.proxies[#self.proxies + 1] = proxy
  return proxy
end

--- Wait until they have joined.
function World:join(...)
  rpc.wait_for({ ... }, { timeout = 30 })
end

--- Note a future whose one end is checked (I1); returns it. world.ends[future] is when.
function World:watch(future)
  local entry = { future = future }
  self.watched[#self.watched + 1] = entry
  futures.spawn(function()
    local ok, value = pcall(future.wait, future)
    entry.ends = (entry.ends or 0) + 1
    entry.ok, entry.value = ok, tostring(value)
    self.ends[future] = faults.clock()
  end)
  return future
end

--- Text into lines: {time = of the stamp, text = the rest}.
function faults.lines(text)
  local list = {}
  for line in text:gmatch "[^\n]+" do
    local stamp, rest = line:match "^(%d+%.%d%d%d%d%d%d)%s(.*)$"
    list[#list + 1] = { time = tonumber(stamp), text = rest or line }
  end
  return list
end

--- What this process logged so far.
function World:lines()
  local f = io.open(self.log, "rb")
  local text = f and f:read "*a" or ""
  if f then f:close() end
  return faults.lines(text)
end

function World:find(text, seconds, output)
  local found
  local ok = workers.eventually(function()
    for _, line in ipairs(output and faults.lines(output()) or self:lines()) do
      if line.text:find(text, 1, true) then
        found = line
        return true
      end
    end
  end, seconds or 15)
  if not ok then error("nobody wrote: " .. text, 3) end
  return found.time, found.text
end

--- Wait until this process has logged a line with that (plain) text; returns its time and the
-- line.
function World:logged(text, seconds)
  return self:find(text, seconds)
end

--- How often it was logged so far, or would have been: what comes again within a second is
-- counted, and said when it is over.
function World:count(text)
  local n = 0
  for _, line in ipairs(self:lines()) do
    if line.text:find(text, 1, true) then
      n = n + tonumber(line.text:match " %((%d+) times? more within a second%)$" or 1)
    end
  end
  return n
end

--- Lines with that text are of several events, and may come one upon the other (I6).
function World:allow(text)
  self.expected[#self.expected + 1] = text
end

--- So many events make so many lines with that text.
function World:events(text, count)
  self:allow(text)
  workers.eventually(function() return self:count(text) >= count end, 15)
  if self:count(text) ~= count then
    error(("I6: logged %d times, not %d: %s"):format(self:count(text), count, text), 2)
  end
end

World.eventually = function(_, ...) return workers.eventually(...) end

--- Steps of episodes: workers that run steps(episode, count) report each to this process and
-- note that it was acknowledged, so that it survives them. Returns how many were applied,
-- acknowledged, and applied by processes that could not hear of it any more; checked with I4.
function World:steps()
  local acknowledged = {}
  local files = io.popen(("cat %s/*.steps 2>/dev/null"):format(self.group.folder))
  local acked = 0
  for line in files:lines() do
    acknowledged[line] = (acknowledged[line] or 0) + 1
    acked = acked + 1
  end
  files:close()
  local applied, unheard = 0, 0
  for key, times in pairs(self.applied) do
    applied = applied + times
    if times > 1 then error("I4: step " .. key .. " was applied " .. times .. " times", 0) end
    if not acknowledged[key] then unheard = unheard + 1 end
  end
  for key, times in pairs(acknowledged) do
    if not self.applied[key] then error("I4: step " .. key .. " was lost", 0) end
    if times > 1 then error("I4: step " .. key .. " was acknowledged twice", 0) end
  end
  return applied, acked, unheard
end

-- ---- what is known when a test fails ----------------------------------------

local function ask(worker, what)
  local to = rpc.to(worker.name):rpc_sync { timeout = 1 }
  return to[what](to)
end

function World:dump()
  local parts = { "---- this process\n", core.rpc.active() and rpc.dump() or "no worker", "\n" }
  local function add(...) parts[#parts + 1] = table.concat { ... } end
  for _, line in ipairs(self:lines()) do add("  log ", line.time or "", " ", line.text, "\n") end
  for _, worker in ipairs(self.group and self.group.workers or {}) do
    add("---- ", worker.name, ", process ", worker.pid, worker.over and " (ended)" or "", "\n")
    if core.rpc.active() and not worker.over then
      local ok, text = pcall(ask, worker, "faults.dump")
      add(ok and text or ("cannot be asked: " .. tostring(text)), "\n")
    end
    add(worker:output())
  end
  return table.concat(parts)
end

-- ---- invariants -------------------------------------------------------------

local function refs()
  local list = {}
  for _, entry in ipairs(rpc.refs()) do
    list[#list + 1] = ("%d %s %d"):format(entry.object, entry.holder, entry.count)
  end
  return table.concat(list, ", ")
end

-- What a finished function leaves on the stack keeps alive what it points to until it is
-- written over.
local function scrub(depth)
  local a, b, c, d, e, f, g, h = nil, nil, nil, nil, nil, nil, nil, nil
  if depth > 0 then scrub(depth - 1) end
  return a, b, c, d, e, f, g, h
end
if jit then jit.off(scrub) end -- luacheck: ignore

local function settled(name, what, before, now, more)
  local value
  local ok = workers.eventually(function()
    scrub(40)
    collectgarbage()
    value = now()
    if more then return value <= before end
    return value == before
  end, 10)
  if not ok then
    error(("%s: %s: %s before, %s now"):format(name, what, tostring(before), tostring(value)), 0)
  end
end

local function check_log(lines, expected)
  local last = {}
  for _, line in ipairs(lines) do
    local before = last[line.text]
    for _, text in ipairs(expected) do
      if line.text:find(text, 1, true) then before = nil end
    end
    if line.time and before and line.time - before < 1 then
      error(("I6: logged twice within a second: %s"):format(line.text), 0)
    end
    last[line.text] = line.time
  end
end

local REPORTS = { "ERROR: AddressSanitizer", "ERROR: LeakSanitizer", "runtime error:",
  "WARNING: ThreadSanitizer" }

local function check_reports(text, who)
  for _, mark in ipairs(REPORTS) do
    if text:find(mark, 1, true) then error("I5: " .. who .. ":\n" .. text, 0) end
  end
end

local function check_watched(i, entry)
  settled("I1", ("ends of watched future %d"):format(i), 1, function()
    return entry.ends or 0
  end)
  local ok, value = pcall(entry.future.wait, entry.future)
  if ok ~= entry.ok or tostring(value) ~= entry.value then
    error(("I1: future %d ended twice: %s, then %s"):format(i, entry.value, tostring(value)), 0)
  end
end
if jit then jit.off(check_watched) end -- luacheck: ignore

function World:check()
  for i = 1, #self.watched do check_watched(i, self.watched[i]) end
  self.watched, self.ends = {}, {}
  for _, worker in ipairs(self.group.workers) do
    local info = not worker.over and rpc.worker_info(worker.name)
    if info and info.connected and pcall(ask, worker, "faults.stop") then
      workers.eventually(function() return worker:poll() end)
    end
    if not worker:poll() then
      worker:kill(signal.SIGKILL)
      worker:join()
    end
  end
  self:steps()
  for _, proxy in ipairs(self.proxies) do proxy:finish() end
  settled("I1", "open futures", 0, function() return rpc.counters().futures end)
  settled("I1", "calls served", 0, function() return rpc.counters().calls end)
  settled("I2", "references", self.base.refs, refs)
  settled("I2", "device bytes", self.base.device, rl.memory.allocated, true)
  settled("I3", "descriptors", self.base.fds, function() return workers.held().fds end, true)
  settled("I3", "threads", self.base.threads, function() return workers.held().threads end, true)
  check_log(self:lines(), self.expected)
  for _, worker in ipairs(self.group.workers) do
    check_reports(worker:output(), worker.name)
    check_log(worker:lines(), self.expected)
  end
end

-- ---- rows -------------------------------------------------------------------

--- A test's function: body(world), then the invariants.
-- @param options of rpc.init for this process (heartbeat 0.3, timeout 5 unless given; the
--   latter for every worker);
--   seconds: until it is interrupted (60); ten times as long in full form
function faults.row(body, options)
  return function()
    local init = { name = "trainer", heartbeat = 0.3, timeout = 5 }
    local seconds = faults.count(60, 600)
    for key, value in pairs(options or {}) do
      if key == "seconds" then
        seconds = faults.count(value, 10 * value)
      else
        init[key] = value
      end
    end
    local world = setmetatable({ watched = {}, ends = {}, proxies = {}, applied = {},
      expected = {}, scripts = 0, timeout = init.timeout }, World)
    local folder = process.folder()
    world.log = folder .. "/log"
    process.write(world.log, "")
    local restore = capture(world.log)
    local quiet = start_guard(seconds)
    local ok, err = xpcall(function()
      world.group = workers.group(init)
      rpc.register("faults.step", function(key)
        world.applied[key] = (world.applied[key] or 0) + 1
      end)
      local held = workers.held()
      world.base = { fds = held.fds, threads = held.threads, refs = refs(),
        device = rl.memory.allocated() }
      body(world)
      world:check()
    end, function(e)
      if core.error.is(e) or type(e) == "table" then return e end
      return debug.traceback(tostring(e), 2)
    end)
    local dump
    if not ok then
      local dumped, text = pcall(world.dump, world)
      dump = text
      if not dumped then dump = "no dump: " .. tostring(text) end
      for _, worker in ipairs(world.group and world.group.workers or {}) do
        if not worker.over then
          worker:kill(signal.SIGKILL)
          worker:join()
        end
      end
      for _, proxy in ipairs(world.proxies) do proxy:finish() end
    end
    local finished, why = true, nil
    if world.group then
      finished, why = pcall(world.group.finish, world.group, { blocks = true })
    end
    quiet()
    restore()
    check_reports(process.read(world.log), "this process")
    process.remove(folder)
    if dump then io.stderr:write(dump, "\n") end
    if not ok then error(err, 0) end
    if not finished then error("I3: " .. tostring(why), 0) end
  end
end

return faults
