-- Environments in the program: Ctrl-C within a compiled loop, two runs that are equal, and the
-- comparison with the gymnasium package where there is one.
local process = require "process"

local function lua(script)
  return process.run{ process.program(), "-e", script }
end

describe("the FFI view in the program", function()
  it("lets Ctrl-C end a compiled loop", function()
    local r = lua [[
      local rl, ffi = require "rlengine", require "ffi"
      ffi.cdef "int raise(int);"
      local view, done = rl.env.make("CartPole-v1"):ffi(), 0
      view:reset{ seed = 1 }
      local ok, err = pcall(function()
        for i = 1, 1e9 do
          if i == 5000 then ffi.C.raise(2) end
          local _, terminated, truncated = view:step(i % 2)
          if terminated or truncated then view:reset() end
          done = i
        end
      end)
      print(ok, err.code, done)
      view:reset()
      print((view:step(1)))
    ]]
    assert.equal("false\tCANCELLED\t4999\n1\n", r.out, r.err)
    assert.equal(0, r.code)
  end)
end)

describe("two runs from one seed", function()
  it("are equal, also through a vector and a script's environment", function()
    local script = [[
      local rl = require "rlengine"
      rl.env.register("Drift-v0", {
        observation_space = rl.env.Box{ low = -1e3, high = 1e3 }, action_space = rl.env.Discrete(3),
        max_episode_steps = 20,
        reset = function(self) self.x = self.rng:normal(); return { self.x } end,
        step = function(self, action)
          self.x = self.x + self.rng:uniform(-1, 1) + action
          return { self.x }, self.x, self.x > 20, false
        end,
      })
      for _, id in ipairs{ "CartPole-v1", "Drift-v0" } do
        local envs = rl.env.vector(id, { num_envs = 3 })
        local obs = envs:reset{ seed = 7 }
        envs.action_space:seed(1)
        for _ = 1, 100 do
          obs = envs:step(envs.action_space:sample())
          for _, row in ipairs(obs:totable()) do
            for _, v in ipairs(row) do io.write(("%a "):format(v)) end
          end
        end
      end
    ]]
    local first, second = lua(script), lua(script)
    assert.equal(0, first.code, first.err)
    assert.is_true(#first.out > 10000)
    assert.equal(first.out, second.out)
  end)
end)

describe("the comparison with gymnasium", function()
  local python = os.getenv "RLENGINE_PYTHON" or "python3"
  local found = process.run{ python, "-c", "import gymnasium, numpy" }.code == 0
  local build = process.program():gsub("/[^/]*$", "")
  local trace = io.open(build .. "/golden/env_trace")
  if trace then trace:close() end
  if not found or not trace then
    pending("needs a Python with gymnasium ($RLENGINE_PYTHON) and the build's golden/env_trace")
    return
  end

  for _, id in ipairs{ "CartPole-v1", "CartPole-v0" } do
    it("finds " .. id .. " equal", function()
      local out = process.check{ python, "tests/golden/compare_gymnasium.py", "--env", id,
        "--steps", "30000", "--seed", "7", "--build", build }
      assert.is_truthy(out:find("30000 steps in", 1, true), out)
    end)
  end
end)
