--- rlengine: reinforcement learning with a C engine, scripted in Lua.
-- `local rl = require "rlengine"`. Submodules load on first use, so that a script pays
-- only for what it touches.

local core = require "rlengine.core"

-- Lines of these files are not what a user wants to see in errors and memory reports.
local here = debug and debug.getinfo(1, "S").source or ""
local folder = here:match("^(@.*[/\\])init%.lua$")
if folder then core.error.own_sources(folder) end

local rl = {}

rl._VERSION = "0.1.0"

-- Submodule of each name that loads on first use. A name here is a file in this folder.
local submodules = {
  nn = true, optim = true, distributions = true, env = true, rpc = true, memory = true,
  episode = true, rewards = true, rollout = true, cleanup = true, autograd = true, cuda = true,
  comm = true,
}
-- Functions that live in a file of their own: name -> module.
local functions = { launch = "launch", args = "args" }
-- Functions of a submodule that stand in `rl` itself: name -> {module, field}.
local aliases = {
  no_grad = { "autograd", "no_grad" }, enable_grad = { "autograd", "enable_grad" },
  is_grad_enabled = { "autograd", "is_grad_enabled" },
  scope = { "memory", "scope" }, keep = { "memory", "keep" },
  save = { "io", "save" }, load = { "io", "load" },
}

local function load_tensor_functions()
  for name, fn in pairs(require "rlengine.tensor") do
    if rl[name] == nil then rl[name] = fn end
  end
end

setmetatable(rl, {
  __index = function(self, key)
    local value
    if submodules[key] then
      value = require("rlengine." .. key)
    elseif aliases[key] then
      value = require("rlengine." .. aliases[key][1])[aliases[key][2]]
    elseif functions[key] then
      value = require("rlengine." .. functions[key])
    end
    if value ~= nil then rawset(self, key, value) end
    return value
  end,
  -- What the prompt's Tab cannot see, because it is not loaded yet.
  __names = function()
    local names = {}
    for _, known in ipairs { submodules, functions, aliases } do
      for name in pairs(known) do names[#names + 1] = name end
    end
    return names
  end,
})

--- The device of that name: "cpu", "cuda", "cuda:1", "emu" or "auto". With a rank and no
-- index in the name, rank modulo the number of devices picks one. Raises UNAVAILABLE with
-- the reason when there is none. "auto" is the GPU where there is one, else the CPU; its
-- `reason`, which tostring shows as well, says why.
--
-- Fields of a device: name ("cuda:1"), type ("cuda"), index (1), reason. Methods:
-- `properties()`, a table of name, memory (bytes), multiprocessors, shared_memory, and for a
-- GPU compute_capability, driver and runtime, such as "9.0"; `synchronize()`, which waits for
-- all that was given to the device. Devices are equal when they are the same one.
-- @param name default "auto"; a device gives itself
-- @param rank default 0
function rl.device(name, rank) return core.device.get(name or "auto", rank) end

--- How many devices of a type there are: "cuda" (the default), "cpu" or "emu".
-- @return the number, and when it is 0 the reason, in one line with what to do about it
function rl.device_count(name) return core.device.count(name or "cuda") end

--- The device of every tensor that is made without one being named: by creation functions
-- and layers, by environments, from files and from remote calls. With an argument, a device
-- or its name, it is that one from now on, in this process. Before, it is what the variable
-- RLENGINE_DEVICE names, which the processes of rl.launch inherit, each with its trainer's
-- rank; else the CPU.
-- @return the default device
function rl.default_device(device) return core.device.default(device) end

package.loaded["rlengine"] = rl
load_tensor_functions()
return rl
