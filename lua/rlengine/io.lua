--- Weights in files: rl.save and rl.load, in the safetensors format.
--
--     rl.save("policy.safetensors", policy:state_dict(), {metadata = {env = "CartPole-v1"}})
--     policy:load_state_dict(rl.load "policy.safetensors")
--
-- The format is that of PyTorch's and Hugging Face's tools: files go both ways.

local core = require "rlengine.core"
local options = require "rlengine.options"

local io = {}

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
  return core.io.load(path, given.device)
end

return io
