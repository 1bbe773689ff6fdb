--- What observers report, kept per observer and per episode, and the returns made of it.
--
--   local rewards = rl.rewards.new{ observers = 2 }
--   rewards:report(1, 1.0)               -- from observer 1, in the order of its steps
--   rewards:report(1, 1.0, { episode = 3, step = 17 })  -- once, however often it is reported
--   rewards:finish(1)                    -- its episode is over; what it reports next is a new one
--   rewards:drop(2)                      -- that one was lost: what it reported does not count
--   rewards:totals()                     -- {sum of each observer's episodes}
--   rewards:returns{ gamma = .99 }       -- {[observer] = one return for each of its rewards}
--   rewards:clear()
--
-- A return adds up what follows it in its own episode, never in the next one or another
-- observer's. The functions above the object can be used alone, on plain lists, and those of
-- returns on tensors too, where they run on the tensors' device:
--
--   rl.rewards.discounted(r, { gamma = .99, dones = d, last = v })    -- r, d: [T] or [T, N]
--   local advantages, returns = rl.rewards.gae{ rewards = r, values = v, dones = d, last = l }

local core = require "rlengine.core"
local options = require "rlengine.options"

local rewards = {}

-- What goes with rewards that are a tensor.
local function check_options(what, given)
  if given.dones ~= nil and not core.tensor.is_tensor(given.dones) then
    options.fail("INVALID_ARGUMENT", '%s: option "dones" must be a bool tensor, as rewards are '
      .. "one, got %s", what, type(given.dones))
  end
  if given.last ~= nil and type(given.last) ~= "number" and not core.tensor.is_tensor(given.last)
  then
    options.fail("INVALID_ARGUMENT", '%s: option "last" must be a number or a tensor, got %s', what,
      type(given.last))
  end
end

--- The smallest step of a float32 at 1, added to a deviation before dividing by it.
rewards.eps = 2 ^ -23

--- Returns: G[t] = r[t] + gamma * G[t + 1], of a list, or of a tensor of [T] or of [T, N] along
-- T. Then gamma, or options: gamma (0.99); dones, a list or bool tensor of the same shape, true
-- where an episode ended with that step, so that nothing after it counts; last (0), what follows
-- the last step, where that has not ended an episode: the value of what was seen there, one for
-- each column, or a number. The result of tensors has no history.
--
-- An episode that was only cut off, by a limit of steps, is done as well; what it would still
-- have brought belongs into its last reward: add gamma times the value of what was seen last.
function rewards.discounted(episode, given)
  if type(given) == "number" then given = { gamma = given } end
  given = options.check("rl.rewards.discounted", given,
    { gamma = "number", dones = "any", last = "any" })
  local gamma = given.gamma or 0.99
  if core.tensor.is_tensor(episode) then
    check_options("rl.rewards.discounted", given)
    return core.rewards.gae(episode, nil, given.dones, given.last, gamma, 1)
  end
  if type(episode) ~= "table" then
    options.fail("INVALID_ARGUMENT",
      "rl.rewards.discounted: expected a list of rewards or a tensor, got %s", type(episode))
  end
  if given.dones ~= nil and type(given.dones) ~= "table" then
    options.fail("INVALID_ARGUMENT", 'rl.rewards.discounted: option "dones" must be a list, as '
      .. "rewards are one, got %s", type(given.dones))
  end
  local returns, following = {}, given.last or 0
  for t = #episode, 1, -1 do
    if given.dones and given.dones[t] then following = 0 end
    following = episode[t] + gamma * following
    returns[t] = following
  end
  return returns
end

--- Generalized advantages (Schulman et al., 2016) of tensors of [T] or [T, N] along T:
--   delta[t] = r[t] + gamma * v[t + 1] - v[t],   A[t] = delta[t] + gamma * lambda * A[t + 1].
-- Options: rewards; values, of what was seen before each step; dones, last, gamma (0.99) as in
-- discounted, where also stands what to do about episodes that were cut off; lambda (0.95).
-- Returns the advantages and advantages + values, which the values should have been; neither has
-- a history.
function rewards.gae(given)
  given = options.check("rl.rewards.gae", given, { rewards = "any", values = "any", dones = "any",
    last = "any", gamma = "number", lambda = "number" })
  for _, name in ipairs { "rewards", "values" } do
    if not core.tensor.is_tensor(given[name]) then
      options.fail("INVALID_ARGUMENT", 'rl.rewards.gae: option "%s" must be a tensor, got %s', name,
        type(given[name]))
    end
  end
  check_options("rl.rewards.gae", given)
  local advantages = core.rewards.gae(given.rewards, given.values, given.dones, given.last,
    given.gamma or 0.99, given.lambda or 0.95)
  return advantages, advantages + given.values:detach()
end

-- Call f(list, index, value) for every number in lists that may lie in lists.
local function each(value, f)
  for i, inner in ipairs(value) do
    if type(inner) == "table" then each(inner, f) else f(value, i, inner) end
  end
end

--- Shift and scale to mean 0 and deviation 1: (x - mean) / (sd + eps), with the unbiased
-- deviation. Takes a list, or a list of lists that is normalised as a whole and keeps its
-- shape. A single number becomes 0: it has no deviation.
function rewards.normalise(values, eps)
  local n, sum, squares = 0, 0, 0
  each(values, function(_, _, x) n, sum = n + 1, sum + x end)
  local mean = sum / math.max(n, 1)
  each(values, function(_, _, x) squares = squares + (x - mean) ^ 2 end)
  local scale = math.sqrt(squares / math.max(n - 1, 1)) + (eps or rewards.eps)
  local function copy(list)
    local result = {}
    for i, x in ipairs(list) do
      result[i] = type(x) == "table" and copy(x) or (x - mean) / scale
    end
    return result
  end
  return copy(values)
end

--- A running reward: `running:update(total)` makes value = 0.05 total + 0.95 value and
-- returns it. Options: start (0), weight (0.05, of the new total).
function rewards.running(given)
  given = options.check("rl.rewards.running", given, { start = "number", weight = "number" })
  local weight = given.weight or 0.05
  local running = { value = given.start or 0 }
  function running:update(total)
    self.value = weight * total + (1 - weight) * self.value
    return self.value
  end
  return running
end

local Rewards = {}
Rewards.__index = Rewards

--- A store for the observers 1 .. n: `rl.rewards.new{ observers = n }`.
function rewards.new(given)
  given = options.check("rl.rewards.new", given, { observers = "number" })
  local self = setmetatable({ count = given.observers or 1, episodes = {}, seen = {} }, Rewards)
  self:clear()
  return self
end

local function episodes_of(self, observer)
  local episodes = self.episodes[observer]
  if not episodes then
    options.fail("NOT_FOUND", "rewards: there is no observer %s; they are 1 to %d",
      tostring(observer), self.count)
  end
  return episodes
end

-- ---- reports with a key
--
-- An episode with a key is told from others by its incarnation and number. Its rewards lie in
-- the order of their steps, whatever the order they came in; `steps` are their numbers.

local function whole(name, value)
  if type(value) ~= "number" or value ~= math.floor(value) or math.abs(value) == math.huge
  then
    options.fail("INVALID_ARGUMENT", "rewards: the key's %s must be a whole number, got %s", name,
      tostring(value))
  end
  return value
end

-- Where `step` stands in the list of steps, or belongs; the last ones are looked at first.
local function place_of(steps, step)
  local low, high = 1, #steps + 1
  if steps[#steps] and steps[#steps] < step then return high, false end
  while low < high do
    local middle = math.floor((low + high) / 2)
    if steps[middle] < step then low = middle + 1 else high = middle end
  end
  return low, steps[low] == step
end

-- What is remembered of an observer's present life when it is cleared away, so that a step that
-- is reported once more is not taken for a new one. Episodes before `episode` are over; of that
-- one, these steps were there: `runs`, a sorted list of {first, last}.
local function is_cleared(seen, incarnation, number, step)
  if not seen or seen.incarnation ~= incarnation then return false end
  if number ~= seen.episode then return number < seen.episode end
  for i = #seen.runs, 1, -1 do
    local run = seen.runs[i]
    if step >= run[1] then return step <= run[2] end
  end
  return false
end

-- Runs of a sorted list of steps and of other runs, none of which holds one of the steps.
local function merge(steps, runs)
  local all, merged = {}, {}
  for i, run in ipairs(runs) do all[i] = run end
  for _, step in ipairs(steps) do all[#all + 1] = { step, step } end
  table.sort(all, function(x, y) return x[1] < y[1] end)
  for _, run in ipairs(all) do
    local last = merged[#merged]
    if last and last[2] + 1 == run[1] then
      last[2] = run[2]
    else
      merged[#merged + 1] = { run[1], run[2] }
    end
  end
  return merged
end

local function keyed_episode(episodes, incarnation, number)
  for i = #episodes, 1, -1 do
    local episode = episodes[i]
    if episode.number == number and episode.incarnation == incarnation then return episode end
  end
  local episode = { incarnation = incarnation, number = number, steps = {} }
  -- Behind those of its life that came before it; an episode may be reported late.
  local at = #episodes + 1
  while at > 1 and episodes[at - 1].incarnation == incarnation
    and episodes[at - 1].number > number do
    at = at - 1
  end
  table.insert(episodes, at, episode)
  return episode
end

local function report_once(self, observer, episodes, reward, key)
  local o = options.check("rewards:report", key, {
    incarnation = "any", episode = "number", step = "number",
  })
  local incarnation = o.incarnation or ""
  local number, step = whole("episode", o.episode), whole("step", o.step)
  if is_cleared(self.seen[observer], incarnation, number, step) then return false end
  local episode = keyed_episode(episodes, incarnation, number)
  local at, is_there = place_of(episode.steps, step)
  if is_there then return false end
  table.insert(episode.steps, at, step)
  table.insert(episode, at, reward)
  return true
end

-- Before an observer's episodes go: what of them may still be reported once more.
local function remember(seen, episodes)
  local last
  for _, episode in ipairs(episodes) do
    if episode.steps then last = episode end -- of the present life, its newest one
  end
  if not last then return seen end
  local runs = {}
  if seen and seen.incarnation == last.incarnation then
    if seen.episode > last.number then return seen end
    if seen.episode == last.number then runs = seen.runs end
  end
  return {
    incarnation = last.incarnation, episode = last.number, runs = merge(last.steps, runs),
  }
end

-- ---- reports

--- One step's reward of an observer. Returns whether it counts.
--
-- With a key it counts once, however often it is reported: who does not know whether a report
-- has arrived reports it again.
--
--    rewards:report(1, 1.0, { incarnation = select(3, rpc.caller()), episode = 3, step = 17 })
--
-- @param observer 1 .. n
-- @param reward a number
-- @param[opt] key episode and step, numbers that grow; incarnation, of the process that
--   reports, which numbers its episodes anew when it starts again. Steps may come in any order.
--   After clear, what belongs to episodes before the newest one does not count any more.
function Rewards:report(observer, reward, key)
  if type(reward) ~= "number" then
    options.fail("INVALID_ARGUMENT", "rewards: observer %s reported a %s, not a number",
      tostring(observer), type(reward))
  end
  local episodes = episodes_of(self, observer)
  if key ~= nil then return report_once(self, observer, episodes, reward, key) end
  local episode = episodes[#episodes]
  if not episode or episode.finished or episode.steps then
    episode = {}
    episodes[#episodes + 1] = episode
  end
  episode[#episode + 1] = reward
  return true
end

--- The observer's episode is over. Needed only where more than one is kept before clear, and
-- not with keys.
function Rewards:finish(observer)
  local episodes = episodes_of(self, observer)
  if episodes[#episodes] then episodes[#episodes].finished = true end
end

--- Forget the observer's last episode unless it is finished: the observer was lost in it.
-- Returns how many steps that were. With keys, its steps stay known: one that is reported once
-- more does not count.
function Rewards:drop(observer)
  local episodes = episodes_of(self, observer)
  local last = episodes[#episodes]
  if not last or last.finished then return 0 end
  episodes[#episodes] = nil
  self.seen[observer] = remember(self.seen[observer], { last })
  return #last
end

--- The sum of rewards of each observer: a list, 0 for one that reported nothing.
function Rewards:totals()
  local totals = {}
  for observer, episodes in ipairs(self.episodes) do
    totals[observer] = 0
    each(episodes, function(_, _, r) totals[observer] = totals[observer] + r end)
  end
  return totals
end

--- Discounted returns of each observer, in the order of its reports. Options: gamma (0.99),
-- normalise (true: over all observers together).
function Rewards:returns(given)
  given = options.check("rewards:returns", given, { gamma = "number", normalise = "boolean" })
  local returns = {}
  for observer, episodes in ipairs(self.episodes) do
    local flat = {}
    for _, episode in ipairs(episodes) do
      for _, g in ipairs(rewards.discounted(episode, given.gamma)) do flat[#flat + 1] = g end
    end
    returns[observer] = flat
  end
  if given.normalise then return rewards.normalise(returns) end
  return returns
end

--- Forget every episode.
function Rewards:clear()
  for observer = 1, self.count do
    self.seen[observer] = remember(self.seen[observer], self.episodes[observer] or {})
    self.episodes[observer] = {}
  end
end

return rewards
