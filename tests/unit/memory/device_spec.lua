-- Memory of each kind of device through the one accounting: what adds up, limits, the error
-- when there is no more, the steady state, the collector's debt.
local rl = require "rlengine"
local figure = require "figure"

local MiB = 2 ^ 20

local function collect()
  collectgarbage()
  collectgarbage()
end

local function here() return debug.getinfo(2, "l").currentline end

-- The CPU, and the emulated device where there is one. RLENGINE_TEST_DEVICE adds its own.
local devices = { "cpu" }
for _, name in ipairs { "emu", os.getenv "RLENGINE_TEST_DEVICE" or "cpu" } do
  if name ~= devices[1] and name ~= devices[2] and pcall(rl.device, name) then
    devices[#devices + 1] = name
  end
end

for _, device in ipairs(devices) do
  local on = { device = device }

  describe("memory of " .. device, function()
    before_each(function()
      collect()
      rl.memory.empty_cache(device)
    end)
    after_each(function()
      rl.memory.limit(device, false)
      collect()
    end)

    it("adds up to what the driver says", function()
      local held = { rl.zeros(1000, on), rl.zeros(700, 1000, on), rl.zeros(1, on) }
      rl.zeros(100000, on):free()
      local r, rows = rl.memory.report(device), 0
      for _, row in ipairs(r) do rows = rows + row.bytes end
      assert.equal(r.allocated, rows)
      assert.equal(r.reserved, r.allocated + r.rounding + r.cached + r.workspace)
      assert.equal(r.used, r.reserved + r.context + r.unaccounted)
      if device ~= "cpu" then
        assert.is_true(r.used <= r.total)
        assert.is_true(r.context > 0)
      end
      if r.device:match "^emu" then assert.equal(0, r.unaccounted) end
      for _, word in ipairs { "memory of " .. device, "tensors +2804004 +3 ", "rounding", "cache",
        "sum +" .. r.used } do
        assert.matches(word, tostring(r))
      end
      assert.equal(3, #held)
    end)

    it("counts what it asks of the driver, which in the steady state is nothing", function()
      local function episode()
        for i = 1, 20 do
          local x = rl.zeros(50 * i, on)
          local _ = x + 1
        end
        collect()
      end
      episode()
      local before = rl.memory.stats(device)
      for _ = 1, 20 do episode() end
      local after = rl.memory.stats(device)
      assert.equal(before.from_driver, after.from_driver)
      assert.equal(before.allocated, after.allocated)
      assert.equal(before.reserved, after.reserved)
      assert.equal(after.allocations - before.allocations, after.from_cache - before.from_cache)
    end)

    it("says how many bytes an emptied cache gives back", function()
      rl.zeros(MiB, on):free()
      local before = rl.memory.stats(device)
      assert.is_true(before.cached >= 4 * MiB)
      local given = rl.memory.empty_cache(device)
      assert.equal(before.reserved - given, rl.memory.reserved(device))
      assert.is_true(given >= 4 * MiB)
      assert.equal(0, rl.memory.empty_cache(device))
    end)

    it("keeps the peak until it is told to begin anew", function()
      local base = rl.memory.allocated(device)
      rl.zeros(MiB, on):free()
      assert.is_true(rl.memory.peak(device) >= base + 4 * MiB)
      rl.memory.reset_peak(device)
      assert.equal(rl.memory.allocated(device), rl.memory.peak(device))
    end)

    -- A limit of n MiB more than what is held now.
    local function limit_to(mib)
      rl.memory.limit(device, rl.memory.reserved(device) + mib * MiB)
    end

    it("refuses beyond the limit, names the holder, and goes on", function()
      limit_to(8)
      local before, held, line = rl.memory.stats(device), {}, nil
      local ok, err = pcall(function()
        for i = 1, 100 do held[i] = rl.zeros(256, 1024, on); line = here() end
      end)
      assert.is_false(ok)
      assert.equal("RESOURCE_EXHAUSTED", err.code)
      assert.matches("^out of device memory: wanted 1.0 MiB, [%d.]+ %a+ free of [%d.]+ MiB; most "
        .. "held by tests/unit/memory/device_spec.lua:" .. line .. " %(%d tensors, %d.0 MiB%)$",
        err.message)
      for _, text in ipairs { "limit", "largest free block", "asked once more", "hold most:",
        "try: letting go of what is made at tests/unit/memory/device_spec.lua:" .. line,
        "RLENGINE_DEVICE_LIMIT", "memory of " .. device } do
        assert.truthy(err.report:find(text, 1, true), text .. " is missing in\n" .. err.report)
      end
      local after = rl.memory.stats(device)
      assert.equal(before.retries + 1, after.retries)
      assert.equal(before.refused + 1, after.refused)
      assert.is_true(after.reserved <= after.limit)
      held = nil
      assert.equal(4, #rl.zeros(4, 65536, on)) -- what was dropped is found without being asked
      assert.equal(after.refused, rl.memory.stats(device).refused)
      assert.is_nil(held)
    end)

    it("F22: survives that as often as it happens, when references are dropped", function()
      limit_to(4)
      local times = os.getenv "RLE_FULL" == "1" and 2000 or 50
      local before = rl.memory.stats(device)
      for _ = 1, times do
        local held = {}
        local ok, err = pcall(function() for i = 1, 40 do held[i] = rl.zeros(65536, on) end end)
        assert.is_false(ok)
        assert.equal("RESOURCE_EXHAUSTED", err.code)
      end
      collect()
      local after = rl.memory.stats(device)
      assert.equal(times, after.refused - before.refused)
      assert.equal(before.allocated, after.allocated)
      assert.equal(65536, #rl.zeros(65536, on))
      figure("F22", "%s full %d times, references dropped: went on %d times, the same bytes held",
        device, times, after.refused - before.refused)
    end)

    it("counts workspaces against the limit, and says which does not fit", function()
      if device == "cpu" then return end -- has none of its own
      local usual = rl.cuda.matmul { device = device }
      rl.cuda.matmul { device = device, threshold = 1, workspace = "64KiB" }
      local x = rl.rand(64, 64, on)
      local whole = x:matmul(x)
      rl.memory.empty_cache(device)
      local least = rl.memory.report(device)
      limit_to(8)
      local ok, err = pcall(rl.cuda.matmul, { device = device, workspace = "13MiB" })
      if rl.memory.limit(device) >= 13 * MiB then -- else it could never be had
        assert.is_false(ok)
        assert.equal("RESOURCE_EXHAUSTED", err.code)
        assert.matches("^out of device memory: wanted 14.0 MiB, [%d.]+ MiB free of [%d.]+ MiB.-; "
          .. "that was for the workspace of cuBLAS, rl.cuda.matmul{workspace = ...} makes it "
          .. "smaller; or it needs a higher limit$", err.message)
        assert.truthy(err.report:find("try: rl.cuda.matmul{workspace", 1, true), err.report)
      end
      -- Room is made for one that fits, also of what waits for the collector.
      for _ = 1, 3 do rl.zeros(MiB / 2, on) end
      rl.cuda.matmul { device = device, workspace = "8MiB" }
      assert.equal(whole:sum():item(), x:matmul(x):sum():item())
      local report = rl.memory.report(device)
      assert.is_true(report.reserved <= report.limit)
      assert.equal(least.workspace + 6 * MiB, report.workspace) -- it had taken 2
      assert.equal(report.used - least.used, report.reserved - least.reserved)
      ok, err = pcall(rl.zeros, 2 * MiB, on)
      assert.is_false(ok)
      assert.equal("RESOURCE_EXHAUSTED", err.code)
      -- Working memory of operations.
      local many = rl.memory.limit(device, false) or rl.rand(2e6, on)
      limit_to(4)
      ok, err = pcall(many.sort, many)
      assert.is_false(ok)
      assert.equal("RESOURCE_EXHAUSTED", err.code)
      rl.memory.limit(device, false)
      rl.cuda.matmul { device = device, threshold = usual.threshold, workspace = usual.workspace }
    end)

    it("says when the limit is below what is taken at once", function()
      if device == "cpu" then
        rl.memory.limit(device, rl.memory.reserved(device) + 1000)
        local ok, err = pcall(rl.zeros, 245, on)
        assert.is_false(ok)
        assert.matches("wanted 980 bytes, 1000 bytes free of [%d.]+ %a+, but it is taken in pieces "
          .. "of 1.0 KiB here", err.message)
        return
      end
      rl.memory.limit(device, rl.memory.reserved(device) + 1000)
      local held = {}
      local ok, err = pcall(function()
        for i = 1, 4096 do held[i] = rl.zeros(128, on) end -- fills the segment that is open
      end)
      assert.is_false(ok)
      assert.matches("wanted 512 bytes, 1000 bytes free of [%d.]+ %a+, but it is taken in pieces "
        .. "of 2.0 MiB here", err.message)
    end)

    it("shows sizes by the byte where they would look alike", function()
      rl.memory.limit(device, rl.memory.reserved(device) + 24 * MiB)
      local held = { rl.zeros(5, 2 ^ 20, on), rl.zeros(1, on) }
      local ok, err = pcall(rl.zeros, 2 ^ 20, on)
      assert.is_false(ok)
      local wanted, free, text = err.message:match "wanted (%d+) bytes, (%d+) bytes free of (.*)"
      assert.equal(4 * MiB, tonumber(wanted), err.message)
      assert.is_true(tonumber(free) < 4 * MiB and tonumber(free) > 3.9 * MiB, err.message)
      assert.is_nil(text:find("but", 1, true)) -- there is too little, and that is all
      assert.equal(2, #held)
    end)

    it("says when it is the rounding of small tensors that takes much", function()
      limit_to(2)
      local held, line = {}, nil
      local ok, err = pcall(function()
        for i = 1, 1e5 do held[i] = rl.zeros(1, on); line = here() end
      end)
      assert.is_false(ok)
      assert.matches("free of [%d.]+ MiB; [%d.]+ MiB of what is taken is the rounding of small "
        .. "tensors; most held by tests/unit/memory/device_spec.lua:" .. line .. " ", err.message)
      assert.matches(("try: fewer and larger tensors: each takes %d bytes here, however small it "
        .. "is; rl.stack makes one of many, first those made at tests/unit/memory/device_spec.lua:"
        .. "%d"):format(device == "cpu" and 64 or 512, line), err.report)
      -- The same in large ones: no word of it.
      held = {}
      ok, err = pcall(function() for i = 1, 100 do held[i] = rl.zeros(2 ^ 16, on) end end)
      assert.is_false(ok)
      assert.is_nil(err.message:find("rounding", 1, true))
    end)

    it("tells what grew since the plateau of a watch", function()
      local watch = rl.memory.watch { device = device, log = function() end }
      watch()
      watch()
      limit_to(4)
      local held, line = {}, nil
      local _, err = pcall(function()
        for i = 1, 100 do held[i] = rl.zeros(65536, on); line = here() end
      end)
      assert.matches("grew most since episode 2:\n +%d.[%d] MiB  tensors +%d+ tensors "
        .. "tests/unit/memory/device_spec.lua:" .. line, err.report)
      assert.is_true(#held > 4)
    end)

    it("refuses what is larger than everything at once", function()
      local ok, err = pcall(rl.zeros, 3e7, 84 * 84 * 4, { device = device, dtype = "u8" })
      assert.is_false(ok)
      assert.equal("RESOURCE_EXHAUSTED", err.code)
      assert.matches("wanted 788.6 GiB, [%d.]+ %a+ free ", err.message)
    end)

    it("runs a loop that only makes tensors for ever", function()
      limit_to(64)
      for _ = 1, 60 do local _ = rl.zeros(1e6, on) end
      assert.is_true(rl.memory.reserved(device) <= rl.memory.limit(device))
    end)

    it("holds a limit given as text, and drops it", function()
      assert.equal(64 * MiB, rl.memory.limit(device, "64MiB"))
      assert.equal(64 * MiB, rl.memory.limit(device))
      assert.is_nil(rl.memory.limit(device, false))
    end)
  end)
end
