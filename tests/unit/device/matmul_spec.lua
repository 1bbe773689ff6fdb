-- rl.cuda.matmul: who multiplies matrices, and how.

local process = require "process"
local rl = require "rlengine"

local name = rl.default_device().type ~= "cpu" and rl.default_device().name
  or rl.device_count "emu" > 0 and "emu"

describe("rl.cuda.matmul", function()
  if not name then return end

  local function matmul(given)
    given = given or {}
    given.device = name
    return rl.cuda.matmul(given)
  end
  local usual = matmul()
  usual.backend = nil
  after_each(function() matmul(usual) end)

  it("gives the settings and changes those that are named", function()
    local now = matmul()
    assert.is_false(now.tf32)
    assert.is_false(now.batch_invariant)
    assert.equal(131072, now.threshold)
    assert.is_true(now.workspace >= 2 ^ 20)
    now = matmul { tf32 = true, workspace = "1MiB" }
    assert.is_true(now.tf32)
    assert.equal(2 ^ 20, now.workspace)
    assert.is_false(now.batch_invariant)
    assert.is_true(matmul().tf32)
    assert.is_false(matmul { tf32 = false, threshold = 5 }.tf32)
    assert.equal(5, matmul().threshold)
  end)

  it("sends large products to cuBLAS, unless a row must not depend on the others", function()
    local a, b = rl.randn(3, 40):to(name), rl.randn(40, 50):to(name)
    matmul { threshold = 2000, batch_invariant = true }
    local own = a:matmul(b)
    matmul { batch_invariant = false }
    local library = a:matmul(b)
    if name:match "^cuda" and matmul().backend:find "is not there" then return end
    assert.truthy(matmul().backend:find "^cuBLAS %d")
    assert.is_true(rl.allclose(own, library, 1e-4, 1e-4))
    matmul { threshold = 2001 }
    assert.is_true(rl.equal(own, a:matmul(b)))
  end)

  it("sets nothing up anew when it is only asked", function()
    if name ~= "emu" and name ~= "emu:0" then return end
    local folder = process.folder()
    local r = process.run({ process.program(), "-e", [[
      local rl = require "rlengine"
      local x = rl.ones(400, 400, { device = "emu" })
      assert(x:matmul(x)[1][1]:item() == 400)
      for _ = 1, 3 do assert(rl.cuda.matmul({ device = "emu" }).backend) end]] },
      { env = { RLENGINE_EMU = "trace=" .. folder .. "/trace" } })
    assert.equal(0, r.code, r.err)
    local _, created = process.read(folder .. "/trace"):gsub("cublasCreate", "")
    assert.equal(1, created)
    process.remove(folder)
  end)

  it("says why there is no library after it was needed", function()
    if name ~= "emu" and name ~= "emu:0" then return end
    local r = process.run({ process.program(), "-e", [[
      local rl = require "rlengine"
      local x = rl.ones(400, 400, { device = "emu" })
      assert(rl.cuda.matmul { device = "emu" }.backend == nil)
      assert(x:matmul(x)[1][1]:item() == 400)
      for _ = 1, 2 do print(rl.cuda.matmul { device = "emu" }.backend) end
      assert(x:matmul(x)[1][1]:item() == 400)]] }, { env = { RLENGINE_EMU = "cublas=off" } })
    assert.equal(0, r.code, r.err)
    local why = r.err:match "^rlengine: emu:0: (libcublas[^\n]+)\n$" -- told once
    assert.equal(("%s\n%s\n"):format(why, why), r.out)
  end)

  it("refuses what makes no sense", function()
    local function refused(pattern, given)
      local ok, err = pcall(matmul, given)
      assert.is_false(ok)
      assert.equal("INVALID_ARGUMENT", err.code)
      assert.truthy(err.message:find(pattern), err.message)
    end
    refused("at least 64 KiB", { workspace = 100 })
    refused('cuda.matmul: workspace: "much" is no size', { workspace = "much" })
    for _, threshold in ipairs { -1, 1.5, 0 / 0, math.huge } do
      refused("threshold must be a whole number from 0, got ", { threshold = threshold })
    end
    refused("a workspace of 1024.0 TiB for products of matrices is more than the device's "
      .. "memory of ", { workspace = "1024TiB" })
    refused('unknown option "tf23"; did you mean "tf32"', { tf23 = true })
    local ok, err = pcall(rl.cuda.matmul, { device = "cpu" })
    assert.is_false(ok)
    assert.equal("UNIMPLEMENTED", err.code)
  end)
end)
