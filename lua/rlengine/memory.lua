--- Memory: figures, limits, and what holds it. All sizes in bytes, or as "64MiB".
-- Every function takes a device (or its name) first; without one it means
-- the default device.

local core = require "rlengine.core"
local options = require "rlengine.options"
local c = core.memory

local memory = {
  allocated = c.allocated,
  reserved = c.reserved,
  peak = c.peak,
  reset_peak = c.reset_peak,
  empty_cache = c.empty_cache,
  limit = c.limit,
  stats = c.stats,
  format = c.format,
  parse = c.parse,
}

local report_meta = { __tostring = function(self) return self.text end }

--- Who holds what, by owner and script line, largest first: a list of rows {owner, site,
-- bytes, blocks}; prints as a table. As fields the counters of `stats`, and what makes the
-- sum what the driver says: allocated + rounding + cached + workspace + context +
-- unaccounted = used, of `total` (nil on the CPU, where used is what was reserved).
function memory.report(device)
  local report = c.rows(device)
  for _, figures in ipairs { c.stats(device), c.usage(device) } do
    for key, value in pairs(figures) do report[key] = value end
  end
  report.text = c.report_text(device)
  return setmetatable(report, report_meta)
end

local function collect()
  collectgarbage()
  collectgarbage()
end

local function row_bytes(device)
  local rows = {}
  for _, row in ipairs(c.rows(device)) do
    local key = row.owner .. " made at " .. row.site
    rows[key] = (rows[key] or 0) + row.bytes
  end
  return rows
end

--- The row that grew most between two snapshots: name, bytes.
local function largest_growth(before, now)
  local best, growth = nil, 0
  for key, bytes in pairs(now) do
    local grown = bytes - (before[key] or 0)
    if grown > growth then best, growth = key, grown end
  end
  return best, growth
end

local Watch = {}
Watch.__index = Watch

--- Tell at the first episode above the plateau what grew, by how much, held by which line.
-- Call the returned watch (or `watch:episode()`) at the end of each episode; the first two
-- set the plateau, and what grows after it is told by an out-of-memory error too. After a
-- warning the plateau is what is held then. Options: tolerance ("64KiB"), device (what is the
-- default now, whatever is later), log (a function of the message; default: a line on standard
-- error).
-- @return a watch
function memory.watch(given)
  given = options.check("rl.memory.watch", given,
    { every = "string", tolerance = "number|string", device = "any", log = "function" })
  if given.every ~= nil and given.every ~= "episode" then
    options.fail("INVALID_ARGUMENT", 'rl.memory.watch: every must be "episode"')
  end
  return setmetatable({
    tolerance = c.parse(given.tolerance or "64KiB", "rl.memory.watch: tolerance"),
    device = given.device and core.device.get(given.device) or core.device.default(),
    log = given.log or function(message) io.stderr:write(message, "\n") end,
    episodes = 0,
  }, Watch)
end

-- What is held now is the plateau.
function Watch:settle(bytes)
  self.plateau, self.rows, self.since = bytes, row_bytes(self.device), self.episodes
end

--- One episode is over. Returns the growth over the plateau in bytes, and the row that grew
-- most when a warning was given.
function Watch:episode()
  collect()
  self.episodes = self.episodes + 1
  local bytes = c.allocated(self.device)
  if self.episodes <= 2 then
    self:settle(bytes)
    c.mark(self.device, ("episode %d"):format(self.episodes))
    return 0
  end
  local growth = bytes - self.plateau
  if growth <= self.tolerance then return growth end
  local row, by = largest_growth(self.rows, row_bytes(self.device))
  self.log(("memory grew by %s over episode %d at episode %d; most of it (%s): %s"):format(
    c.format(growth), self.since, self.episodes, c.format(by), row or "?"))
  self:settle(bytes)
  return growth, row
end

Watch.__call = Watch.episode

--- Run fn `repeats` times and raise unless device bytes, tensors and tape nodes are the
-- same after the second and the last run. For tests. Options: repeats (20, at least 3),
-- tolerance (0), device.
function memory.assert_flat(fn, given)
  if type(fn) ~= "function" then
    options.fail("INVALID_ARGUMENT", "rl.memory.assert_flat: expected a function, got %s", type(fn))
  end
  given = options.check("rl.memory.assert_flat", given,
    { repeats = "number", device = "any", tolerance = "number|string" })
  local repeats = options.whole("rl.memory.assert_flat", "repeats", given.repeats, 3, 20)
  local tolerance = c.parse(given.tolerance or 0, "rl.memory.assert_flat: tolerance")
  local device = given.device or core.device.default() -- fn may set another
  local before, rows
  for i = 1, repeats do
    fn(i)
    collect()
    if i == 2 then before, rows = c.stats(device), row_bytes(device) end
  end
  local after = c.stats(device)
  if after.allocated - before.allocated > tolerance then
    local row, by = largest_growth(rows, row_bytes(device))
    options.fail("FAILED_PRECONDITION",
      "memory is not flat: %s more after %d runs than after 2; most of it (%s): %s",
      c.format(after.allocated - before.allocated), repeats, c.format(by), row or "?")
  end
  if after.nodes > before.nodes or after.tensors > before.tensors then
    options.fail("FAILED_PRECONDITION",
      "memory is not flat: %d more tensors and %d more tape nodes after %d runs than after 2",
      after.tensors - before.tensors, after.nodes - before.nodes, repeats)
  end
end

local function close(scope, ok, ...)
  c.scope_pop(scope, ...)
  if not ok then error((...), 0) end
  return ...
end

--- Run fn(...). At its end, also by an error, every tensor handle made inside closes, but
-- those returned or raised (also inside tables of any depth, as keys too) or passed to
-- rl.keep. Parameters, optimizers and a live graph keep their own hold. Using a closed handle
-- raises and names the scope.
function memory.scope(fn, ...)
  local meta = type(fn) ~= "function" and getmetatable(fn)
  if type(fn) ~= "function" and not (type(meta) == "table" and meta.__call) then
    options.fail("INVALID_ARGUMENT", "rl.scope: expected a function, got %s", type(fn))
  end
  return close(c.scope_push(), pcall(fn, ...))
end

--- Take tensors out of the running scopes. Returns them.
memory.keep = c.keep

return memory
