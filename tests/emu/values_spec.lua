-- The emulated device's numbers are CUDA's own: compared with the toolkit's headers, where there
-- is one.
package.path = "tests/support/?.lua;" .. package.path
local process = require "process"

--- Folder of the toolkit's headers that the build found.
local function toolkit()
  local f = io.open "build/CMakeCache.txt"
  if not f then return nil end
  local folder = f:read("*a"):match "RLE_CUDA_INCLUDE_DIR:%w+=([^\n]+)"
  f:close()
  local header = folder and io.open(folder .. "/driver_types.h")
  if header then header:close() end
  return header and folder
end

--- name -> number, of enumerators and macros.
local function numbers_of(text)
  local numbers = {}
  for name, value in text:gmatch "%f[%w](cuda%w+)%s*=%s*(%d+)" do
    numbers[name] = tonumber(value)
  end
  for name, value in text:gmatch "#define%s+(cuda%w+)%s+(0?x?%x+)" do
    numbers[name] = tonumber(value)
  end
  return numbers
end

describe("numbers of the emulated device", function()
  local folder = toolkit()
  if not folder then
    pending "needs the CUDA Toolkit's headers"
    return
  end

  it("are CUDA's", function()
    local real = numbers_of(process.read(folder .. "/driver_types.h"))
    local ours = numbers_of(process.read "kernels/emu/include/cuda_runtime_api.h")
    local count = 0
    for name, number in pairs(ours) do
      assert.equal(real[name], number, name)
      count = count + 1
    end
    assert.is_true(count > 40)
  end)

  it("end the process wherever CUDA says that it must be ended", function()
    local header = process.read(folder .. "/driver_types.h")
    local ends = process.read("engine/device/cuda/errors.c"):match "is_sticky%b()%s*(%b{})"
    local count = 0
    for comment, name, number in header:gmatch "/%*%*(.-)%*/%s*(cudaError%w+)%s*=%s*(%d+)" do
      if comment:gsub("[%s*]+", " "):find("must be terminated", 1, true) then
        assert.truthy(ends:find("case " .. number .. ":", 1, true), name)
        count = count + 1
      end
    end
    assert.is_true(count > 8)
  end)
end)
