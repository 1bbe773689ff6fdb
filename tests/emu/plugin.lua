--- plugin.lua - another rlengine_emu.so, with some of its files compiled differently.
--
-- What compiles them is taken from the build's compile_commands.json, so that there is no second
-- list of sources and flags. Everything that is not compiled anew is taken from the build.

local process = require "process"

local plugin = {}

local function unescaped(s)
  return (s:gsub('\\(.)', "%1"))
end

--- What the plug-in of a build consists of: {source =, object =, command =, folder =}. `source`
-- is relative to the tree.
function plugin.units(build)
  local f = assert(io.open(build .. "/compile_commands.json"),
    build .. "/compile_commands.json is not there: build first")
  local text = f:read "*a"
  f:close()
  local units = {}
  for object in text:gmatch "{(.-)\n}" do
    local command = unescaped(object:match '"command":%s*"(.-)",?\n')
    local folder = object:match '"directory":%s*"(.-)"'
    local out, source = command:match "%-o (%S+) %-c (%S+)$"
    if out and out:find("/rlengine_emu.dir/", 1, true) then
      units[#units + 1] = {
        source = source:match "/(engine/device/.*)$" or source:match "/(engine/base/.*)$"
          or source:match "/(kernels/.*)$",
        path = source, object = folder .. "/" .. out, folder = folder,
        command = command:sub(1, #command - #("-o " .. out .. " -c " .. source)),
      }
    end
  end
  assert(#units > 0, "the build has no emulated device")
  return units
end

--- Compile a unit from the file `from` into `object`. Returns true, or false and what was said.
function plugin.compile(unit, from, object, flags)
  local r = process.run { "sh", "-c", ("cd %s && %s %s -o %s -c %s"):format(unit.folder,
    unit.command, flags or "", object, from) }
  return r.code == 0, r.err
end

--- Link the units into folder/rlengine_emu.so, some from other objects: by[source] = object.
function plugin.link(units, by, folder, flags)
  local compiler
  for _, unit in ipairs(units) do
    if unit.source:match "%.cu$" then compiler = unit.command:match "^%S+" end
  end
  local args = { compiler, "-shared", "-o", folder .. "/rlengine_emu.so" }
  for _, unit in ipairs(units) do args[#args + 1] = by[unit.source] or unit.object end
  for flag in (flags or ""):gmatch "%S+" do args[#args + 1] = flag end
  args[#args + 1] = "-lm"
  local r = process.run(args)
  assert(r.code == 0, r.err)
end

return plugin
