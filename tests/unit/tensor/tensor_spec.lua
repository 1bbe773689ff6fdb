-- Creation, views, broadcasting, indexing, in-place forms, printing, refusals.
local rl = require "rlengine"

local function values(t) return t:totable() end

local function refusal(fn, ...)
  local ok, err = pcall(fn, ...)
  assert.is_false(ok)
  assert.is_table(err)
  return err
end

describe("tensor", function()
  describe("creation", function()
    it("reads nested tables, numbers and booleans", function()
      local t = rl.tensor{ { 1, 2 }, { 3, 4 } }
      assert.same({ 2, 2 }, t.shape)
      assert.equal("f32", t.dtype)
      assert.equal(rl.default_device(), t.device)
      assert.same({ { 1, 2 }, { 3, 4 } }, values(t))
      assert.equal("bool", rl.tensor{ true, false }.dtype)
      assert.equal("i64", rl.tensor({ 1 }, { dtype = "i64" }).dtype)
      assert.same({}, rl.tensor(5).shape)
      assert.equal(5, rl.tensor(5):item())
      assert.same({ 0 }, rl.tensor{}.shape)
    end)

    it("refuses ragged tables and names the dimension", function()
      assert.matches("dimension 2 differ in length",
        refusal(rl.tensor, { { 1, 2 }, { 3 } }).message)
      assert.matches("element 2 is string", refusal(rl.tensor, { 1, "x" }).message)
    end)

    it("refuses numbers that the dtype cannot hold, wherever they come in", function()
      local u8 = { dtype = "u8" }
      local err = refusal(rl.tensor, { 255.9, -0.9, 300, -1 }, u8)
      assert.equal("INVALID_ARGUMENT", err.code)
      assert.equal("tensor: element 3, 300, does not fit into u8, which is 0 to 255", err.message)
      assert.same({ 255, 0 }, values(rl.tensor({ 255.9, -0.9 }, u8)))
      local t = rl.tensor({ 1, 2 }, u8)
      for _, wrong in ipairs { 300, -1, 0 / 0 } do
        local message = ("%.14g does not fit into u8, which is 0 to 255"):format(wrong)
        for _, f in ipairs {
          function() return rl.full({ 2 }, wrong, u8) end,
          function() t:fill_(wrong) end,
          function() t[1] = wrong end,
        } do
          err = refusal(f)
          assert.equal("INVALID_ARGUMENT", err.code)
          assert.equal(message, err.message)
        end
      end
      assert.same({ 1, 2 }, values(t))
      for dtype, ends in pairs {
        i32 = { -2 ^ 31, 2 ^ 31 - 1, -2 ^ 31 - 1, 2 ^ 31 },
        i64 = { -2 ^ 63, 2 ^ 63 - 1024, -2 ^ 63 - 2048, 2 ^ 63 },
      } do
        local kept = rl.tensor({ ends[1], ends[2] }, { dtype = dtype })
        assert.same({ ends[1], ends[2] }, { kept[1]:item(), kept[2]:item() })
        for _, wrong in ipairs { ends[3], ends[4], 0 / 0, math.huge, -math.huge } do
          assert.matches("does not fit into " .. dtype,
            refusal(rl.tensor, { wrong }, { dtype = dtype }).message)
          assert.matches("does not fit into " .. dtype,
            refusal(rl.full, { 1 }, wrong, { dtype = dtype }).message)
        end
      end
      assert.same({ true, true, false }, values(rl.tensor({ 300, -1, 0 }, { dtype = "bool" })))
    end)

    it("goes nowhere without being told where", function()
      for _, given in ipairs { {}, { n = 1 }, { n = 2 } } do
        local t, unpack = rl.ones(2), unpack or table.unpack
        local err = refusal(t.to, t, unpack(given, 1, given.n or 0))
        assert.equal("INVALID_ARGUMENT", err.code)
        assert.equal("to: expected a device, a dtype, both, or a tensor that has them, got "
          .. (given.n and "nil" or "nothing"), err.message)
      end
    end)

    it("says of what it cannot count what it got, and from where it counts", function()
      for _, n in ipairs { -1, 2 ^ 41 } do
        local err = refusal(rl.linspace, 0, 1, n)
        assert.equal("INVALID_ARGUMENT", err.code)
        assert.equal(("linspace: the number of points is from 0 to 2^40, got %.0f"):format(n),
          err.message)
      end
      local t, index = rl.zeros(3, 4), rl.tensor({ { 0, 2 }, { 5, 1 } }, { dtype = "i64" })
      local err = refusal(t.gather, t, 2, index)
      assert.equal("OUT_OF_RANGE", err.code)
      assert.equal("index 5 (element 3 of the index tensor) is out of range for dimension 2 of "
        .. "size 4; indices count from 0, the rest from 1", err.message)
      assert.matches("^dimension 3 of a tensor of 2 dimensions", refusal(t.gather, t, 3, index)
        .message)
      assert.equal("dimension 2 is named twice", refusal(t.sum, t, { 2, 1, -1 }).message)
    end)

    it("names the nearest option", function()
      local err = refusal(rl.zeros, 2, { dtpe = "f32" })
      assert.equal("INVALID_ARGUMENT", err.code)
      assert.matches('did you mean "dtype"', err.message)
    end)

    it("makes constants and ranges", function()
      assert.same({ { 0, 0 } }, values(rl.zeros(1, 2)))
      assert.same({ 1, 1 }, values(rl.ones{ 2 }))
      assert.same({ 7, 7 }, values(rl.full({ 2 }, 7)))
      assert.equal(math.huge, rl.full({ 1 }, math.huge):item())
      assert.equal(-2, rl.full({ 1 }, -2.9, { dtype = "i64" }):item())
      assert.is_true(rl.zeros(1, { dtype = "bool" }):fill_(0.5):item())
      assert.same({ 0, 1, 2 }, values(rl.arange(3)))
      assert.equal("i64", rl.arange(3).dtype)
      assert.same({ 1, 3, 5 }, values(rl.arange(1, 6, 2)))
      assert.same({ 3, 2, 1 }, values(rl.arange(3, 0, -1)))
      assert.equal("f32", rl.arange(0, 1, 0.25).dtype)
      assert.same({ 0, 0.25, 0.5, 0.75, 1 }, values(rl.linspace(0, 1, 5)))
      assert.same({ { 1, 0, 0 }, { 0, 1, 0 } }, values(rl.eye(2, 3)))
      assert.same({ { 0 } }, values(rl.zeros_like(rl.tensor{ { 9 } })))
    end)

    it("holds integers of 64 bits exactly as far as a Lua number does", function()
      local t = rl.tensor({ 2 ^ 53, -2 ^ 53 }, { dtype = "i64" })
      assert.equal(2 ^ 53, t[1]:item())
      assert.equal(-2 ^ 53, t[2]:item())
    end)

    it("refuses sizes that overflow", function()
      assert.equal("INVALID_ARGUMENT", refusal(rl.zeros, 2 ^ 40, 2 ^ 40).code)
      assert.matches("negative", refusal(rl.zeros, -1).message)
    end)
  end)

  describe("views", function()
    local t
    before_each(function() t = rl.arange(24):view(2, 3, 4) end)

    it("share their storage", function()
      local row = t:select(2, 3)
      assert.same({ { 8, 9, 10, 11 }, { 20, 21, 22, 23 } }, values(row))
      row:fill_(-1)
      assert.equal(-1, t[{ 1, 3, 4 }]:item())
    end)

    it("count dimensions and positions from 1, the last is -1", function()
      assert.same(values(t:select(1, 2)), values(t[2]))
      assert.same(values(t[-1]), values(t[2]))
      assert.equal("OUT_OF_RANGE", refusal(function() return t[3] end).code)
      assert.matches("count from 1", refusal(function() return t[0] end).message)
      assert.matches("count from 1", refusal(t.select, t, 0, 1).message)
    end)

    it("cut ranges, both ends included", function()
      assert.same({ 2, 2, 4 }, t[{ {}, { 2, 3 } }].shape)
      assert.same({ 2, 2 }, t[{ {}, 1, { 3, -1 } }].shape)
      assert.same({ { 2, 3 }, { 14, 15 } }, values(t[{ {}, 1, { 3, -1 } }]))
    end)

    it("permute, transpose, expand and come back by contiguous", function()
      assert.same({ 4, 2, 3 }, t:permute(3, 1, 2).shape)
      assert.same({ 3, 2, 4 }, t:transpose(1, 2).shape)
      assert.is_false(t:transpose(1, 3):is_contiguous())
      assert.same(values(t:permute(3, 1, 2):contiguous()), values(t:permute(3, 1, 2)))
      assert.same({ { 1, 1 }, { 2, 2 } }, values(rl.tensor{ { 1 }, { 2 } }:expand(2, 2)))
      assert.same({ 5, 2 }, rl.tensor{ 1, 2 }:expand(5, -1).shape)
    end)

    it("view refuses what reshape copies", function()
      local flipped = t:transpose(1, 3)
      assert.equal("FAILED_PRECONDITION", refusal(flipped.view, flipped, 24).code)
      assert.same({ 24 }, flipped:reshape(24).shape)
      assert.same({ 6, 4 }, t:view(-1, 4).shape)
      assert.matches("does not fit", refusal(t.view, t, 5, 5).message)
    end)

    it("squeeze, unsqueeze, flatten, split, chunk", function()
      assert.same({ 3 }, rl.zeros(1, 3, 1):squeeze().shape)
      assert.same({ 1, 3 }, rl.zeros(1, 3, 1):squeeze(3).shape)
      assert.same({ 3, 1 }, rl.zeros(3):unsqueeze(2).shape)
      assert.same({ 3, 1 }, rl.zeros(3):unsqueeze(-1).shape)
      assert.same({ 2, 12 }, t:flatten(2).shape)
      local parts = rl.arange(7):split(3)
      assert.same({ 3, 3, 1 }, { #parts[1], #parts[2], #parts[3] })
      assert.equal(2, #rl.arange(8):chunk(2))
    end)

    it("assign to parts", function()
      local m = rl.zeros(2, 2)
      m[1] = rl.tensor{ 1, 2 }
      m[{ 2, 2 }] = 5
      assert.same({ { 1, 2 }, { 0, 5 } }, values(m))
    end)
  end)

  describe("arithmetic", function()
    it("broadcasts, with numbers on either side", function()
      local m = rl.tensor{ { 1, 2 }, { 3, 4 } }
      assert.same({ { 11, 22 }, { 13, 24 } }, values(m + rl.tensor{ 10, 20 }))
      assert.same({ { 0, -1 }, { -2, -3 } }, values(1 - m))
      assert.same({ { 1, 0.5 } }, values(1 / rl.tensor{ { 1, 2 } }))
      assert.same({ 8, 9 }, values(rl.tensor{ 2, 3 } ^ rl.tensor{ 3, 2 }))
      assert.same({ 1, 2 }, values(rl.tensor{ -2, 5 } % 3))
      assert.same({ -1, -2 }, values(-rl.tensor{ 1, 2 }))
    end)

    it("names both shapes when they do not broadcast", function()
      local err = refusal(function() return rl.zeros(2, 3) + rl.zeros(2) end)
      assert.equal("INVALID_ARGUMENT", err.code)
      assert.matches("f32%[2,3%] and f32%[2%]", err.message)
    end)

    it("promotes like PyTorch", function()
      local i, f, d = rl.arange(2), rl.ones(2), rl.ones(2, { dtype = "f64" })
      assert.equal("i64", (i + 1).dtype)
      assert.equal("f32", (i + 0.5).dtype)
      assert.equal("f32", (i / 2).dtype)
      assert.equal("f32", (i + f).dtype)
      assert.equal("f64", (f + d).dtype)
      assert.equal("f32", (f + rl.tensor(1, { dtype = "f64" })).dtype)
      assert.equal("bool", i:lt(1).dtype)
      assert.equal("i64", rl.tensor{ true, true }:sum().dtype)
      assert.equal("f32", i:exp().dtype)
    end)

    it("works in place and refuses what does not fit", function()
      local t = rl.ones(2)
      local same = t:add_(1):mul_(3)
      assert.is_true(same == t)
      assert.same({ 6, 6 }, values(t))
      assert.matches("does not fit into", refusal(t.add_, t, rl.ones(3, 2)).message)
      local e = rl.ones(1):expand(3)
      assert.equal("FAILED_PRECONDITION", refusal(e.add_, e, 1).code)
    end)

    it("follows PyTorch with NaN and infinities", function()
      local nan, inf = 0 / 0, math.huge
      local t = rl.tensor{ 1, nan, inf, -inf }
      assert.same({ false, true, false, false }, values(t:isnan()))
      assert.same({ false, false, true, true }, values(t:isinf()))
      assert.same({ true, false, false, false }, values(t:isfinite()))
      assert.is_true(t:max():isnan():item())
      assert.equal(1, t:argmax():item())
      assert.is_true(t:clamp(0, 1)[2]:isnan():item())
      assert.is_true(rl.tensor{ -inf, -inf }:softmax(1)[1]:isnan():item())
      assert.equal(-inf, rl.tensor{ -inf, -inf }:logsumexp():item())
      assert.is_true(rl.tensor{ 1, 1 }:logsumexp():item() > 1.69)
    end)

    it("multiplies vectors, matrices and batches", function()
      local a, b = rl.tensor{ { 1, 2 }, { 3, 4 } }, rl.tensor{ { 5, 6 }, { 7, 8 } }
      assert.same({ { 19, 22 }, { 43, 50 } }, values(a:matmul(b)))
      assert.same({ 5, 11 }, values(a:mv(rl.tensor{ 1, 2 })))
      assert.equal(11, rl.tensor{ 1, 2 }:dot(rl.tensor{ 3, 4 }):item())
      assert.same({ 4, 3, 3 }, rl.ones(4, 3, 2):matmul(rl.ones(2, 3)).shape)
      assert.same({ 5, 4, 3, 3 }, rl.ones(5, 1, 3, 2):matmul(rl.ones(4, 2, 3)).shape)
      assert.matches("do not fit", refusal(a.matmul, a, rl.ones(3, 3)).message)
    end)
  end)

  describe("reductions", function()
    local t
    before_each(function() t = rl.tensor{ { 1, 5, 2 }, { 4, 0, 6 } } end)

    it("take a dimension, a list, or all", function()
      assert.equal(18, t:sum():item())
      assert.same({ 5, 5, 8 }, values(t:sum(1)))
      assert.same({ { 8 }, { 10 } }, values(t:sum(2, true)))
      assert.same({ { 18 } }, values(t:sum({ 1, 2 }, { keepdim = true })))
      assert.same({ 3 }, t:mean(1).shape)
      assert.same({ 10, 0 }, values(t:prod(2)))
    end)

    it("max along a dimension gives values and indices that count from 0", function()
      local v, i = t:max(2)
      assert.same({ 5, 6 }, values(v))
      assert.same({ 1, 2 }, values(i))
      assert.equal(5, t:argmax():item())
      assert.same({ 0, 1, 0 }, values(t:argmin(1)))
      assert.same({ { 2, 5, 2 }, { 4, 2, 6 } }, values(t:max(rl.full({ 2, 3 }, 2))))
    end)

    it("sorts stably, topk, cumsum", function()
      local v, i = rl.tensor{ 3, 1, 2, 1 }:sort()
      assert.same({ 1, 1, 2, 3 }, values(v))
      assert.same({ 1, 3, 2, 0 }, values(i))
      local top, where = rl.tensor{ 3, 1, 2, 5 }:topk(2)
      assert.same({ 5, 3 }, values(top))
      assert.same({ 3, 0 }, values(where))
      assert.same({ { 1, 6, 8 }, { 4, 4, 10 } }, values(t:cumsum(2)))
    end)

    it("std and var divide by n - 1, norm", function()
      assert.near(math.sqrt(5 / 3), rl.tensor{ 1, 2, 3, 4 }:std():item(), 1e-6)
      assert.near(1.25, rl.tensor{ 1, 2, 3, 4 }:var(nil, { correction = 0 }):item(), 1e-6)
      assert.near(5, rl.tensor{ 3, 4 }:norm():item(), 1e-6)
      assert.near(7, rl.tensor{ 3, -4 }:norm(1):item(), 1e-6)
    end)

    it("refuse what has no answer", function()
      assert.matches("is empty", refusal(rl.zeros(0).max, rl.zeros(0), 1).message)
      assert.matches("needs a float", refusal(rl.arange(3).mean, rl.arange(3)).message)
    end)
  end)

  describe("indexing by tensors", function()
    local t = rl.tensor{ { 10, 11, 12 }, { 20, 21, 22 } }
    local function i64(v) return rl.tensor(v, { dtype = "i64" }) end

    it("gather, index_select, one_hot count from 0", function()
      assert.same({ { 12 }, { 20 } }, values(t:gather(2, i64{ { 2 }, { 0 } })))
      assert.same({ { 22, 20 } }, values(t:index_select(2, i64{ 2, 0 })[{ { 2, 2 } }]))
      assert.same({ { 0, 1, 0 }, { 1, 0, 0 } }, values(rl.one_hot(i64{ 1, 0 }, 3)))
    end)

    it("names an index that is out of range and writes nothing", function()
      assert.equal("OUT_OF_RANGE", refusal(t.gather, t, 2, i64{ { 3 }, { 0 } }).code)
      local into = rl.zeros(2)
      refusal(into.index_add_, into, 1, i64{ 0, 7 }, rl.ones(2))
      assert.same({ 0, 0 }, values(into))
    end)

    it("refuses a table of positions with the rule", function()
      assert.matches("count from 0", refusal(t.index_select, t, 1, { 1 }).message)
      assert.matches("index_select", refusal(function() return t[i64{ 1 }] end).message)
    end)

    it("scatter_add_ adds repeats, cat and stack join", function()
      local s = rl.zeros(3):scatter_add_(1, i64{ 0, 0, 2 }, rl.tensor{ 1, 2, 3 })
      assert.same({ 3, 0, 3 }, values(s))
      assert.same({ 1, 2, 3 }, values(rl.cat{ rl.tensor{ 1 }, rl.tensor{ 2, 3 } }))
      local parts = { rl.tensor{ 1, 2 }, rl.tensor{ 3, 4 } }
      assert.same({ { 1, 3 }, { 2, 4 } }, values(rl.stack(parts, 2)))
      assert.same({ 1, 0 }, values(rl.where(rl.tensor{ true, false }, 1, 0)))
    end)
  end)

  describe("text", function()
    it("prints like PyTorch", function()
      local function prints(text, t)
        assert.equal(("tensor(%s, %s)"):format(text, rl.default_device().name), tostring(t))
      end
      prints("[[1., 2.],\n        [3., 4.]], f32[2,2]", rl.tensor{ { 1, 2 }, { 3, 4 } })
      prints("[ 0.5000, -1.2500], f32[2]", rl.tensor{ 0.5, -1.25 })
      prints("3, i64[]", rl.tensor(3, { dtype = "i64" }))
      prints("[], f32[0]", rl.zeros(0))
      prints("[1.0000e-06, 1.0000e+00], f32[2]", rl.tensor{ 1e-6, 1 })
      prints("[ 1., nan, inf], f32[3]", rl.tensor{ 1, 0 / 0, math.huge })
    end)

    it("summarises large ones", function()
      local text = tostring(rl.zeros(2000))
      assert.equal("tensor([0., 0., 0.,  ..., 0., 0., 0.], f32[2000], "
        .. rl.default_device() .. ")", text)
    end)
  end)

  describe("conversion", function()
    it("casts, truncating toward zero", function()
      assert.same({ 1, -1 }, values(rl.tensor{ 1.9, -1.9 }:to("i32")))
      assert.same({ true, false }, values(rl.tensor{ 2, 0 }:bool()))
      local t = rl.ones(2)
      assert.is_true(t:to("f32") == t)
    end)

    it("moves bytes through strings", function()
      local t = rl.randn(2, 3)
      local bytes = require("rlengine.core").tensor.bytes(t)
      assert.is_true(t:equal(rl.from_bytes(bytes, "f32", 2, 3)))
    end)

    it("gives a raw pointer on LuaJIT", function()
      if not rawget(_G, "jit") then pending("FFI needs LuaJIT") return end
      local t = rl.zeros(3, { device = "cpu" })
      t:ffi()[1] = 4
      assert.same({ 0, 4, 0 }, values(t))
    end)
  end)
end)
