--- Weights in files: rl.save and rl.load, in the safetensors format.
--
--     rl.save("policy.safetensors", policy:state_dict(), {metadata = {env = "CartPole-v1"}})
--     policy:load_state_dict(rl.load "policy.safetensors")
--
-- The format is that of PyTorch's and Hugging Face's tools: files go both ways.

local core = require "rlengine.core"
local options = require "rlengine.options"

local io = {}

local metadata_of_files = setmetatable({}, { __mode = "k" })

-- Whether t is what load returned as metadata: where its two results are the arguments of a
-- function, as in the example above, that is not a table of options.
function io._is_metadata(t) return metadata_of_files[t] == true end

--- Write tensors, or those of a module, to a file. `tensors`: a table of name -> tensor.
-- {metadata =}: a table of strings. The file appears whole or not at all.
function io.save(path, tensors, given)
  given = options.check("save", given, { metadata = "table" })
  if type(tensors) == "table" and type(tensors.state_dict) == "function" then
    tensors = tensors:state_dict()
  end
  if type(tensors) ~= "table" then
    options.fail("INVALID_ARGUMENT", "save: expected a table of tensors, got %s", type(tensors))
  end
  core.io.save(path, tensors, given.metadata)
end

--- Read a file: a table of name -> tensor, and its metadata. {device =}: where to;
-- without it the default device.
-- A damaged file raises DATA_LOSS and says what is wrong.
function io.load(path, given)
  given = options.check("load", given, { device = "any" })
  local tensors, metadata = core.io.load(path, given.device)
  metadata_of_files[metadata] = true
  return tensors, metadata
end

return io
