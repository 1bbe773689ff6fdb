-- Weights in files: what the reference implementation wrote is read, round trips, damage.

local golden = require "golden"
local rl = require "rlengine"

local function temporary()
  local name = os.tmpname()
  os.remove(name)
  return name .. ".safetensors"
end

local function contents(path)
  local f = assert(io.open(path, "rb"))
  local text = f:read("*a")
  f:close()
  return text
end

local function write(path, text)
  local f = assert(io.open(path, "wb"))
  f:write(text)
  f:close()
end

describe("rl.load", function()
  it("reads what the reference implementation wrote", function()
    local tensors, metadata = rl.load "tests/golden/reference.safetensors"
    assert.are.same({ note = "\195\169\n" }, metadata)
    local count = 0
    for line in io.lines("tests/golden/reference.safetensors.txt") do
      local quoted, dtype, rest = line:match('^"(.*)"\t(%w+)(%[.*)$')
      local name = quoted:gsub("\\(.)", "%1")
      local want, got = golden.tensor(rest:gsub("\t", " "), dtype), tensors[name]
      assert.is_truthy(got, name)
      assert.are.equal(dtype, got.dtype)
      assert.are.same(want.shape, got.shape)
      local same = want:eq(got)
      if dtype == "f64" then same = same:logical_or(want:isnan():logical_and(got:isnan())) end
      assert.is_true(want:numel() == 0 or same:all():item(), name)
      count = count + 1
    end
    assert.are.equal(10, count)
  end)

  it("says what is wrong with a file", function()
    local function fails(code, text, path)
      local ok, err = pcall(rl.load, path)
      assert.is_false(ok)
      assert.are.equal(code, err.code)
      assert.is_truthy(err.message:find(text, 1, true), err.message)
    end
    local path = temporary()
    fails("NOT_FOUND", path, path)
    rl.save(path, { a = rl.arange(10), b = rl.ones(3) })
    local text = contents(path)
    write(path, text:sub(1, -2))
    fails("DATA_LOSS", "range ends behind the end of the file", path)
    write(path, text .. "x")
    fails("DATA_LOSS", "bytes of data", path)
    write(path, text:sub(1, -2) .. "x")
    fails("DATA_LOSS", "sha256 mismatch", path)
    write(path, text:sub(1, 5))
    fails("DATA_LOSS", "too few", path)
    write(path, "not a safetensors file at all")
    fails("DATA_LOSS", "1 MiB", path)
    os.remove(path)
  end)
end)

describe("rl.save", function()
  it("round-trips every type, views, empty tensors and odd names", function()
    local path = temporary()
    local given = {
      f32 = rl.randn(3, 4), f64 = rl.randn(2, { dtype = "f64" }),
      i32 = rl.tensor({ -1, 2 }, { dtype = "i32" }), i64 = rl.arange(5, { dtype = "i64" }),
      u8 = rl.tensor({ 0, 255 }, { dtype = "u8" }), bool = rl.tensor({ true, false }),
      view = rl.randn(4, 3):t(), expanded = rl.ones(1):expand(5), scalar = rl.tensor(3),
      empty = rl.zeros(0, 7), ["a\"\\\n/\195\164"] = rl.ones(1),
    }
    rl.save(path, given, { metadata = { env = "CartPole-v1", ["k\"\195\164"] = "" } })
    local got, metadata = rl.load(path)
    assert.are.equal("CartPole-v1", metadata.env)
    assert.are.equal("", metadata["k\"\195\164"])
    assert.are.equal(64, #metadata.sha256)
    for name, t in pairs(given) do
      assert.are.equal(t.dtype, got[name].dtype)
      assert.are.same(t.shape, got[name].shape)
      assert.is_true(rl.equal(t, got[name]), name)
      got[name] = nil
    end
    assert.is_nil(next(got))
    -- the same contents give the same bytes
    local first = contents(path)
    rl.save(path, given, { metadata = { env = "CartPole-v1", ["k\"\195\164"] = "" } })
    assert.are.equal(first, contents(path))
    os.remove(path)
  end)

  it("saves and restores a module", function()
    local path = temporary()
    local a = rl.nn.Sequential(rl.nn.Linear(4, 8), rl.nn.ReLU(), rl.nn.Linear(8, 2))
    local b = rl.nn.Sequential(rl.nn.Linear(4, 8), rl.nn.ReLU(), rl.nn.Linear(8, 2))
    rl.save(path, a)
    b:load_state_dict(rl.load(path))
    local x = rl.randn(3, 4)
    assert.is_true(rl.equal(a(x), b(x)))
    os.remove(path)
  end)

  it("leaves the old file when it fails, and refuses what it cannot write", function()
    local path = temporary()
    rl.save(path, { a = rl.ones(1) })
    local before = contents(path)
    local function fails(code, ...)
      local ok, err = pcall(rl.save, ...)
      assert.is_false(ok)
      assert.are.equal(code, err.code)
    end
    fails("INVALID_ARGUMENT", path, { a = 3 })
    fails("INVALID_ARGUMENT", path, { rl.ones(1) })
    fails("INVALID_ARGUMENT", path, { ["\255"] = rl.ones(1) })
    fails("INVALID_ARGUMENT", path, { ["a\0b"] = rl.ones(1) })
    fails("INVALID_ARGUMENT", path, { __metadata__ = rl.ones(1) })
    fails("INVALID_ARGUMENT", path, { a = rl.ones(1) }, { metadata = { a = 1 } })
    fails("INVALID_ARGUMENT", path, { a = rl.ones(1) }, { metadata = { sha256 = "" } })
    fails("INVALID_ARGUMENT", path, { a = rl.ones(1) }, { meta = {} })
    fails("INVALID_ARGUMENT", path, 3)
    fails("NOT_FOUND", path .. "_no_folder/x", { a = rl.ones(1) })
    assert.are.equal(before, contents(path))
    os.remove(path)
  end)

  it("leaves nothing behind", function()
    local path = temporary()
    local core = require "rlengine.core"
    local function live()
      collectgarbage()
      collectgarbage()
      return core.tensor.counts()
    end
    local function once()
      rl.save(path, { a = rl.randn(3, 4):t(), b = rl.ones(2) })
      rl.load(path)
      pcall(rl.save, path, { a = rl.randn(3, 4):t(), b = 1 })
      pcall(rl.load, path .. "_not_there")
    end
    once()
    local before = live()
    for _ = 1, 50 do once() end
    assert.are.equal(before, live())
    os.remove(path)
  end)
end)
