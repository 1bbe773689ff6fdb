--- Runs a script of scripts/ with a probe in every process: after episode 2, 3/4 of them and
-- the last one, the trainer and each observer print what they hold, one line each:
--
--   probe agent_0 2 device=3592 tensors=4 host=81920 fds=9 threads=2 ... resident=9437184
--
-- arg: the script, the number of episodes, then the script's own arguments.

local rl = require "rlengine"
local core = require "rlengine.core"
local rpc = rl.rpc

local script, episodes = arg[1], tonumber(arg[2])
local words = { [0] = script, "--episodes=" .. episodes }
for i = 3, #arg do words[#words + 1] = arg[i] end
arg = words -- luacheck: ignore

local wanted = { [2] = true, [math.floor(episodes / 4)] = true, [math.floor(episodes / 2)] = true,
  [math.floor(episodes * 3 / 4)] = true, [episodes] = true }

local function probe(episode)
  if not wanted[episode] then return end
  collectgarbage()
  collectgarbage()
  local counters, usage = rpc.counters(), core.launch.usage()
  local line = {
    "probe", rpc.worker_info().name, episode, "device=" .. rl.memory.allocated(),
    "tensors=" .. rl.memory.stats().tensors, "host=" .. core.host_memory(),
    "fds=" .. usage.descriptors, "threads=" .. usage.threads, "refs=" .. #rpc.refs(),
    "futures=" .. counters.futures, "calls=" .. counters.calls, "objects=" .. counters.objects,
    "timers=" .. counters.timers, "resident=" .. usage.resident,
  }
  io.stdout:write(table.concat(line, " "), "\n")
end

-- Observers: at the start of an episode, when the one before is over.
local class = rpc.class
function rpc.class(name, methods, options)
  local made = class(name, methods, options)
  if name ~= "Observer" then return made end
  local count = 0
  return setmetatable({}, {
    __index = made,
    __newindex = function(_, key, method)
      if key ~= "run_episode" then
        made[key] = method
        return
      end
      made[key] = function(...)
        count = count + 1
        probe(count)
        return method(...)
      end
    end,
  })
end

-- The trainer: after every episode.
local episode = 0
local wait_all = rpc.wait_all
function rpc.wait_all(...)
  local results = wait_all(...)
  episode = episode + 1
  return results
end
local policy = rl.cleanup.per_episode
function rl.cleanup.per_episode(...)
  local made = policy(...)
  local decide = made.decide
  made.decide = function(stats)
    local freed = decide(stats)
    probe(episode)
    return freed
  end
  return made
end
dofile(script)
