--- The plug-in for NVIDIA GPUs as nvcc built it, mostly where there is no GPU: what it needs of
-- the system, that it refuses in one line, and that nobody pays for it who does not use it.

local process = require "process"

local program = process.program()
local build = program:match "^(.*)/[^/]+$"
local plugin = build .. "/lib/rlengine/rlengine_cuda.so"
local built = process.run({ "test", "-e", plugin }).code == 0

--- A test of the plug-in; pending where it was not built.
local function plugin_it(name, fn)
  it(name, function()
    if not built then
      pending "the plug-in was not built: no nvcc, or the build is instrumented"
      return
    end
    fn()
  end)
end

--- Output of Lua code in the program, which must end well and write nothing to standard error.
local function run(code, env)
  local r = process.run({ program, "-e", code }, { env = env })
  assert.equal("", r.err)
  assert.equal(0, r.code)
  return r.out
end

local has_gpu = built and
  run [[print((pcall(require "rlengine".device, "cuda")))]] == "true\n"

describe("the CUDA plug-in", function()
  plugin_it("needs the C library and nothing else", function()
    local needed = process.check { "readelf", "-d", "-W", plugin }
    local allowed = { libc = true, libm = true, libdl = true, libpthread = true, librt = true }
    for library in needed:gmatch "%(NEEDED%)[^%[]*%[([^%]]+)%]" do
      assert.truthy(allowed[library:match "^%a+"] or library:match "^ld%-linux", library)
    end
    local undefined = process.check { "nm", "-D", "--undefined-only", plugin }
    local count = 0
    for kind, name in undefined:gmatch "(%a) (%S+)" do
      assert.truthy(kind == "w" or name:find("@GLIBC_", 1, true), name)
      count = count + 1
    end
    assert.truthy(count > 10)
  end)

  plugin_it("exports its entry and nothing else", function()
    local defined = process.check { "nm", "-D", "--defined-only", plugin }
    assert.truthy(defined:match "^%x+ T rle_plugin_entry\n$", defined)
  end)

  plugin_it("is not opened by those who do not ask for it", function()
    local code = [[
      local rl = require "rlengine"
      local x = rl.randn(8, 8):requires_grad_()
      x:matmul(x):sum():backward()
      for line in io.lines "/proc/self/maps" do
        local path = line:match "/.*$" or ""
        if path:find "cuda" or path:find "nvidia" or path:find "cublas" then print(path) end
      end]]
    assert.equal("", run(code))
    if process.run({ "sh", "-c", "strace -V" }).code ~= 0 then return end
    local folder = process.folder()
    local log = folder .. "/strace"
    for _, script in ipairs { "", code } do
      local r = process.run { "strace", "-f", "-o", log, "-e", "trace=file", program, "-e", script }
      local opened = process.read(log)
      if r.code == 0 and opened:find("execve", 1, true) then
        for _, word in ipairs { "rlengine_", "cuda", "nvidia", "cublas" } do
          assert.is_nil(opened:find(word, 1, true), word)
        end
      end
    end
    process.remove(folder)
  end)

  plugin_it("refuses in one line where there is no GPU, and leaves nothing behind", function()
    if has_gpu then
      pending "there is a GPU"
      return
    end
    local out = run [[
      local rl = require "rlengine"
      local dirent = require "posix.dirent"
      local function count(folder) return #dirent.dir("/proc/self" .. folder) - 2 end
      local fds, threads
      for i = 1, 20 do
        for _, name in ipairs { "cuda", "cuda:0", "cuda:7" } do
          local ok, why = pcall(rl.device, name)
          assert(not ok and why.code == "UNAVAILABLE", tostring(why))
          if i == 1 then print(why.message) end
          assert(why.message:find('"' .. name .. '"', 1, true))
        end
        collectgarbage()
        if i == 1 then fds, threads = count "/fd", count "/task" end
      end
      assert(threads == 1 and count "/task" == 1, count "/task")
      assert(fds == count "/fd", count "/fd")
      print(rl.device "auto" == rl.device "cpu", rl.ones(2):sum():item())]]
    local lines = {}
    for line in out:gmatch "[^\n]+" do lines[#lines + 1] = line end
    assert.equal(4, #lines, out)
    for i = 1, 3 do
      assert.truthy(lines[i]:match 'no device "cuda.*%(CUDA error %d+%).*nvidia%-smi', lines[i])
    end
    assert.equal("true\t2", lines[4])
  end)

  it("finds a GPU that it was not built for when it is opened", function()
    -- Both plug-ins have the code that says so; the emulated driver can be told to fail.
    local out = run([[
      local rl = require "rlengine"
      local ok, why = pcall(rl.device, "emu")
      print(ok, why.code, why.message)
      print(rl.device "emu")]], { RLENGINE_EMU = "fail_launch=1:209" })
    assert.truthy(out:match "^false\tUNAVAILABLE\tGPU 0 %([^,]+, compute capability %d", out)
    assert.truthy(out:match "%-DRLE_CUDA_ARCHITECTURES=%d+, or update the driver\nemu:0\n$", out)
  end)

  plugin_it("says which one it does not take", function()
    local folder = process.folder()
    local code = [[print(select(2, pcall(require "rlengine".device, "cuda")).message)]]
    assert.truthy(run(code, { RLENGINE_PLUGINS = folder })
      :find("there is no rlengine_cuda.so in " .. folder, 1, true))
    process.write(folder .. "/rlengine_cuda.so", "not an object")
    assert.truthy(run(code, { RLENGINE_PLUGINS = folder }):find("rlengine_cuda.so", 1, true))
    process.write(folder .. "/other.c", [[
      const void *rle_plugin_entry(unsigned abi, const void *host);
      const void *rle_plugin_entry(unsigned abi, const void *host)
      {
          return abi && host ? (const void *)0 : host;
      }]])
    process.check { "cc", "-shared", "-fPIC", "-o", folder .. "/rlengine_cuda.so",
      folder .. "/other.c" }
    assert.truthy(run(code, { RLENGINE_PLUGINS = folder })
      :find("rlengine_cuda.so is of another build of rlengine", 1, true))
    process.remove(folder)
  end)
end)
