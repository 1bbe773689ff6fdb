-- Calls between processes: values, futures, errors, nesting, bounds, deadlines.
package.path = "tests/support/?.lua;" .. package.path
local rl = require "rlengine"
local fails = require "fails"
local workers = require "workers"
local rpc = rl.rpc

local ECHO = [[
rpc.register("echo", function(...) return ... end)
rpc.register("count", function(...) return select("#", ...) end)
rpc.register("kinds", function(...)
  local out = {}
  for i = 1, select("#", ...) do out[i] = type((select(i, ...))) end
  return table.concat(out, " ")
end)
]]

describe("values", function()
  local group
  before_each(function()
    group = workers.group()
    group:start("w", ECHO)
  end)
  after_each(function() group:finish { blocks = true } end) -- tensors' memory stays cached

  it("cross as what they are", function()
    local long = ("x"):rep(100000) .. "\0\255"
    local a, b, c, d, e, f, g = rpc.rpc_sync("w", "echo", nil, true, -1.5, 2 ^ 53, "", long, nil)
    assert.is_nil(a)
    assert.is_true(b)
    assert.equal(-1.5, c)
    assert.equal(2 ^ 53, d)
    assert.equal("", e)
    assert.equal(long, f)
    assert.is_nil(g)
    assert.equal(7, rpc.rpc_sync("w", "count", nil, 1, 2, 3, 4, 5, nil))
    assert.equal(0, rpc.rpc_sync("w", "count"))
    assert.equal(0, select("#", rpc.rpc_sync("w", "echo")))
    local t = { 1, 2, { a = { true, [1.5] = "x", [false] = 0 } }, n = "name", [-3] = {} }
    assert.same(t, rpc.rpc_sync("w", "echo", t))
    local holes = { 1, nil, nil, 4 }
    assert.same(holes, (rpc.rpc_sync("w", "echo", holes)))
    local inf, nan, zero = rpc.rpc_sync("w", "echo", 1 / 0, 0 / 0, -0.0)
    assert.equal(1 / 0, inf)
    assert.is_true(nan ~= nan)
    assert.equal(-1 / 0, 1 / zero)
  end)

  it("keep integers of 64 bits", function()
    local ffi = require "ffi"
    local i, u = rpc.rpc_sync("w", "echo", ffi.new("int64_t", -2) ^ 63,
      18446744073709551615ULL)
    assert.equal("cdata", type(i))
    assert.equal("-9223372036854775808LL", tostring(i))
    assert.equal("18446744073709551615ULL", tostring(u))
    assert.equal("INVALID_ARGUMENT", fails(rpc.rpc_sync, "w", "echo", ffi.new "int").code)
  end)

  it("include tensors of every kind", function()
    for _, dtype in ipairs { "f32", "f64", "i32", "i64", "u8", "bool" } do
      local t = rl.tensor({ { 1, 0, 1 }, { 0, 1, 1 } }, { dtype = dtype })
      local back = rpc.rpc_sync("w", "echo", t)
      assert.equal(dtype, back.dtype)
      assert.equal(rl.default_device(), back.device)
      assert.same({ 2, 3 }, back.shape)
      assert.is_true(back:eq(t):all():item())
    end
    local scalar, empty, view = rpc.rpc_sync("w", "echo", rl.tensor(7), rl.zeros(0, 3),
      rl.tensor { { 1, 2 }, { 3, 4 } }:transpose(1, 2))
    assert.same({}, scalar.shape)
    assert.equal(7, scalar:item())
    assert.same({ 0, 3 }, empty.shape)
    assert.same({ { 1, 3 }, { 2, 4 } }, view:totable())
    local nested = rpc.rpc_sync("w", "echo", { a = { rl.ones(3) } })
    assert.equal(3, nested.a[1]:sum():item())
    local grad = rl.ones(2):requires_grad_()
    assert.is_false(rpc.rpc_sync("w", "echo", grad * 2).requires_grad)
    local big = rl.arange(0, 3e6)
    local back = rpc.rpc_sync("w", "echo", big)
    assert.is_true(back:eq(big):all():item())
  end)

  it("of tensors are received where they stay", function()
    local device = rl.default_device()
    local list = {}
    for i = 1, 5 do list[i] = rl.rand(100000 + i) end
    local back = rpc.rpc_sync("w", "echo", { list, "and", { more = list[1] } }, list[2])
    for i = 1, 5 do assert.is_true(back[1][i]:eq(list[i]):all():item()) end
    assert.is_true(back[3].more:eq(list[1]):all():item())
    -- What nobody reads is given back: a late result, a result dropped, a connection lost.
    back, list = nil, rl.rand(1000000) -- luacheck: ignore
    collectgarbage()
    collectgarbage()
    local before = rl.memory.allocated(device)
    for _ = 1, 5 do
      rpc.rpc_async("w", "echo", list)
      local f = rpc.to("w"):rpc_async { timeout = 0.001 }:echo(list)
      pcall(f.wait, f)
      rpc.rpc_sync("w", "echo", list)
    end
    assert.is_true(workers.eventually(function()
      collectgarbage()
      return rpc.counters().futures == 0 and rl.memory.allocated(device) == before
    end))
    local w = group:start("dies", ECHO)
    rpc.rpc_sync("dies", "echo")
    for _ = 1, 5 do rpc.rpc_async("dies", "echo", list) end
    for _ = 1, 3 do rpc.sleep(0) end
    w:kill()
    assert.is_true(workers.eventually(function()
      collectgarbage()
      return rpc.counters().futures == 0 and rl.memory.allocated(device) == before
    end))
  end)

  it("that cannot cross are named, and nothing is lost", function()
    local loop = {}
    loop.x = loop
    local deep = {}
    for _ = 1, 70 do deep = { deep } end
    local wide = {}
    for i = 1, 70000 do wide[i] = i end
    local class = rpc.class("Unsent", {})
    local function message(...) return fails(rpc.rpc_sync, "w", "echo", ...).message end
    assert.equal("argument 2: a function cannot be sent", message(1, print))
    assert.equal('argument 1, field "cb": a function cannot be sent', message { cb = print })
    assert.equal("argument 1, field \"x\": value nested deeper than 64", message(loop))
    assert.equal("argument 1: value nested deeper than 64", message(deep))
    assert.matches("more than 65536 values", message(wide))
    assert.matches("rpc.rref", message(class()))
    assert.matches("over the limit of 1048576", message(("x"):rep(2 ^ 20 + 1)))
    assert.matches("key of a table", message { [{}] = 1 })
    assert.matches("a thread cannot be sent", message(coroutine.create(print)))
    assert.equal("argument 2: a device cannot be sent; send its name, and rl.device(name) there",
      message(1, rl.device "cpu"))
    assert.equal(5, rpc.rpc_sync("w", "echo", 5))
    local counters = rpc.counters()
    assert.equal(0, counters.futures)
  end)
end)

describe("futures", function()
  local group
  before_each(function()
    group = workers.group()
    group:start("w", ECHO .. [[
rpc.register("sleep", function(s, v) rpc.sleep(s) return v end)
rpc.register("fail", function(text) error(text, 0) end)
    ]])
  end)
  after_each(function() group:finish() end)

  it("give their results as often as asked", function()
    local f = rpc.rpc_async("w", "echo", 1, nil, "three")
    assert.matches('^Future%("echo" on "w", ', tostring(f))
    local function check(...)
      assert.equal(3, select("#", ...))
      assert.equal("three", (select(3, ...)))
    end
    check(f:wait())
    assert.is_true(f:done())
    check(f:wait { timeout = 1 })
    local bad = rpc.rpc_async("w", "fail", "oh")
    assert.matches("oh", fails(bad.wait, bad).message)
    assert.matches("oh", fails(bad.wait, bad).message)
  end)

  it("can be waited for with a limit, and go on", function()
    local f = rpc.rpc_async("w", "sleep", 0.2, "late")
    local err = fails(f.wait, f, { timeout = 0.02 })
    assert.equal("DEADLINE_EXCEEDED", err.code)
    assert.is_false(f:done())
    assert.equal("late", f:wait())
  end)

  it("are waited for together", function()
    local list = {}
    for i = 1, 200 do list[i] = rpc.rpc_async("w", "echo", i, "second") end
    local results = rpc.wait_all(list)
    for i = 1, 200 do assert.equal(i, results[i]) end
    assert.same({}, rpc.wait_all {})
    -- The failure comes at once, though an earlier call still runs.
    local slow, bad = rpc.rpc_async("w", "sleep", 5), rpc.rpc_async("w", "fail", "no")
    local t0 = workers.now()
    assert.matches('"fail" on "w" failed: no', fails(rpc.wait_all, { slow, bad }).message)
    assert.is_true(workers.now() - t0 < 4)
    slow:cancel()
    local one = rpc.rpc_async("w", "echo", 1)
    local all = rpc.wait_all({ one, bad }, { fail_fast = false })
    assert.equal(1, all[1])
    assert.equal("UNKNOWN", all[2].code)
    local quick = rpc.rpc_async("w", "echo", 9)
    local sleeping = rpc.rpc_async("w", "sleep", 3)
    local i, f = rpc.wait_any { sleeping, quick }
    assert.equal(2, i)
    assert.equal(9, f:wait())
    sleeping:cancel()
    assert.equal("DEADLINE_EXCEEDED",
      fails(rpc.wait_all, { rpc.rpc_async("w", "sleep", 0.3) }, { timeout = 0.02 }).code)
    assert.equal("INVALID_ARGUMENT", fails(rpc.wait_all, { 1 }).code)
  end)

  it("can be followed by a function", function()
    local f = rpc.rpc_async("w", "echo", 20):next(function(v)
      return v + rpc.rpc_sync("w", "echo", 1), "two"
    end)
    local a, b = f:wait()
    assert.equal(21, a)
    assert.equal("two", b)
    local bad = rpc.rpc_async("w", "fail", "oh"):next(function() return 1 end)
    assert.matches("oh", fails(bad.wait, bad).message)
    local raised = rpc.rpc_async("w", "echo"):next(function() error("here", 0) end)
    local ok, err = pcall(raised.wait, raised)
    assert.is_false(ok)
    assert.equal("here", err)
  end)

  it("can be cancelled", function()
    local f = rpc.rpc_async("w", "sleep", 30)
    rpc.rpc_sync("w", "echo") -- it has begun by now
    f:cancel()
    local err = fails(f.wait, f)
    assert.equal("CANCELLED", err.code)
    assert.equal("unknown", err.outcome)
    assert.is_true(workers.eventually(function()
      local info = rpc.worker_info "w"
      return info.calls_to == 0
    end))
    f:cancel()
  end)

  it("say who made them when nobody looks at their error", function()
    local path = group.folder .. "/script.lua"
    require("process").write(path, ([[
local rpc = require("rlengine").rpc
rpc.init{ name = "x", connect = %q, token = %q }
rpc.rpc_async("test", "nothing")
for _ = 1, 1000 do
  rpc.sleep(0.005)
  collectgarbage()
  if rpc.counters().futures == 0 then break end
end
rpc.shutdown()
]]):format(group.address, workers.token))
    local w = group:run(path, "x")
    workers.eventually(function() return w:output():find "unhandled" end, 5)
    assert.equal(0, w:join())
    assert.matches('unhandled error in a future made at [^:]*script.lua:3: NOT_FOUND: "test" ' ..
      'exports no "nothing"', w:output())
  end)

  it("say so also when the script let go of them before they failed", function()
    local path, go = group.folder .. "/script.lua", false
    rpc.register("when_told", function() repeat rpc.sleep(0.005) until go end)
    rpc.register("collected", function() go = true end)
    require("process").write(path, ([[
local rpc = require("rlengine").rpc
rpc.init{ name = "x", connect = %q, token = %q }
rpc.rpc_async("test", "when_told"):next(function() error("nobody looks") end)
for _ = 1, 3 do
  rpc.sleep(0.01)
  collectgarbage() collectgarbage()
end
rpc.rpc_sync("test", "collected")
for _ = 1, 1000 do
  rpc.sleep(0.005)
  collectgarbage() collectgarbage()
  if rpc.counters().futures <= 1 then break end
end
rpc.shutdown()
]]):format(group.address, workers.token))
    local w = group:run(path, "x")
    assert.is_true(workers.eventually(function() return w:poll() end, 20))
    assert.equal(0, w:join())
    assert.matches("unhandled error in a future made at [^:]*script.lua:3: [^\n]*script.lua:3: " ..
      "nobody looks\n", w:output())
  end)
end)

describe("errors", function()
  local group
  before_each(function()
    group = workers.group()
    group:start("far", [[
rpc.register("boom", function() error("pole fell off") end)
rpc.register("table", function() error({ code = "DATA_LOSS", message = "three" }) end)
rpc.register("odd", function() error(setmetatable({}, { __index = { code = "ABORTED" } })) end)
rpc.register("shape", function()
  local product = rl.zeros(2, 3):matmul(rl.zeros(2, 3))
  return product
end)
rpc.register("unsendable", function() return print end)
rpc.register("extra", function()
  local err = require("rlengine.core").error.new{ code = "RESOURCE_EXHAUSTED", message = "full",
    report = "who holds it", list = { 1, 2 } }
  error(err, 0)
end)
    ]])
    group:start("near", [[
rpc.register("ask", function(worker, name) return rpc.rpc_sync(worker, name) end)
    ]], "listen = 'unix:" .. group.folder .. "/near.sock'")
    rpc.register("relay", function(worker, name) return rpc.rpc_sync(worker, name) end)
  end)
  after_each(function() group:finish() end)

  it("carry code, worker, method, line and traceback", function()
    local err = fails(rpc.rpc_sync, "far", "boom")
    assert.equal("UNKNOWN", err.code)
    assert.matches('^"boom" on "far" failed: .*far.lua:%d+: pole fell off$', err.message)
    assert.equal("UNKNOWN: " .. err.message, tostring(err))
    assert.equal("far", err.worker)
    assert.equal("boom", err.method)
    assert.is_nil(err.outcome)
    assert.matches("far.lua:%d+: in function", err.traceback)
    assert.matches("called from", err.traceback)
    assert.is_nil(err.via)
  end)

  it("keep their code, and an object its fields", function()
    local err = fails(rpc.rpc_sync, "far", "table")
    assert.equal("DATA_LOSS: three", tostring(err))
    err = fails(rpc.rpc_sync, "far", "odd")
    assert.equal("UNKNOWN", err.code)
    err = fails(rpc.rpc_sync, "far", "shape")
    assert.equal("INVALID_ARGUMENT", err.code)
    assert.matches("far.lua:%d+", err.where)
    err = fails(rpc.rpc_sync, "far", "unsendable")
    assert.equal("INVALID_ARGUMENT: result 1: a function cannot be sent", tostring(err))
    err = fails(rpc.rpc_sync, "far", "extra")
    assert.equal("who holds it", err.report)
    assert.same({ 1, 2 }, err.list)
  end)

  it("cross two workers with their origin", function()
    -- near -> test -> far: near knows only this worker.
    local err = fails(rpc.rpc_sync, "near", "ask", "test", "never")
    assert.equal("NOT_FOUND", err.code)
    assert.equal("test", err.worker)
    assert.same({ "near" }, err.via)
    rpc.register("far_boom", function() return rpc.rpc_sync("far", "boom") end)
    err = fails(rpc.rpc_sync, "near", "ask", "test", "far_boom")
    assert.equal("UNKNOWN", err.code)
    assert.matches('^"boom" on "far" failed: .*pole fell off$', err.message)
    assert.equal("far", err.worker)
    assert.equal("boom", err.method)
    assert.same({ "test", "near" }, err.via)
    local _, times = err.message:gsub("failed:", "")
    assert.equal(1, times)
  end)

  it("name what is not exported", function()
    for _, name in ipairs { "os.execute", "__index", "relay ", "init", "rlengine.none" } do
      local err = fails(rpc.rpc_sync, "far", name)
      assert.equal(('NOT_FOUND: "far" exports no "%s"'):format(name), tostring(err))
    end
    local long = ("n"):rep(65)
    assert.equal(('NOT_FOUND: "far" exports no "%s"'):format(long),
      tostring(fails(rpc.rpc_sync, "far", long)))
    assert.equal('NOT_FOUND: "far" exports no ""', tostring(fails(rpc.rpc_sync, "far", "")))
    assert.equal("NOT_FOUND", fails(rpc.rpc_sync, "far", "a\0b").code)
  end)
end)

describe("who may call", function()
  it("is said by name", function()
    local group = workers.group()
    rpc.register("for_observers", function() return rpc.caller() end, { from = "obs_*" })
    local Guarded = rpc.class("Guarded", { "get" }, { from = "obs_*" })
    function Guarded:get() return 1 end
    local body = [[
rpc.register("go", function(...)
  return select(2, pcall(rpc.rpc_sync, "test", "for_observers"))
end)
rpc.register("make", function()
  return select(2, pcall(function() return rpc.remote("test", "Guarded"):rpc_sync():get() end))
end)
rpc.register("use", function(ref)
  return select(2, pcall(function() return ref:rpc_sync():get() end))
end)
    ]]
    group:start("obs_1", body)
    group:start("other", body)
    assert.equal("obs_1", rpc.rpc_sync("obs_1", "go"))
    assert.equal(1, rpc.rpc_sync("obs_1", "make"))
    assert.equal('PERMISSION_DENIED: "other" may not call "for_observers" of "test"',
      tostring(rpc.rpc_sync("other", "go")))
    assert.equal("PERMISSION_DENIED", rpc.rpc_sync("other", "make").code)
    local ref = rpc.rref(Guarded())
    assert.equal(1, rpc.rpc_sync("obs_1", "use", ref))
    assert.equal("PERMISSION_DENIED", rpc.rpc_sync("other", "use", ref).code)
    assert.is_nil(rpc.caller())
    group:finish()
  end)
end)

describe("other Luas", function()
  for _, version in ipairs { "5.1", "5.4" } do
    local module = ("build/lua%s/rlengine/core.so"):format(version)
    local found = io.open(module)
    if found then found:close() end
    local there = found and os.execute(("command -v lua%s >/dev/null"):format(version)) == 0
    local test = there and it or pending
    test("call and are called: " .. version, function()
      local process = require "process"
      local group = workers.group()
      rpc.register("echo", function(...) return ... end)
      rpc.register("double", function(n) return 2 * n end)
      local path = group.folder .. "/other.lua"
      process.write(path, ([[
package.path = "lua/?.lua;lua/?/init.lua;" .. package.path
package.cpath = "build/lua%s/?.so;" .. package.cpath
local rl = require "rlengine"
local rpc = rl.rpc
rpc.register("whole", function(n) return n, math.type and math.type(n) end)
rpc.register("waits", function(n) return rpc.rpc_sync("test", "double", n) end)
rpc.register("tensor", function(t) return t + 1 end)
rpc.register("wide", function(n) return n end)
rpc.init{ name = "other", connect = %q, token = %q }
local a, b, c = rpc.rpc_sync("test", "echo", 1, "two", { 3, x = { true } })
assert(a == 1 and b == "two" and c[1] == 3 and c.x[1] == true)
assert(rpc.rpc_async("test", "double", 4):wait() == 8)
assert(not pcall(rpc.rpc_sync, "test", "nothing"))
rpc.serve()
      ]]):format(version, group.address, workers.token))
      local w = group:run(path, "other", {}, "lua" .. version)
      local n, kind = rpc.rpc_sync("other", "whole", 5)
      assert.equal(5, n)
      assert.equal(version == "5.4" and "integer" or nil, kind)
      assert.same({ 2, 3 }, rpc.rpc_sync("other", "tensor", rl.tensor { 1, 2 }):totable())
      if version == "5.4" then
        assert.equal(14, rpc.rpc_sync("other", "waits", 7))
        assert.equal("4611686018427387905LL",
          tostring(rpc.rpc_sync("other", "wide", 4611686018427387905LL)))
      else
        local err = fails(rpc.rpc_sync, "other", "waits", 7)
        assert.equal("FAILED_PRECONDITION", err.code)
        assert.matches("LuaJIT and Lua from 5.3 on", err.message)
        assert.equal("INVALID_ARGUMENT",
          fails(rpc.rpc_sync, "other", "wide", 4611686018427387905LL).code)
      end
      rpc.shutdown()
      assert.equal(0, w:join(), w:output())
      group:finish { blocks = true }
    end)
  end
end)

describe("nested calls", function()
  it("go eight deep, a thousand at once", function()
    local group = workers.group { max_concurrent = 4 }
    local function down(depth)
      if depth == 0 then return 0 end
      return 1 + rpc.rpc_sync("w", "down", depth - 1)
    end
    rpc.register("down", down)
    group:start("w", [[
rpc.register("down", function(depth)
  if depth == 0 then return 0 end
  return 1 + rpc.rpc_sync("test", "down", depth - 1)
end)
    ]], "max_concurrent = 4")
    assert.equal(8, rpc.rpc_sync("w", "down", 8))
    local before = workers.held().threads
    local list = {}
    for i = 1, 1000 do list[i] = rpc.rpc_async("w", "down", 8) end
    for _, v in ipairs(rpc.wait_all(list)) do assert.equal(8, v) end
    assert.equal(before, workers.held().threads)
    group:finish()
  end)

  it("are bounded by max_concurrent when they need not be nested", function()
    local group = workers.group()
    group:start("w", [[
local now, most = 0, 0
rpc.register("work", function()
  now = now + 1
  most = math.max(most, now)
  rpc.sleep(0.01)
  now = now - 1
end)
rpc.register("most", function() return most end)
    ]], "max_concurrent = 3")
    local list = {}
    for i = 1, 20 do list[i] = rpc.rpc_async("w", "work") end
    rpc.wait_all(list)
    assert.equal(3, rpc.rpc_sync("w", "most"))
    group:finish()
  end)
end)

describe("deadlines", function()
  local group
  before_each(function()
    group = workers.group()
    group:start("w", ECHO .. [[
local seen, ran = nil, 0
rpc.register("sleep", function(s)
  local ok, err = pcall(rpc.sleep, s)
  seen = { rpc.cancelled(), ok, not ok and err.code or nil }
end)
rpc.register("seen", function() if seen then return seen[1], seen[2], seen[3] end end)
rpc.register("busy", function(s)
  local ends = os.clock() + s
  while os.clock() < ends do end
end)
rpc.register("left", function() return (select(2, rpc.caller())) end)
rpc.register("run", function() ran = ran + 1 end)
rpc.register("ran", function() return ran end)
rpc.register("pass_on", function()
  return rpc.to("test"):rpc_sync{ timeout = 50 }:left()
end)
    ]])
    rpc.rpc_sync("w", "ran") -- it is there: short deadlines begin after that
  end)
  after_each(function() group:finish() end)

  it("end a call that takes too long", function()
    local to = rpc.to "w"
    local t0 = workers.now()
    local err = fails(function() to:rpc_sync { timeout = 0.2 }:sleep(5) end)
    local took = workers.now() - t0
    assert.equal('DEADLINE_EXCEEDED: "sleep" on "w" took longer than 0.200 s (outcome: unknown)',
      tostring(err))
    assert.equal("unknown", err.outcome)
    assert.is_true(took >= 0.2 and took < 5)
    local cancelled, ok, code
    assert.is_true(workers.eventually(function()
      cancelled, ok, code = rpc.rpc_sync("w", "seen")
      return cancelled ~= nil
    end))
    assert.is_true(cancelled)
    assert.is_false(ok) -- its wait was ended too
    assert.equal("CANCELLED", code)
  end)

  it("refuse what was not started in time", function()
    local to = rpc.to "w"
    local busy = rpc.rpc_async("w", "busy", 1)
    local list = {}
    for i = 1, 20 do list[i] = to:rpc_async { timeout = 0.4 }:run() end
    for _, f in ipairs(list) do
      local err = fails(f.wait, f)
      -- On a machine that is very busy w may say so too late to be heard.
      local told = err.outcome == "not executed"
      assert.equal(told and 'DEADLINE_EXCEEDED: "run" on "w" was not started in time (outcome: ' ..
        "not executed)" or 'DEADLINE_EXCEEDED: "run" on "w" took longer than 0.400 s (outcome: ' ..
        "unknown)", tostring(err))
    end
    busy:wait()
    assert.equal(0, rpc.rpc_sync("w", "ran"))
  end)

  it("are inherited by the calls a handler makes", function()
    local left
    rpc.register("left", function()
      left = select(2, rpc.caller())
      return left
    end)
    local got = rpc.to("w"):rpc_sync { timeout = 5 }:pass_on()
    assert.is_true(got <= 5 and got > 1)
    assert.equal(left, got)
    assert.is_true(rpc.rpc_sync("w", "left") > 50) -- the default
  end)

  it("leave nothing behind", function()
    local to = rpc.to "w"
    local function round()
      for _ = 1, 50 do
        local f = to:rpc_async { timeout = 0.001 }:sleep(0.05)
        pcall(f.wait, f)
      end
      rpc.rpc_sync("w", "ran") -- what w said before it has come as well
      rpc.sleep(0.2)
      collectgarbage()
      rpc.sleep(0)
    end
    round()
    assert.is_true(workers.eventually(function()
      collectgarbage()
      return rpc.counters().futures == 0
    end))
    local before, after = workers.held(), nil
    round()
    workers.eventually(function()
      after = workers.held()
      return rpc.counters().futures == 0 and after.bytes == before.bytes
    end)
    assert.equal(0, rpc.counters().futures)
    assert.equal(before.bytes, after.bytes)
    assert.equal(before.blocks, after.blocks)
  end)
end)
