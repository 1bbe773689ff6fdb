--- NVIDIA's GPUs, under PyTorch's names: is there one, and if not, why. `rl.cuda`.
--
--     local ok, reason = rl.cuda.is_available()
--     if not ok then print("no GPU: " .. reason) end
--
-- Tensors get there by `t:to "cuda"`, `{device = "cuda:1"}` or rl.default_device.

local core = require "rlengine.core"

local cuda = {}

--- Whether a GPU can be used. Asking opens CUDA's plug-in, but no GPU.
-- @return true, or false and the reason with what to do about it
function cuda.is_available()
  local count, reason = core.device.count "cuda"
  if count == 0 then return false, reason end
  return true
end

--- The number of GPUs; when it is 0, the reason too.
function cuda.device_count() return core.device.count "cuda" end

-- A device from an index, counted from 0, a name or a device; nil is the first.
local function device(which)
  if which == nil then return core.device.get "cuda" end
  return core.device.get(type(which) == "number" and "cuda:" .. which or which)
end

--- What a GPU is, as dev:properties().
function cuda.get_device_properties(which) return device(which):properties() end

--- The name of a GPU, "NVIDIA H200".
function cuda.get_device_name(which) return device(which):properties().name end

--- Its compute capability: 9, 0.
function cuda.get_device_capability(which)
  local major, minor = device(which):properties().compute_capability:match "(%d+)%.(%d+)"
  return tonumber(major), tonumber(minor)
end

--- Wait for all that was given to a GPU.
function cuda.synchronize(which) device(which):synchronize() end

return cuda
