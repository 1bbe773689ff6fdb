--- comm_lua.lua: seconds of an all_reduce among trainers of one machine.
--
--   build/rlengine tests/bench/comm_lua.lua [--ranks=2] [--seconds=2] [--elements="1 4194304"]
--
-- Prints, for so many elements of f32, their number and the seconds each took: the best of three
-- rounds.

local rl = require "rlengine"
local time = require "posix.time"

local function now()
  local t = time.clock_gettime(1)
  return t.tv_sec + t.tv_nsec * 1e-9
end

local args = rl.args { ranks = { 2 }, seconds = { 2 },
  elements = { "1 16384 4194304" } }

rl.launch {
  trainers = args.ranks, observers_per_trainer = 0, prefix = false,
  trainer = function(ctx)
    local group = rl.comm.group()
    for elements in args.elements:gmatch "%d+" do
      elements = tonumber(elements)
      local x = rl.zeros(elements)
      for _ = 1, 3 do group:all_reduce(x) end
      local start = now()
      group:all_reduce(x)
      -- So many in the given time, and the same number at every rank.
      local count = rl.tensor { math.max(5, math.floor(args.seconds / (now() - start))) }
      group:broadcast(count)
      local round, best = math.max(1, math.floor(count:item() / 3)), math.huge
      for _ = 1, 3 do
        group:barrier()
        start = now()
        for _ = 1, round do group:all_reduce(x) end
        best = math.min(best, (now() - start) / round)
      end
      if ctx.rank == 0 then print(("%d %.9f"):format(elements, best)) end
    end
  end,
}
