-- What rpc.class and rpc.register accept, and what works without being a worker.
package.path = "tests/support/?.lua;" .. package.path
local rl = require "rlengine"
local fails = require "fails"
local rpc = rl.rpc

describe("rpc.class", function()
  it("makes objects as any class does", function()
    local Point = rpc.class("unit.Point", { "sum" })
    function Point:init(x, y) self.x, self.y = x, y end
    function Point:sum() return self.x + self.y end
    local p = Point(1, 2)
    assert.equal(3, p:sum())
    assert.equal(Point, getmetatable(p))
    assert.equal("class unit.Point", tostring(Point))
    local Bare = rpc.class("unit.Bare", {})
    assert.is_nil(next(Bare()))
  end)

  it("refuses what could not be called", function()
    local function message(...) return tostring(fails(rpc.class, ...)) end
    assert.matches("^INVALID_ARGUMENT: a class's name must be 1 to 64", message("", {}))
    assert.matches("INVALID_ARGUMENT", message(("x"):rep(65), {}))
    assert.matches("INVALID_ARGUMENT", message("a b", {}))
    assert.matches("INVALID_ARGUMENT", message(5, {}))
    assert.matches("belong to the engine", message("rlengine.x", {}))
    assert.matches("the list of methods", message "unit.NoList")
    assert.matches("a method's name", message("unit.Bad", { "a-b" }))
    assert.matches("init runs when", message("unit.Init", { "init" }))
    assert.matches('unknown option "form"; did you mean "from"',
      message("unit.O", {}, { form = "x" }))
    rpc.class("unit.Twice", {})
    assert.matches("^ALREADY_EXISTS", message("unit.Twice", {}))
  end)
end)

describe("rpc.register", function()
  it("refuses what could not be called", function()
    local function message(...) return tostring(fails(rpc.register, ...)) end
    assert.matches("^INVALID_ARGUMENT: a function's name", message("", print))
    assert.matches("wants a function, got nil", message "unit.none")
    assert.matches("belong to the engine", message("rlengine.grant", print))
    assert.matches("must be a string", message("unit.f", print, { from = 5 }))
  end)
end)

describe("without rpc.init", function()
  it("calls say what is missing", function()
    for _, fn in ipairs {
      function() rpc.rpc_sync("x", "f") end, function() rpc.rpc_async("x", "f") end,
      function() rpc.remote("x", "C") end, function() rpc.rref(rpc.class("unit.R", {})()) end,
      function() rpc.workers() end, function() rpc.refs() end, function() rpc.serve() end,
      function() rpc.sleep(0) end, function() rpc.counters() end,
      function() rpc.worker_info() end,
    } do
      assert.equal("FAILED_PRECONDITION: call rpc.init first", tostring(fails(fn)))
    end
    rpc.shutdown() -- nothing to do
    assert.is_nil(rpc.caller())
    assert.is_false(rpc.cancelled())
  end)
end)
