-- Files of weights both ways with the safetensors package and PyTorch, where there are such.
local process = require "process"

describe("files of weights", function()
  local python = os.getenv "RLENGINE_PYTHON" or "python3"
  if process.run{ python, "-c", "import safetensors.torch, torch" }.code ~= 0 then
    pending("needs a Python with torch and safetensors ($RLENGINE_PYTHON)")
    return
  end

  it("go to PyTorch and back", function()
    local folder = process.folder()
    local function lua(text)
      return process.check{ process.program(), "-e", ([[
        local rl, folder = require "rlengine", %q
        local function net()
          return rl.nn.Sequential(rl.nn.Linear(4, 8), rl.nn.ReLU(), rl.nn.Linear(8, 2))
        end
        local function show(y)
          print(("%%.6f %%.6f"):format(y[1]:item(), y[2]:item()))
        end
      ]]):format(folder) .. text }
    end
    local ours = lua [[
      rl.manual_seed(3)
      local policy = net()
      rl.save(folder .. "/a", policy, {metadata = {env = "CartPole-v1"}})
      show(policy(rl.ones(4)))
    ]]
    local theirs = process.check{ python, "-c", [[
import sys, torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
folder = sys.argv[1]
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
net.load_state_dict(load_file(folder + "/a"))
assert safe_open(folder + "/a", "pt").metadata()["env"] == "CartPole-v1"
print("%.6f %.6f" % tuple(net(torch.ones(4)).tolist()))
torch.manual_seed(3)
other = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
save_file(other.state_dict(), folder + "/b")
print("%.6f %.6f" % tuple(other(torch.ones(4)).tolist()))
]], folder }
    local back = lua [[
      local policy = net()
      policy:load_state_dict(rl.load(folder .. "/b"))
      show(policy(rl.ones(4)))
    ]]
    process.remove(folder)
    local function numbers(text)
      local list = {}
      for n in text:gmatch "%S+" do list[#list + 1] = tonumber(n) end
      return list
    end
    local want, got = numbers(theirs), numbers(ours .. back)
    assert.are.equal(4, #want)
    for i = 1, 4 do assert.is_true(math.abs(want[i] - got[i]) < 2e-6, want[i] .. " " .. got[i]) end
  end)
end)
