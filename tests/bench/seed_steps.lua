--- scripts/seed_program.lua with the number of environment steps on a line of its own after
-- each episode ("steps : 118", all observers since the start); for seed_vs_torch.py. In
-- CartPole every step's reward is 1, so what the observers return is their steps.
-- With --no-collect the trainer does not collect garbage after each round, as it does there.

local rl = require "rlengine"

for i, option in ipairs(arg) do
  if option == "--no-collect" then
    table.remove(arg, i)
    rl.cleanup.per_episode = rl.cleanup.never
    break
  end
end

local steps, wait_all = 0, rl.rpc.wait_all

rl.rpc.wait_all = function(...)
  local results = wait_all(...)
  for _, total in ipairs(results) do steps = steps + total end
  return results
end

local write = print
print = function(...) -- luacheck: ignore
  write(...)
  write(("steps : %d"):format(steps))
end

dofile((arg[0]:gsub("tests/bench/[^/]*$", "")) .. "scripts/seed_program.lua")
