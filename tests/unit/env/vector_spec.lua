-- rl.env.vector: rows equal single environments, in each autoreset mode, for environments of
-- C and of Lua.
local core = require "rlengine.core"
local rl = require "rlengine"

local function failure(fn, ...)
  local ok, err = pcall(fn, ...)
  assert.is_false(ok)
  assert.is_truthy(core.error.is(err), tostring(err))
  return err
end

-- CartPole behind Lua functions: the same numbers, the other implementation.
rl.env.register("LuaCartPole-v0", {
  observation_space = rl.env.make("CartPole-v1").observation_space,
  action_space = rl.env.Discrete(2), max_episode_steps = 500,
  init = function(self) self.inner = rl.env.make "CartPole-v1" end,
  reset = function(self, options) return self.inner:reset{ seed = options.seed } end,
  step = function(self, action)
    local obs, reward, terminated = self.inner:step(action)
    return obs, reward, terminated, false
  end,
})

local N = 4

for _, id in ipairs{ "CartPole-v1", "LuaCartPole-v0" } do
  local function make(mode)
    return rl.env.vector(id, { num_envs = N, autoreset = mode, max_episode_steps = 12 })
  end
  local function single()
    return rl.env.make("CartPole-v1", { max_episode_steps = 12 })
  end

  describe("rl.env.vector of " .. id, function()
    it("has spaces and shapes", function()
      local envs = make()
      assert.equal(N, envs.num_envs)
      assert.equal("next_step", envs.autoreset)
      assert.equal(12, envs.spec.max_episode_steps)
      assert.equal("Discrete(2)", tostring(envs.single_action_space))
      assert.equal("Box(0, 1, {4}, i64)", tostring(envs.action_space))
      assert.same({ 4 }, envs.single_observation_space.shape)
      assert.same({ N, 4 }, envs.observation_space.shape)
      assert.equal("4 x " .. id .. " (autoreset next_step)", tostring(envs))
      local obs, info = envs:reset{ seed = 0 }
      assert.same({ N, 4 }, obs.shape)
      assert.equal("f32", obs.dtype)
      assert.is_true((envs.observation_space:contains(obs)))
      assert.equal("table", type(info))
      local next_obs, reward, terminated, truncated, step_info =
        envs:step(envs.action_space:sample())
      assert.same({ N, 4 }, next_obs.shape)
      assert.same({ N }, reward.shape)
      assert.equal("f32", reward.dtype)
      assert.equal("bool", terminated.dtype)
      assert.equal("bool", truncated.dtype)
      assert.same({ N }, step_info.was_reset.shape)
      assert.are_not.same(obs:totable(), next_obs:totable())
      envs:close()
      envs:close()
      assert.equal("FAILED_PRECONDITION", failure(envs.step, envs, { 0, 0, 0, 0 }).code)
    end)

    for _, mode in ipairs{ "next_step", "same_step" } do
      it("equals single environments, " .. mode, function()
        local envs = make(mode)
        local rows, obs, over, ends = {}, {}, {}, 0
        local got = envs:reset{ seed = 20 }:totable()
        for i = 1, N do
          rows[i] = single()
          obs[i] = rows[i]:reset{ seed = 20 + i - 1 }:totable()
          assert.same(obs[i], got[i])
        end
        for t = 1, 80 do
          local actions = {}
          for i = 1, N do actions[i] = (t * i) % 3 == 0 and 1 or 0 end
          local all, reward, terminated, truncated, info =
            envs:step(t % 2 == 0 and actions or rl.tensor(actions, { dtype = "i64" }))
          all, reward, terminated, truncated =
            all:totable(), reward:totable(), terminated:totable(), truncated:totable()
          for i = 1, N do
            if over[i] then
              over[i] = false
              obs[i] = rows[i]:reset():totable()
              assert.same({ 0, false, false, true },
                { reward[i], terminated[i], truncated[i], info.was_reset:totable()[i] })
            else
              local o, r, ended, cut = rows[i]:step(actions[i])
              obs[i] = o:totable()
              assert.same({ r, ended, cut, false },
                { reward[i], terminated[i], truncated[i], info.was_reset:totable()[i] })
              if mode == "same_step" then assert.same(obs[i], info.final_obs:totable()[i]) end
              if ended or cut then
                ends = ends + 1
                over[i] = mode == "next_step"
                if mode == "same_step" then obs[i] = rows[i]:reset():totable() end
              end
            end
            assert.same(obs[i], all[i])
          end
          if mode == "next_step" then assert.is_nil(info.final_obs) end
        end
        assert.is_true(ends > 20)
      end)
    end

    it("resets by a mask when autoreset is disabled", function()
      local envs = make "disabled"
      local actions = { 0, 1, 0, 1 }
      assert.equal("FAILED_PRECONDITION",
        failure(envs.reset, envs, { mask = { true, false, true, false } }).code)
      local obs = envs:reset{ seed = 1 }
      for _ = 1, 3 do obs = envs:step(actions) end
      local before = obs:totable()
      local after = envs:reset{ mask = { false, true, false, false }, seed = 70 }:totable()
      assert.same({ before[1], before[3], before[4] }, { after[1], after[3], after[4] })
      assert.same(single():reset{ seed = 71 }:totable(), after[2])
      local terminated, truncated
      repeat
        local _
        _, _, terminated, truncated = envs:step(actions)
        local any = terminated:logical_or(truncated):any():item()
      until any
      local err = failure(envs.step, envs, actions)
      assert.equal("FAILED_PRECONDITION", err.code)
      assert.is_truthy(err.message:find("environment %d of the vector"), err.message)
      envs:reset{ mask = terminated:logical_or(truncated) }
      envs:step(actions)
    end)

    it("refuses bad actions and moves nothing", function()
      local envs, same = make(), make()
      assert.equal("FAILED_PRECONDITION", failure(envs.step, envs, { 0, 0, 0, 0 }).code)
      envs:reset{ seed = 3 }
      same:reset{ seed = 3 }
      for _, bad in ipairs{
        { 0, 1, 2, 0 }, { 0, 1, 0 }, { 0, 1, 0, 1, 0 }, { 0, 1, 0.5, 0 }, { 0, 1, "x", 0 },
        1, "left",
        rl.zeros(3, { dtype = "i64" }), rl.tensor({ 0, 0, -1, 0 }, { dtype = "i64" }),
      } do
        assert.equal("INVALID_ARGUMENT", failure(envs.step, envs, bad).code)
      end
      assert.equal("INVALID_ARGUMENT", failure(envs.step, envs).code)
      assert.same(same:step{ 1, 0, 1, 0 }:totable(), envs:step{ 1, 0, 1, 0 }:totable())
    end)
  end)
end

describe("rl.env.vector", function()
  it("checks its options", function()
    for _, opts in ipairs{
      {}, { num_envs = 0 }, { num_envs = 1.5 }, { num_envs = 2, autoreset = "never" },
      { num_envs = 2, max_episode_steps = -3 }, { num_env = 2 }, { num_envs = "2" },
    } do
      assert.equal("INVALID_ARGUMENT", failure(rl.env.vector, "CartPole-v1", opts).code)
    end
    assert.equal("INVALID_ARGUMENT", failure(rl.env.vector, "CartPole-v1").code)
    for text, n in pairs { ["1000000000000"] = 1e12, ["0"] = 0, ["1.5"] = 1.5 } do
      assert.equal("rl.env.vector: num_envs must be a whole number from 1 to 2147483647, got "
        .. text, failure(rl.env.vector, "CartPole-v1", { num_envs = n }).message)
    end
    assert.equal("NOT_FOUND", failure(rl.env.vector, "CartPole-v7", { num_envs = 2 }).code)
    assert.is_truthy(failure(rl.env.vector, "CartPole-v1", { num_env = 2 }).message
      :find('did you mean "num_envs"', 1, true))
  end)

  it("gives back what it took", function()
    local function work()
      for _ = 1, 20 do
        local envs = rl.env.vector("CartPole-v1", { num_envs = 8, autoreset = "same_step" })
        envs:reset{ seed = 1 }
        for _ = 1, 30 do envs:step{ 0, 1, 0, 1, 0, 1, 0, 1 } end
        pcall(envs.step, envs, { 5 })
      end
      for _ = 1, 3 do collectgarbage() end
    end
    -- The device keeps what it uses again: as much as the worst moment between two
    -- collections needed, which takes a few rounds to come.
    for _ = 1, 12 do work() end
    local bytes, blocks = core.host_memory()
    for _ = 1, 3 do work() end
    local bytes_now, blocks_now = core.host_memory()
    assert.equal(blocks, blocks_now)
    assert.is_true(bytes_now <= bytes + 16 * blocks) -- malloc rounds a block up to so much
  end)
end)
