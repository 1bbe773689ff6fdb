--- Start the trainers and observers of a script on this machine.
--
--   rl.launch {
--     trainers = 1, observers_per_trainer = 2, args = rl.args{ ... },
--     trainer  = function(ctx) ... end,
--     observer = function(ctx) ... end,   -- default: serve calls until the trainer is done
--   }
--
-- The process the user started becomes the launcher. It starts every trainer and observer as
-- the same program with the same arguments, so the script runs once in each process up to
-- this call. There rl.launch calls the function of the process's role and ends the process;
-- only in the launcher does it return, when the run has ended well, and what follows it in
-- the script runs once.
--
-- Names are agent_{rank} and obs_{i}_for_{rank}, both from 0. ctx has
--   role, name, rank    "trainer" or "observer"; rank: trainers from 0, observers after them
--   index               of an observer among those of its trainer, from 0
--   trainer             name of an observer's trainer
--   observers           names of a trainer's observers
--   trainers, observers_per_trainer, args, folder (private, gone after the run)
--   restart             of a trainer, see below
--
-- A trainer's function begins when its observers have joined, while theirs begin at once. What they
-- call of the trainer meanwhile waits (within the call's deadline) until the trainer's function
-- waits or serves for the first time. So what that registers before it waits is there for them.
--
-- The run ends well when every trainer's function has returned (or every observer's, where
-- one was given): the others are asked to end with SIGTERM, which interrupts a script at its
-- next call into the engine (error CANCELLED), and killed after `grace` seconds (0.6). It
-- fails when a process raises, ends with another exit code or dies, but for observers, as told
-- below: the launcher says which and why, ends the others likewise and exits with the first
-- failure's exit code (128 + signal for one that died; a process that raises UNAVAILABLE ends
-- with 69 and counts only when nothing else explains that). Ctrl-C and SIGTERM to the launcher
-- end all. If the launcher itself is killed, the kernel kills them.
--
-- An observer that has joined its trainer and then dies or fails is started again: after half a
-- second, after a failure soon after that in twice the time, and so on. One that fails six times
-- within a minute is given up; the run fails when a trainer has none left, or when it ends
-- because it lost one (rl.episode goes on with the others). restarts = {max = 5, within = 60,
-- backoff = 0.5} says so in seconds; restarts = 10 alone is max, restarts = false ends the run
-- with the first failure. ctx:restart(name, reason) kills an observer that is of no use any more,
-- so that it is started again; rl.episode does so with one that hangs.
--
-- Output: a single trainer has the terminal to itself; lines of all others begin with
-- "name | ". prefix = true or false says so for all.
--
-- Further options: grace, restarts, prefix, exit (false: raise an error object with `exit_code`
-- instead of ending the launcher), rpc (table of options for rpc.init in every process, but for
-- names, addresses and the token, which are rl.launch's).

local core = require "rlengine.core"
local options = require "rlengine.options"

local known = {
  trainers = "number", observers_per_trainer = "number", args = "table", trainer = "function",
  observer = "function", prefix = "boolean", grace = "number", exit = "boolean", rpc = "table",
  restarts = "table|number|boolean",
}

-- Exit code of a process that ends because another one was lost: the launcher then looks for
-- the cause (engine/base/supervisor.h).
local LOST_PEER = 69

-- How often the script has come to rl.launch, and whether this process is inside it.
local calls, inside = 0, false

-- ---- the handoff: one line per field, values without newlines ----

local function write_handoff(fields)
  local lines = {}
  for key, value in pairs(fields) do lines[#lines + 1] = ("%s=%s"):format(key, value) end
  return table.concat(lines, "\n")
end

local function read_handoff(text)
  local fields = {}
  for key, value in text:gmatch("([%w_]+)=([^\n]*)") do fields[key] = tonumber(value) or value end
  return fields
end

local function to_hex(bytes)
  return "x" .. bytes:gsub(".", function(c) return ("%02x"):format(c:byte()) end)
end

-- Options of restarts, with what is not given filled in; max = 0: none.
local function restarts_of(given)
  if given == false then return { max = 0, within = 1, backoff = 0 } end
  if type(given) == "number" then given = { max = given } end
  local r = options.check("rl.launch, restarts", type(given) == "table" and given or nil,
    { max = "number", within = "number", backoff = "number" })
  r = { max = r.max or 5, within = r.within or 60, backoff = r.backoff or 0.5 }
  if r.max ~= math.floor(r.max) or r.max < 0 or r.max > 1000 then
    options.fail("INVALID_ARGUMENT", "rl.launch: restarts must be a whole number from 0 to 1000, "
      .. "got %s", tostring(r.max))
  end
  if not (r.within > 0 and r.within < 1e9 and r.backoff >= 0 and r.backoff < 1e9) then
    options.fail("INVALID_ARGUMENT", "rl.launch: restarts: within and backoff are numbers of "
      .. "seconds")
  end
  return r
end

local function agent_name(rank) return ("agent_%d"):format(rank) end

local function address_of(folder, rank)
  return ("unix:%s/%s.sock"):format(folder, agent_name(rank))
end

local function joined_mark(folder, name) return ("%s/%s.joined"):format(folder, name) end
local function requests_of(folder) return folder .. "/requests" end

local function observer_name(i, rank) return ("obs_%d_for_%d"):format(i, rank) end

-- ---- in a started process ----

local Context = {}
Context.__index = Context

--- Kill one of this trainer's observers; it is started again like one that died. The reason is
-- said: `observer "obs_0_for_0" killed: REASON; restart 1 of 5 in 0.5 s`.
function Context:restart(name, reason)
  local mine
  for _, each in ipairs(self.observers or {}) do mine = mine or each == name end
  if not mine then
    options.fail("NOT_FOUND", '"%s" has no observer "%s"', self.name, tostring(name))
  end
  if not self.restarts then
    options.fail("FAILED_PRECONDITION", "rl.launch was told to start nobody again (restarts)")
  end
  core.launch.ask_kill(requests_of(self.folder), name,
    (tostring(reason or "its trainer asked for it"):gsub("%c", " ")))
end

local function context(hand, options_given)
  local ctx = setmetatable({
    role = hand.role, name = hand.name, rank = hand.rank, trainers = hand.trainers,
    observers_per_trainer = hand.observers_per_trainer, folder = hand.folder,
    args = options_given.args or {}, restarts = restarts_of(options_given.restarts).max > 0,
  }, Context)
  if hand.role == "trainer" then
    ctx.observers = {}
    for i = 0, hand.observers_per_trainer - 1 do
      ctx.observers[i + 1] = observer_name(i, hand.rank)
    end
  else
    ctx.index, ctx.trainer = hand.index, agent_name(hand.trainer_rank)
  end
  return ctx
end

local function join(hand, given)
  local rpc = require "rlengine.rpc"
  local init = {}
  -- What is said of the options is said once, by the first trainer.
  for key, value in pairs(rpc._without_threads(given.rpc or {}, hand.rank > 0)) do
    init[key] = value
  end
  init.name, init.token = hand.name, hand.token
  local address = address_of(hand.folder, hand.trainer_rank)
  init[hand.role == "trainer" and "listen" or "connect"] = address
  rpc.init(init)
  if hand.role == "trainer" then
    local team = require "rlengine.team"
    team.names, team.addresses = {}, {}
    for rank = 0, hand.trainers - 1 do
      team.names[rank + 1] = agent_name(rank)
      team.addresses[agent_name(rank)] = address_of(hand.folder, rank)
    end
  end
  return rpc
end

-- A trainer begins when its observers are there, or have been: what it says to them first then
-- takes no longer than anything later.
local function wait_for_observers(rpc, ctx)
  if ctx.observers then rpc._wait_for_start(ctx.observers) end
end

-- Serve until the trainer is done. That it was lost is not this process's failure, and the log
-- has said so.
local function serve_until_done(rpc)
  local ok, err = pcall(rpc.serve)
  if ok then return end
  if core.error.is(err) and err.code == "UNAVAILABLE" then os.exit(LOST_PEER, true) end
  error(err, 0)
end

-- What a failed function leaves on standard error: where, what and the way there.
local function describe(err)
  if not core.error.is(err) then return { text = debug.traceback(tostring(err), 2), code = 1 } end
  local where = err.where and err.where ~= "?" and err.where .. ": " or ""
  return {
    text = ("%s%s\n%s"):format(where, tostring(err), err.traceback or ""),
    code = core.error.exit_code(err),
  }
end

local function run_member(hand, given)
  inside = true
  core.launch.name(hand.name)
  core.launch.obey()
  core.launch.mark(("%s/%s.started"):format(hand.folder, hand.name))
  core.device.rank(hand.trainer_rank)
  local ok, failure = xpcall(function()
    local rpc = join(hand, given)
    local ctx = context(hand, given)
    if hand.role == "observer" then core.launch.mark(joined_mark(hand.folder, hand.name)) end
    wait_for_observers(rpc, ctx)
    if hand.role == "trainer" and ctx.restarts then
      require("rlengine.observers").restart = function(name, why) ctx:restart(name, why) end
    end
    if given[hand.role] then given[hand.role](ctx) else serve_until_done(rpc) end
    rpc.shutdown()
  end, describe)
  io.stdout:flush()
  if not ok then
    local stopped = core.launch.stop_requested()
    if not stopped then io.stderr:write((failure.text:gsub("%s*$", "")), "\n") end
    -- A trainer's observers need not look for it.
    if hand.role == "trainer" then pcall(require("rlengine.rpc").shutdown, { timeout = 0 }) end
    if stopped then core.launch.die(15) end
    os.exit(failure.code, true)
  end
  os.exit(0, true)
end

-- ---- in the launcher ----

local function members(given, folder, token, call)
  local list, starts = {}, {}
  local trainers, observers = given.trainers or 1, given.observers_per_trainer or 1
  local function add(role, name, fields, prefix)
    fields.role, fields.name, fields.call = role, name, call
    fields.trainers, fields.observers_per_trainer = trainers, observers
    fields.folder, fields.token = folder, token
    if given.prefix ~= nil then prefix = given.prefix end
    list[#list + 1] = {
      name = name, role = role, handoff = write_handoff(fields), primary = role == "trainer",
      prefix = prefix, keep_stdin = role == "trainer" and trainers == 1,
      team = fields.trainer_rank, joined = role == "observer" and joined_mark(folder, name) or nil,
    }
    if role == "trainer" then starts[name] = ("%s/%s.started"):format(folder, name) end
  end
  for rank = 0, trainers - 1 do
    add("trainer", agent_name(rank), { rank = rank, trainer_rank = rank }, trainers > 1)
  end
  for rank = 0, trainers - 1 do
    for i = 0, observers - 1 do
      add("observer", observer_name(i, rank),
        { rank = trainers + rank * observers + i, trainer_rank = rank, index = i }, true)
    end
  end
  return list, starts
end

local function run_in(folder, given, program)
  local list, starts = members(given, folder, to_hex(core.launch.token()), calls)
  local restarts = restarts_of(given.restarts)
  local result = core.launch.run {
    command = program.command, source = program.source, members = list,
    grace = given.grace or 0.6, secondaries_finish = given.observer ~= nil,
    restarts = restarts.max, within = restarts.within, backoff = restarts.backoff,
    requests = restarts.max > 0 and requests_of(folder) or nil,
  }
  if result.exit_code == 0 then
    for name, mark in pairs(starts) do
      if not core.launch.marked(mark) then
        -- It "ended well" without having done anything.
        result = { exit_code = 1, failed = 1, message = ('trainer "%s" ended before it came to '
          .. "this rl.launch: the script must reach it whenever it is started with the same "
          .. "arguments, and come from a file, -e or the standard input of rlengine"):format(name) }
      end
    end
  end
  return result, list
end

local function run_group(given, program)
  calls = calls + 1
  local folder, lock = core.launch.folder()
  local ok, result, list = pcall(run_in, folder, given, program)
  -- Ctrl-C may come just here, too.
  local removed, interrupted = pcall(core.launch.remove_folder, folder, lock)
  if not removed then
    core.launch.remove_folder(folder, lock)
    ok, result = false, interrupted
  end
  if not ok then error(result, 0) end
  return result, list
end

local function finish(given, result, list)
  if result.exit_code == 0 then return end
  if given.exit == false then
    local failed = result.failed and list[result.failed]
    error(core.error.new {
      code = result.signal and "CANCELLED" or "ABORTED", message = result.message,
      exit_code = result.exit_code, worker = failed and failed.name,
    }, 0)
  end
  io.stdout:flush()
  if result.signal then core.launch.die(result.signal) end
  io.stderr:write("rlengine: ", result.message, "\n")
  os.exit(result.exit_code, true)
end

local function whole(given, key, low)
  local n = given[key]
  if n ~= nil and (n ~= math.floor(n) or n < low or n > 100000) then
    options.fail("INVALID_ARGUMENT", "rl.launch: %s must be a whole number from %d, got %s", key,
      low, tostring(n))
  end
end

-- What rl.launch decides itself for each process, and what to do who wants it otherwise.
local own = {
  name = "names are given to each process: trainers are agent_0 and so on, observers obs_0_for_0; "
    .. "ctx.name has its own",
  listen = "each trainer listens at an address of the run's own; workers beyond this machine are "
    .. "started without rl.launch, with rpc.init{name =, listen =} and {name =, connect =}",
  connect = "each observer connects to its trainer; to call another worker as well, start the "
    .. "processes without rl.launch, with rpc.init{name =, connect = list of addresses}",
  token = "each run has a token of its own, which nobody else knows; workers that are started "
    .. "without rl.launch take one from rpc.init{token =}, token_fd or token_file",
}
own.token_fd, own.token_file = own.token, own.token

local function check_rpc(given)
  for key, why in pairs(own) do
    if given[key] ~= nil then
      options.fail("INVALID_ARGUMENT", 'rl.launch, rpc: option "%s" cannot be given: %s', key, why)
    end
  end
end

return function(given)
  options.check("rl.launch", given, known)
  if type(given) ~= "table" or not given.trainer then
    options.fail("INVALID_ARGUMENT", "rl.launch: the option trainer, a function, is missing")
  end
  whole(given, "trainers", 1)
  whole(given, "observers_per_trainer", 0)
  restarts_of(given.restarts)
  if given.grace and not (given.grace >= 0 and given.grace <= 3600) then
    options.fail("INVALID_ARGUMENT", "rl.launch: grace must be a number of seconds from 0 to 3600, "
      .. "got %s", tostring(given.grace))
  end
  check_rpc(given.rpc or {})
  if inside then
    options.fail("FAILED_PRECONDITION", "rl.launch: this process was itself started by rl.launch")
  end
  local text = core.launch.handoff()
  if text then
    local hand = read_handoff(text)
    calls = calls + 1
    -- An earlier rl.launch of the same script: its run is over.
    if calls < hand.call then return end
    run_member(hand, given)
  end
  local program = core.launch.program()
  if program.prompt then
    options.fail("FAILED_PRECONDITION", "rl.launch starts a script again in every process; "
      .. "what was typed at the prompt is none: put it in a file and run that with rlengine")
  end
  finish(given, run_group(given, program))
end
