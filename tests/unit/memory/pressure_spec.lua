-- A device that is full collects garbage in the midst of the engine's work; finalizers of the
-- script run there, and may raise, allocate, or use the engine.
local rl = require "rlengine"
local process = require "process"

local device = tostring(rl.default_device())

-- A process of its own: what the collector has to do there is known, and so is its log.
local function run(script)
  local folder = process.folder()
  process.write(folder .. "/train.lua", ([[
    local rl = require "rlengine"
    local device, MiB, N = "%s", 2 ^ 20, 2 ^ 20
    -- The steps that the collector makes for the bytes of a few tensors are a part of its work.
    HEAP = {}
    for i = 1, 3e5 do HEAP[i] = { i } end
    local function collect() collectgarbage() collectgarbage() end
    -- Full but for garbage: so many tensors of 4 MiB that nobody collected yet.
    local live = {}
    local function fill(garbage)
      collect()
      rl.memory.empty_cache(device)
      rl.memory.limit(device, rl.memory.reserved(device) + 24 * MiB)
      repeat
        local ok, t = pcall(rl.ones, N)
        live[#live + 1] = ok and t or nil
      until not ok
      collect()
      for _ = 1, garbage do live[#live] = nil end
    end
    local function finalizer(fn) getmetatable(newproxy(true)).__gc = fn end
    local function stats() return rl.memory.stats(device) end
    local function owned(owner)
      local sum = 0
      for _, r in ipairs(rl.memory.report(device)) do
        if r.owner == owner then sum = sum + r.bytes end
      end
      return sum
    end
  ]]):format(device) .. script)
  local r = process.run({ process.program(), "train.lua" },
    { cwd = folder, env = { RLENGINE_DEVICE = device } })
  process.remove(folder)
  assert.equal(0, r.code, r.err)
  return r
end

local function lines(text) return select(2, text:gsub("\n", "")) end

describe("a finalizer that raises while a full device collects", function()
  it("is told once, and the collection goes on, then and later", function()
    local r = run [[
      fill(1)
      finalizer(function() error "from a finalizer" end)
      local before, raised = stats(), 0
      for _ = 1, 8 do
        local ok = pcall(function() local _ = rl.ones(N) end)
        if not ok then raised = raised + 1 end
      end
      print(raised, stats().retries - before.retries, stats().refused - before.refused)
    ]]
    assert.equal("0\t8\t0\n", r.out)
    assert.equal(1, lines(r.err), r.err)
    assert.matches("a finalizer raised while " .. device .. " was full and garbage was "
      .. "collected: .-train.lua:%d+: from a finalizer\n$", r.err)
  end)

  it("keeps none behind it from running: many, and errors that are no strings", function()
    local r = run [[
      fill(2)
      local ran, odd = 0, setmetatable({}, { __tostring = function() return "odd" end })
      for _ = 1, 300 do finalizer(function() ran = ran + 1 error(odd) end) end
      local x = rl.ones(N)
      print(ran, #x)
    ]]
    assert.equal("300\t1048576\n", r.out)
    assert.equal(1, lines(r.err), r.err)
    assert.matches("collected: odd %(and 299 more finalizers raised%)\n$", r.err)
  end)

  it("may use the engine, which is in nobody's midst for it", function()
    local r = run [[
      local net = rl.nn.Linear(1024, 1024)
      local opt = rl.optim.Adam(net:parameters(), { lr = 1e-3 })
      net(rl.ones(1, 1024)):sum():backward()
      collect()
      fill(3)
      rl.memory.limit(device, rl.memory.limit(device) + MiB) -- for small ones
      finalizer(function()
        LEFT = rl.ones(10):requires_grad_() * 2
        error "from a finalizer"
      end)
      local before, held = stats().retries, owned "optimizer"
      print(rl.no_grad(function() return pcall(opt.step, opt) end))
      print(held, stats().retries - before > 0, LEFT and LEFT.requires_grad)
      rl.memory.limit(device, false)
      local x = rl.ones(777)
      print(owned "optimizer", #x, x.requires_grad, rl.is_grad_enabled())
    ]]
    assert.equal(("true\n0\ttrue\ttrue\n%d\t777\tfalse\ttrue\n")
      :format(2 * 4 * (1024 * 1024 + 1024)), r.out)
    assert.matches("^[^\n]*from a finalizer\n$", r.err)
  end)

  it("leaves Ctrl-C, hooks and coroutines to the script", function()
    local r = run [[
      local signal, getpid = require "posix.signal", require("posix.unistd").getpid
      fill(1)
      local kept
      local function make() kept = rl.ones(N) end
      local co = coroutine.wrap(function() make() coroutine.yield "yielded" return "ended" end)
      finalizer(function() error(coroutine.running() and "from a finalizer") end)
      local hook = function() end
      debug.sethook(hook, "crl", 1)
      print(co(), co(), debug.gethook() == hook)
      debug.sethook()
      kept = nil
      finalizer(function() signal.kill(getpid(), signal.SIGINT) end)
      local ok, err = pcall(function() make() for _ = 1, 1e9 do end end)
      print(ok, err)
      make()
      print(#kept, stats().refused)
    ]]
    assert.equal("yielded\tended\ttrue\nfalse\tCANCELLED: interrupted\n1048576\t1\n", r.out)
    assert.matches("^[^\n]*from a finalizer\n$", r.err)
  end)

  it("leaves a backward pass whole, and the graph goes with it", function()
    local r = run [[
      local w = rl.ones(N):requires_grad_()
      local loss = (w * 2):exp():mul(w):sum()
      fill(4)
      finalizer(function() error "from a finalizer" end)
      local before = stats().retries
      print(pcall(loss.backward, loss))
      print(stats().retries - before > 0, w.grad:sum():item() > 1)
      w, loss, live = nil, nil, nil
      collect()
      print(stats().nodes, stats().tensors, stats().allocated)
    ]]
    assert.equal("true\ntrue\ttrue\n0\t0\t0\n", r.out)
    assert.matches("^[^\n]*from a finalizer\n$", r.err)
  end)

  it("leaves a backward pass whole that functions of the script are part of", function()
    local r = run [[
      HEAP = nil
      collect()
      local twice = rl.autograd.Function {
        forward = function(_, x) return x * 2 end,
        backward = function(_, g) return g * 2 end,
      }
      local failed = 0
      for _ = 1, 6 do
        local w = rl.ones(N):requires_grad_()
        local y = w
        for _ = 1, 10 do y = twice(y) end
        y = y:sum()
        collect()
        finalizer(function() error "from a finalizer" end)
        local ok, err = pcall(y.backward, y)
        repeat until pcall(collect)
        -- In the function itself, or on the way to it: then the pass fails.
        if not ok and tostring(err):find "backward of .-from a finalizer" then
          failed = failed + 1
        end
      end
      collect()
      print(failed > 0, stats().nodes, stats().tensors, stats().allocated)
    ]]
    assert.equal("true\t0\t0\t0\n", r.out)
  end)
end)
