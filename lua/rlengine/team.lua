--- The trainers of a run of rl.launch, as one of its processes knows them: filled in by
-- rl.launch, read by rl.comm. Empty in a process that it did not start.

local team = {
  names = nil,     -- list of the trainers' names, by rank; nil in an observer too
  addresses = nil, -- name -> where it listens
}

return team
