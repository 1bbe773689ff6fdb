-- Devices: names, ranks, reasons, properties, and the default device.
local process = require "process"
local rl = require "rlengine"

local here = rl.default_device()
local emulated = rl.device_count "emu"
local gpus, no_gpu = rl.device_count "cuda"

local function refused(code, pattern, fn, ...)
  local ok, err = pcall(fn, ...)
  assert.is_false(ok)
  assert.equal(code, err.code)
  assert.truthy(err.message:find(pattern), err.message)
end

describe("rl.device", function()
  it("is one value a device", function()
    local cpu = rl.device "cpu"
    assert.equal("cpu", cpu.name)
    assert.equal("cpu", cpu.type)
    assert.equal(0, cpu.index)
    assert.is_nil(cpu.reason)
    assert.equal("cpu", tostring(cpu))
    assert.equal("on cpu!", "on " .. cpu .. "!")
    assert.is_true(rawequal(cpu, rl.device "cpu"))
    assert.is_true(rawequal(cpu, rl.device(cpu)))
    assert.is_true(rawequal(cpu, rl.zeros(1, { device = cpu }).device))
  end)

  it("refuses what is no device", function()
    refused("INVALID_ARGUMENT", 'unknown device "tpu".*"cuda:<n>"', rl.device, "tpu")
    refused("INVALID_ARGUMENT", "unknown device", rl.device, "cuda:x")
    refused("INVALID_ARGUMENT", "expected a device or its name, got number", rl.device, 3)
    refused("INVALID_ARGUMENT", "a rank counts from 0", rl.device, "cpu", -1)
    refused("INVALID_ARGUMENT", 'no devices of type "gpu"', rl.device_count, "gpu")
    refused("UNAVAILABLE", 'no device "cpu:1": there is 1, from cpu:0 on', rl.device, "cpu:1")
  end)

  it("picks one by itself and says why", function()
    local dev = rl.device "auto"
    assert.is_true(dev == rl.device())
    if gpus == 0 then
      assert.is_true(dev == rl.device "cpu")
      assert.equal("no GPU used: " .. no_gpu, dev.reason)
      assert.equal("cpu (no GPU used: " .. no_gpu .. ")", tostring(dev))
    else
      assert.is_true(dev == rl.device "cuda:0")
      assert.equal(("GPU 1 of %d: %s"):format(gpus, dev:properties().name), dev.reason)
    end
    assert.is_true(rl.zeros(1, { device = dev }).device == dev)
  end)

  it("counts devices, with the reason when there are none", function()
    assert.equal(1, (rl.device_count "cpu"))
    assert.equal(gpus, (rl.device_count()))
    if gpus == 0 then
      assert.equal("string", type(no_gpu))
      assert.is_nil(no_gpu:find "\n")
      refused("UNAVAILABLE", 'no device "cuda": ' .. no_gpu:gsub("%p", "%%%0"), rl.device, "cuda")
    end
  end)

  it("has properties", function()
    local cpu = rl.device("cpu"):properties()
    assert.is_true(#cpu.name > 0)
    assert.is_true(cpu.memory > 2 ^ 20)
    assert.is_true(cpu.multiprocessors >= 1)
    assert.is_nil(cpu.compute_capability)
    assert.is_nil(cpu.driver)
    local ok, err = pcall(rl.cuda.get_device_capability, "cpu")
    assert.is_false(ok)
    assert.equal("INVALID_ARGUMENT", err.code)
    assert.equal("rl.cuda.get_device_capability: cpu is no GPU and has none", err.message)
    rl.device("cpu"):synchronize()
  end)

  it("answers for CUDA as PyTorch does", function()
    local available, reason = rl.cuda.is_available()
    assert.equal(gpus > 0, available)
    assert.equal(no_gpu, reason)
    assert.equal(gpus, (rl.cuda.device_count()))
    if gpus == 0 then
      refused("UNAVAILABLE", 'no device "cuda"', rl.cuda.get_device_name)
      refused("UNAVAILABLE", 'no device "cuda:1"', rl.cuda.synchronize, 1)
      refused("UNAVAILABLE", 'no device "cuda"', rl.zeros(1).cuda, rl.zeros(1))
      refused("UNAVAILABLE", 'no device "cuda:2"', rl.zeros(1).cuda, rl.zeros(1), 2)
      refused("UNAVAILABLE", 'no device "cuda"', function() rl.nn.Linear(1, 1):cuda() end)
    else
      assert.equal(rl.device("cuda"):properties().name, rl.cuda.get_device_name(0))
      local major, minor = rl.cuda.get_device_capability()
      assert.equal(rl.device("cuda"):properties().compute_capability,
        ("%d.%d"):format(major, minor))
      rl.cuda.synchronize()
    end
  end)
end)

describe("an emulated device", function()
  if emulated == 0 then
    pending "was not built"
    return
  end
  local emu = rl.device "emu"

  it("is a device", function()
    assert.equal("emu:0", tostring(emu))
    assert.equal("emu", emu.type)
    assert.equal(0, emu.index)
    assert.is_true(rawequal(emu, rl.device "emu:0"))
    assert.is_true(rawequal(emu, rl.device("emu", emulated))) -- rank modulo their number
    refused("UNAVAILABLE", "from emu:0 on", rl.device, "emu:" .. emulated)
    local p = emu:properties()
    assert.is_true(#p.name > 0)
    assert.is_true(p.memory > 0)
    assert.is_true(p.multiprocessors >= 1)
    assert.is_true(p.shared_memory >= 32768)
    assert.truthy(p.driver:match "^%d+%.%d+$")
    assert.truthy(p.runtime:match "^%d+%.%d+$")
    emu:synchronize()
  end)

  it("takes tensors and gives them back", function()
    local t = rl.tensor({ { 1, 2 }, { 3, 4 } }, { device = "cpu" })
    local u = t:to(emu)
    assert.is_true(u.device == emu)
    assert.is_true(u:to(emu) == u)
    assert.same({ { 1, 2 }, { 3, 4 } }, u:totable())
    assert.is_true(u:t():to("cpu"):equal(t:t()))
    assert.is_true(t:to({ device = "emu", dtype = "f64" }):cpu().dtype == "f64")
    assert.is_true(t:to(u).device == emu)
    assert.truthy(tostring(u):find("f32%[2,2%], emu:0%)"))
    local back = u:cpu()
    assert.is_true(back.device == rl.device "cpu")
    assert.is_true(back:equal(t))
  end)

  it("refuses to mix with another", function()
    local a, b = rl.ones(2, { device = "cpu" }), rl.ones(2, { device = emu })
    refused("INVALID_ARGUMENT", "cpu.*emu:0", function() return a + b end)
  end)

  it("has no pointer for the host", function()
    local t = rl.ones(2, { device = emu })
    refused("FAILED_PRECONDITION", "the data lies on emu:0; copy it with :cpu%(%)",
      function() return t:pointer() end)
    refused("FAILED_PRECONDITION", rawget(_G, "jit") and "emu:0" or "ffi needs LuaJIT",
      function() return t:ffi() end)
  end)
end)

describe("the default device", function()
  after_each(function() rl.default_device(here) end)

  local function everything()
    local env = rl.env.make "CartPole-v1"
    local folder = process.folder()
    rl.save(folder .. "/t.safetensors", { t = rl.ones(2) })
    local made = {
      tensor = rl.tensor { 1, 2 }, bytes = rl.from_bytes("\1\2", "u8", 2), empty = rl.empty(2),
      zeros = rl.zeros(2), ones = rl.ones(2), full = rl.full({ 2 }, 3), arange = rl.arange(3),
      linspace = rl.linspace(0, 1, 3), eye = rl.eye(2), rand = rl.rand(2), randn = rl.randn(2),
      randint = rl.randint(3, { 2 }), randperm = rl.randperm(3), keys = rl.row_keys(2),
      layer = rl.nn.Linear(2, 2).weight, normal = rl.distributions.Normal(0, 1):sample(),
      observation = env:reset { seed = 1 }, step = (env:step(1)),
      bound = env.observation_space.low, sample = env.observation_space:sample(),
      vector = rl.env.vector("CartPole-v1", { num_envs = 2 }):reset { seed = 1 },
      loaded = rl.load(folder .. "/t.safetensors").t,
    }
    process.remove(folder)
    return made
  end

  it("is where tensors are made when no device is named", function()
    local names = { "cpu" }
    if emulated > 0 then names[#names + 1] = "emu" end
    if gpus > 0 then names[#names + 1] = "cuda" end
    for _, name in ipairs(names) do
      local dev = rl.default_device(name)
      assert.is_true(dev == rl.device(name))
      assert.is_true(rl.default_device() == dev)
      for what, t in pairs(everything()) do
        assert.is_true(t.device == dev, what .. " is on " .. t.device)
      end
      assert.equal("cpu", rl.zeros(1, { device = "cpu" }).device.name)
      assert.equal("cpu", rl.zeros_like(rl.zeros(1, { device = "cpu" })).device.name)
    end
  end)

  it("has the memory figures", function()
    local t = rl.zeros(1000)
    assert.equal(rl.memory.allocated(here), rl.memory.allocated())
    t:free()
  end)

  it("refuses what is not there and stays", function()
    refused("INVALID_ARGUMENT", "unknown device", rl.default_device, "tpu")
    assert.is_true(rl.default_device() == here)
  end)

  local function ask(chunk, env)
    return process.run({ process.program(), "-e", 'local rl = require "rlengine" ' .. chunk },
      { env = env })
  end

  it("comes from the environment", function()
    local chunk = "io.write(tostring(rl.zeros(1).device))"
    assert.equal("cpu", ask(chunk, { RLENGINE_DEVICE = "" }).out)
    assert.equal("cpu", ask(chunk, { RLENGINE_DEVICE = false }).out)
    if emulated > 0 then
      assert.equal("emu:0", ask(chunk, { RLENGINE_DEVICE = "emu" }).out)
    end
    local r = ask(chunk, { RLENGINE_DEVICE = "cuda:999" })
    assert.equal(69, r.code)
    assert.truthy(r.err:find('RLENGINE_DEVICE: no device "cuda:999"', 1, true), r.err)
  end)

  it("is not opened before it is needed", function()
    -- The name is wrong, and nothing notices.
    local r = ask("io.write(type(rl.tensor))", { RLENGINE_DEVICE = "tpu" })
    assert.equal(0, r.code)
    assert.equal("function", r.out)
  end)
end)

describe("several devices", function()
  if emulated == 0 then
    pending "was not built"
    return
  end

  -- The output of a script in a process that has three of them.
  local function with_three(script, device)
    local folder = process.folder()
    process.write(folder .. "/script.lua", 'local rl = require "rlengine"\n' .. script)
    local r = process.run({ process.program(), folder .. "/script.lua" },
      { env = { RLENGINE_EMU = "devices=3", RLENGINE_DEVICE = device or false } })
    process.remove(folder)
    assert.equal(0, r.code, r.err)
    return r.out
  end

  it("are told apart, and ranks go around", function()
    assert.equal("3 emu:0 emu:1 emu:2 emu:0 emu:2", with_three [[
      io.write((rl.device_count "emu"))
      for rank = 0, 3 do io.write(" ", tostring(rl.device("emu", rank))) end
      io.write(" ", tostring(rl.device("emu:2", 1)))]])
  end)

  it("hold their own tensors, which go from one to the other", function()
    assert.equal("emu:1 emu:2 true true", with_three [[
      local a = rl.tensor({ 1, 2, 3 }, { device = "emu:1" })
      local before = rl.memory.allocated "emu:2"
      local b = a:to "emu:2"
      io.write(tostring(a.device), " ", tostring(b.device), " ",
        tostring(b:cpu():equal(a:cpu()) and rl.memory.allocated "emu:2" - before == 12), " ",
        tostring(not pcall(rl.add, a, b)))]])
  end)

  it("are shared out among the trainers that rl.launch starts", function()
    local out = with_three([[
      rl.launch {
        trainers = 2, observers_per_trainer = 1,
        trainer = function(ctx)
          print(ctx.rank, rl.zeros(1).device, rl.device("emu", ctx.rank))
        end,
        observer = function(ctx) print(ctx.name, rl.zeros(1).device) end,
      }]], "emu")
    local lines = {}
    for line in out:gmatch "[^\n]+" do lines[#lines + 1] = line:gsub("%s+", " "):match "| (.*)" end
    table.sort(lines)
    assert.same({ "0 emu:0 emu:0", "1 emu:1 emu:1", "obs_0_for_0 emu:0", "obs_0_for_1 emu:1" },
      lines)
  end)
end)

describe("the program", function()
  it("says with its version which GPU is used, or why none", function()
    local out = process.check { process.program(), "--version" }
    local lines = {}
    for line in out:gmatch "[^\n]+" do lines[#lines + 1] = line end
    assert.truthy(lines[1]:find "^rlengine %d")
    if gpus == 0 then
      assert.same({ lines[1], "no GPU is used: " .. no_gpu }, lines)
    else
      assert.equal(1 + gpus, #lines)
      assert.truthy(lines[2]:find "^cuda:0: .+, compute capability %d+%.%d, %d+%.%d GiB$")
    end
  end)

  it("says what is wrong with a plug-in", function()
    local folder = process.check({ "mktemp", "-d" }):match "[^\n]+"
    local file = folder .. "/rlengine_emu.so"
    local function why(content)
      if content then
        local f = assert(io.open(file, "wb"))
        f:write(content)
        f:close()
      end
      local r = process.run({ process.program(), "-e",
        'print(select(2, pcall(require("rlengine").device, "emu")).message)' },
        { env = { RLENGINE_PLUGINS = folder, RLENGINE_DEVICE = "cpu" } })
      assert.equal(0, r.code, r.err)
      return (r.out:gsub("\n$", ""))
    end
    assert.equal(('no device "emu": there is no rlengine_emu.so in %s, the folder that '
      .. "RLENGINE_PLUGINS names: unset it or name the one with the plug-ins"):format(folder),
      why())
    local broken = ('no device "emu": %s is no plug-in or only a part of one: build and install it '
      .. "again"):format(file)
    assert.equal(broken, why "")
    assert.equal(broken, why "not a plug-in")
    local program = assert(io.open(process.program(), "rb"))
    local start = program:read(20000) -- its headers promise more
    program:close()
    assert.equal("\127ELF", start:sub(1, 4))
    assert.equal(broken, why(start))
    process.check { "rm", "-r", folder }
  end)

  it("opens no plug-in to start", function()
    local chunk = [[local rl = require "rlengine" local t = rl.zeros(2) + 1
      for line in io.lines "/proc/self/maps" do
        local name = line:match "rlengine_%a+%.so" or line:match "libcud%a+"
        if name then io.write(name, "\n") end
      end]]
    local r = process.run({ process.program(), "-e", chunk }, { env = { RLENGINE_DEVICE = "cpu" } })
    assert.equal("", r.out)
    assert.equal(0, r.code)
  end)
end)
