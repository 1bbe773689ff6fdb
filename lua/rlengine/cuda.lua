--- NVIDIA's GPUs, under PyTorch's names: is there one, and if not, why. `rl.cuda`.
--
--     local ok, reason = rl.cuda.is_available()
--     if not ok then print("no GPU: " .. reason) end
--
-- Tensors get there by `t:to "cuda"`, `{device = "cuda:1"}` or rl.default_device.

local core = require "rlengine.core"
local options = require "rlengine.options"

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
  local dev = device(which)
  local version = dev:properties().compute_capability
  if not version then
    options.fail("INVALID_ARGUMENT", "rl.cuda.get_device_capability: %s is no GPU and has none",
      dev.name)
  end
  local major, minor = version:match "(%d+)%.(%d+)"
  return tonumber(major), tonumber(minor)
end

--- How products of matrices are computed: `rl.cuda.matmul{tf32 = true}` changes what is named
-- and gives back all as it is now. Small products are the engine's own: a row's result is the
-- same bits alone and in any batch. Large ones are cuBLAS's, which is faster, gives the same
-- bits each time, but may differ in the last ones with the number of rows.
-- @param given options, all optional:
--   tf32: large f32 products may round to TF32, ten times as fast and right to three digits
--     (false; PyTorch: torch.backends.cuda.matmul.allow_tf32);
--   batch_invariant: all products are the engine's own (false);
--   threshold: K x N from which on a product [M, K] x [K, N] is large (131072);
--   workspace: memory on the GPU for cuBLAS, in bytes or as "32MiB" (32 MiB from compute
--     capability 9.0 on, 4 MiB below). It is taken when the first large product comes;
--   device: which GPU, as above.
-- @return a table of tf32, batch_invariant, threshold and workspace, and `backend`: which
-- cuBLAS is at work, or why none is; nil while none was needed
function cuda.matmul(given)
  given = options.check("cuda.matmul", given, {
    tf32 = "boolean", batch_invariant = "boolean", threshold = "number",
    workspace = "number|string", device = "any",
  })
  local set
  for name in pairs(given) do
    if name ~= "device" then -- else it only asks, and nothing is set up anew
      set = { tf32 = given.tf32, batch_invariant = given.batch_invariant,
        threshold = given.threshold,
        workspace = given.workspace
          and core.memory.parse(given.workspace, "cuda.matmul: workspace") }
    end
  end
  return core.device.matmul(device(given.device), set)
end

--- Wait for all that was given to a GPU.
function cuda.synchronize(which) device(which):synchronize() end

return cuda
