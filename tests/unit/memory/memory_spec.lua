-- Memory as a script sees it: figures, owners and lines, limits, scopes, the collector.
local rl = require "rlengine"

local MiB = 2 ^ 20
local device = rl.default_device()

local function collect()
  collectgarbage()
  collectgarbage()
end

local function here() return debug.getinfo(2, "l").currentline end

describe("memory", function()
  before_each(collect)
  after_each(function() rl.memory.limit(device, false) end)

  it("counts bytes, and free gives them back at once", function()
    local before = rl.memory.allocated()
    local t = rl.zeros(256, 1024)
    assert.equal(before + MiB, rl.memory.allocated())
    local view = t[1]
    t:free()
    assert.equal(before + MiB, rl.memory.allocated())
    view:free()
    assert.equal(before, rl.memory.allocated())
    local ok, err = pcall(function() return t + 1 end)
    assert.is_false(ok)
    assert.matches("was freed at .*memory_spec", err.message)
    assert.equal("tensor(closed)", tostring(t))
  end)

  it("names the script line and the owner", function()
    local t, line = rl.zeros(300, 1000), here()
    local row
    for _, r in ipairs(rl.memory.report()) do
      if r.site:match(":" .. line .. "$") then row = r end
    end
    assert.equal(1200000, row.bytes)
    assert.equal("tensors", row.owner)
    assert.matches("memory_spec.lua", row.site)
    t:free()
  end)

  it("moves what the graph saves to the graph, and gradients to gradients", function()
    local x = rl.ones(1000):requires_grad_()
    local y = x:exp()
    local function owned(owner)
      local sum = 0
      for _, r in ipairs(rl.memory.report()) do if r.owner == owner then sum = sum + r.bytes end end
      return sum
    end
    local held = owned("graph")
    assert.is_true(held >= 4000)
    y:sum():backward()
    assert.equal(held - 4000, owned("graph"))
    assert.is_true(owned("gradients") >= 4000)
  end)

  it("adds up", function()
    local report, sum = rl.memory.report(), 0
    for _, row in ipairs(report) do sum = sum + row.bytes end
    assert.equal(report.allocated, sum)
    assert.is_true(report.reserved >= report.allocated)
    assert.matches("made at", tostring(report))
  end)

  it("drives the collector by bytes, with a small and a large heap", function()
    for _, ballast_size in ipairs{ 0, 400000 } do
      local ballast = {}
      for i = 1, ballast_size do ballast[i] = { i } end
      collect()
      local peak = 0
      for _ = 1, 600 do
        local _ = rl.zeros(256, 1024)
        peak = math.max(peak, rl.memory.reserved())
      end
      assert.is_true(peak < 120 * MiB, ("%.0f MiB"):format(peak / MiB))
      assert.equal(ballast_size, #ballast)
    end
  end)

  it("refuses beyond the limit with the line that holds most, and goes on", function()
    rl.memory.empty_cache()
    rl.memory.limit(device, rl.memory.reserved() + 8 * MiB)
    local held, line = {}, nil
    local ok, err = pcall(function()
      for i = 1, 100 do held[i] = rl.zeros(256, 1024); line = here() end
    end)
    assert.is_false(ok)
    assert.equal("RESOURCE_EXHAUSTED", err.code)
    assert.matches("out of device memory: wanted 1.0 MiB", err.message)
    assert.matches("most held by .*memory_spec.lua:" .. line .. " %(%d+ tensors, ", err.message)
    assert.matches("memory_spec.lua:" .. line, err.report)
    held = nil
    assert.equal(4, #rl.zeros(4, 65536)) -- what was dropped is found without being asked
    rl.memory.limit(device, false)
    assert.is_nil(rl.memory.limit(device))
    assert.is_nil(held)
  end)

  it("a loop that holds its graph is told which line", function()
    rl.memory.empty_cache()
    rl.memory.limit(device, rl.memory.allocated() + 16 * MiB)
    local x, losses, line = rl.ones(1000):requires_grad_(), {}, nil
    local ok, err = pcall(function()
      for i = 1, 10000 do losses[i] = x:exp(); line = here() end
    end)
    assert.is_false(ok)
    assert.matches("memory_spec.lua:" .. line, err.message)
    assert.matches("graph", err.report)
  end)

  it("keeps a limit that a wrong one was to replace", function()
    rl.memory.limit(device, "1GiB")
    for _, wrong in ipairs { 0, "0", 0.5, "0.5", -1, "none" } do
      assert.is_false((pcall(rl.memory.limit, device, wrong)))
      assert.equal(2 ^ 30, rl.memory.limit(device))
    end
  end)

  it("understands sizes and refuses others", function()
    assert.equal(64 * MiB, rl.memory.parse("64MiB"))
    assert.equal(1.5e9, rl.memory.parse("1.5 GB"))
    assert.equal("1.5 GiB", rl.memory.format(1.5 * 2 ^ 30))
    assert.is_false((pcall(rl.memory.limit, device, "lots")))
    assert.is_false((pcall(rl.memory.limit, device, -1)))
  end)

  it("reuses what was freed and gives the cache back on demand", function()
    collect()
    rl.memory.empty_cache()
    local t = rl.zeros(2 ^ 20)
    t:free()
    local before = rl.memory.stats().from_cache
    local again = rl.zeros(2 ^ 20)
    assert.equal(before + 1, rl.memory.stats().from_cache)
    again:free()
    assert.is_true(rl.memory.empty_cache() >= 4 * MiB)
    assert.equal(rl.memory.stats().reserved - rl.memory.stats().reserved, 0)
  end)

  describe("scope", function()
    it("closes what was made inside but the results", function()
      local outside, escaped = rl.ones(1), nil
      local kept, list = rl.scope(function()
        local a, b = rl.ones(2), rl.ones(3)
        escaped = rl.ones(4)
        local _ = outside + 1
        return a, { deep = { b } }
      end)
      assert.equal(2, #kept)
      assert.equal(3, #list.deep[1])
      local ok, err = pcall(function() return escaped + 1 end)
      assert.is_false(ok)
      assert.matches("closed at the end of the rl.scope at .*memory_spec", err.message)
      assert.equal(1, #(outside + 1))
    end)

    it("closes by error too, and passes it on", function()
      local escaped
      local ok, err = pcall(rl.scope, function() escaped = rl.ones(1); error("oops") end)
      assert.is_false(ok)
      assert.matches("oops", err)
      assert.is_false((pcall(function() return escaped + 1 end)))
      assert.equal(1, #rl.ones(1))
    end)

    it("nests; keep takes out of all of them", function()
      local far
      local near = rl.scope(function()
        local inner = rl.scope(function()
          far = rl.keep(rl.ones(5))
          return rl.ones(2)
        end)
        assert.equal(2, #inner)
        return inner
      end)
      assert.equal(2, #near)
      assert.equal(5, #far)
    end)

    it("a live graph keeps its own hold", function()
      local x = rl.ones(3):requires_grad_()
      local y = rl.scope(function() return (x * 2):exp():sum() end)
      y:backward()
      assert.near(2 * math.exp(2), x.grad[1]:item(), 1e-4)
    end)

    -- Whatever went wrong before: handles come and go, and scopes close what is theirs.
    local function is_sound()
      collect()
      local ring = {}
      for i = 1, 2000 do ring[i % 50] = rl.ones(3) end
      ring = nil -- luacheck: ignore
      collect()
      local inner
      local outer = rl.scope(function() inner = rl.ones(2); return rl.ones(3) end)
      assert.is_false((pcall(function() return inner + 1 end)))
      assert.equal(6, (outer + 1):sum():item())
    end

    it("keeps results however deep they lie, in circles, and as keys", function()
      local depth = 20000
      local last, looked = rl.scope(function()
        local first = { before = false, obs = rl.ones(4) }
        local last = first
        for _ = 2, depth do last = { obs = rl.ones(4), before = last } end
        first.before, last.last = last, last
        return last, { [rl.full({ 2 }, 7)] = { [last] = true } }
      end)
      local n, at = 0, last
      repeat
        n = n + at.obs:sum():item() / 4
        at = at.before
      until at == last
      assert.equal(depth, n)
      assert.equal(14, next(looked):sum():item())
      is_sound()
    end)

    it("keeps what an error carries", function()
      local closed
      local ok, err = pcall(rl.scope, function()
        closed = rl.ones(1)
        error { obs = rl.ones(4) }
      end)
      assert.is_false(ok)
      assert.equal(4, err.obs:sum():item())
      assert.is_false((pcall(function() return closed + 1 end)))
      ok, err = pcall(rl.scope, function() error(rl.ones(5)) end)
      assert.is_false(ok)
      assert.equal(5, err:sum():item())
    end)

    it("may be left at any place of its own by an error", function()
      for place = 1, 40 do
        pcall(function()
          rl.scope(function()
            local _ = rl.ones(2)
            debug.sethook(function() debug.sethook(); error "stop" end, "", place)
          end)
          debug.sethook()
        end)
        is_sound()
      end
    end)

    it("closes in the scope around it what one that was left has made", function()
      local made
      rl.scope(function()
        local held = coroutine.create(function()
          require("rlengine.core").memory.scope_push()
          made = rl.ones(2)
        end)
        coroutine.resume(held)
        require("rlengine.core").memory.scope_push() -- and nobody pops it
        made = { made, rl.ones(3) }
      end)
      assert.equal(2, #made[1]) -- another coroutine's
      assert.is_false((pcall(function() return made[2] + 1 end)))
      is_sound()
    end)

    it("goes with a coroutine that is dropped in the middle", function()
      for _ = 1, 100 do
        local inner
        local co = coroutine.wrap(function()
          inner = rl.ones(2)
          rl.scope(rl.scope, function() inner = rl.ones(2); coroutine.yield() end)
        end)
        co()
        co = nil -- luacheck: ignore
        collect()
        assert.equal(2, inner:sum():item())
      end
      is_sound()
    end)

    it("takes what can be called, and nothing else", function()
      local callable = setmetatable({}, { __call = function(_, n) return rl.ones(n) end })
      assert.equal(3, #rl.scope(callable, 3))
      for _, wrong in ipairs { 5, "print", {}, rl.ones(1), false } do
        local ok, err = pcall(rl.scope, wrong or nil)
        assert.is_false(ok)
        assert.equal("INVALID_ARGUMENT", err.code)
        assert.equal("rl.scope: expected a function, got " .. type(wrong or nil), err.message)
        assert.matches("memory_spec.lua:%d+$", err.where)
      end
      is_sound()
    end)

    it("frees at a known place", function()
      local before = rl.memory.allocated()
      rl.scope(function() for _ = 1, 10 do rl.zeros(1000) end end)
      assert.equal(before, rl.memory.allocated())
    end)
  end)

  describe("watch", function()
    it("tells the first growth above the plateau with its line", function()
      local messages, held = {}, {}
      local watch = rl.memory.watch{ every = "episode", tolerance = "4KiB",
        log = function(m) messages[#messages + 1] = m end }
      local line
      for episode = 1, 4 do
        if episode > 2 then held[episode] = rl.zeros(4096); line = here() end
        watch()
      end
      assert.equal(2, #messages)
      assert.matches("16.0 KiB over episode 2 at episode 3", messages[1])
      assert.matches("tensors made at .*memory_spec.lua:" .. line, messages[1])
      assert.matches("16.0 KiB over episode 3 at episode 4", messages[2]) -- from the last warning
      assert.equal(4096, #held[4])
    end)

    it("stays with the device that it was made on", function()
      local other = device.name == "cpu" and rl.device_count "emu" > 0 and "emu" or "cpu"
      if other == device.name then return pending "there is no other device" end
      local messages = {}
      local watch = rl.memory.watch { log = function(m) messages[#messages + 1] = m end }
      local held = rl.zeros(50000, { device = other })
      watch()
      watch()
      rl.default_device(other)
      local grown = watch()
      local flat, err = pcall(rl.memory.assert_flat, function(i)
        rl.default_device(i > 2 and device or other)
      end)
      rl.default_device(device)
      assert.equal(0, grown)
      assert.same({}, messages)
      assert.is_true(flat, tostring(err))
      assert.equal(50000, #held)
    end)

    it("assert_flat fails on growth and passes without", function()
      rl.memory.assert_flat(function() local _ = rl.zeros(100) + 1 end)
      local held = {}
      local ok, err = pcall(rl.memory.assert_flat, function() held[#held + 1] = rl.zeros(100) end)
      assert.is_false(ok)
      assert.matches("memory is not flat: 7.0 KiB more", err.message)
    end)

    it("refuses what it cannot use", function()
      local function refuses(message, f, ...)
        local ok, err = pcall(f, ...)
        assert.is_false(ok)
        assert.equal(message, err.message)
        assert.equal("INVALID_ARGUMENT", err.code)
      end
      refuses('rl.memory.watch: unknown option "evry"; did you mean "every"?', rl.memory.watch,
        { evry = 1 })
      refuses('rl.memory.watch: every must be "episode"', rl.memory.watch, { every = "step" })
      refuses("rl.memory.watch: expected a table of options, got string", rl.memory.watch, "emu")
      refuses('rl.memory.watch: option "log" must be a function, got number', rl.memory.watch,
        { log = 1 })
      assert.is_false(pcall(rl.memory.watch, { device = "gpu" }))
      refuses("rl.memory.assert_flat: expected a function, got nil", rl.memory.assert_flat)
      refuses('rl.memory.assert_flat: unknown option "dev"', rl.memory.assert_flat, print,
        { dev = "cpu" })
      for _, text in ipairs { "0", "0.5", "0.9 B" } do
        for _, bytes in ipairs { text, tonumber(text:match "[%d.]+") } do
          refuses(("limit: %s is less than a byte; false removes the limit"):format(bytes),
            rl.memory.limit, "cpu", bytes)
        end
      end
      for _, bytes in ipairs { -1000, 0 / 0, math.huge } do
        for what, f in pairs {
          ["rl.memory.watch: tolerance"] = function() rl.memory.watch { tolerance = bytes } end,
          ["rl.memory.assert_flat: tolerance"] = function()
            rl.memory.assert_flat(error, { tolerance = bytes })
          end,
          ["rl.cleanup.on_pressure: above"] = function()
            rl.cleanup.on_pressure { above = bytes }
          end,
          ["parse"] = function() rl.memory.parse(bytes) end,
        } do
          refuses(("%s: expected bytes, from 0 on, got %.14g"):format(what, bytes), f)
        end
      end
      refuses('rl.memory.watch: tolerance: "some" is no size; write a number of bytes or one with '
        .. "KiB, MiB, GiB, KB, MB or GB", rl.memory.watch, { tolerance = "some" })
      for _, repeats in ipairs { -3, 2, 2.5, 0 / 0 } do
        refuses(("rl.memory.assert_flat: repeats must be a whole number from 3, got %.14g")
          :format(repeats), rl.memory.assert_flat, error, { repeats = repeats })
      end
      refuses("format: expected a number of bytes, got string", rl.memory.format, "many")
      for _, bytes in ipairs { -1, math.huge, 0 / 0, true, {} } do
        refuses('limit: expected bytes, a size such as "64MiB", or false for none', rl.memory.limit,
          "cpu", bytes)
      end
    end)
  end)
end)
