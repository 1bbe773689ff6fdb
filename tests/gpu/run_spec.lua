--- The script for machines with a GPU, rehearsed on the emulated device: it must not be first run
-- where its time is dear.

local process = require "process"

local program = process.program()
local build = program:match "^(.*)/[^/]+$"

describe("tests/gpu/run.sh", function()
  local folder, report

  before_each(function()
    folder = process.folder()
    report = folder .. "/report.md"
  end)
  after_each(function() process.remove(folder) end)

  local function run(...)
    return process.run { "tests/gpu/run.sh", "--no-build", "--report", report, ... }
  end

  --- Results by part.
  local function rows()
    local found = {}
    for part, result in process.read(report):gmatch "\n| ([^|]+) | ([^|]*) |" do
      found[part] = result
    end
    return found
  end

  --- A build whose C tests are this shell script.
  local function stand_in(script)
    local there = folder .. "/build"
    process.check { "mkdir", "-p", there .. "/tests" }
    process.check { "ln", "-s", program, there .. "/rlengine" }
    process.check { "ln", "-s", build .. "/lib", there .. "/lib" }
    for file in process.check({ "sh", "-c", "ls tests/c" }):gmatch "(test_device[%w_]*)%.c" do
      local path = there .. "/tests/" .. file
      process.write(path, "#!/bin/sh\n" .. script)
      process.check { "chmod", "+x", path }
    end
    return there
  end

  it("runs a little of every part on the emulated device", function()
    local r = run("--device", "emu", "--build", build, "--quick")
    assert.equal(0, r.code, r.out .. r.err)
    local found = rows()
    assert.truthy(found["C tests of the device"]:match "^ok: %d+ passed, 0 failed")
    assert.equal("ok", found["Operations"])
    assert.truthy(found["Lua tests"]:match "^ok: %d+ passed, 0 failed")
    assert.equal("ok", found["Policies from Lua"])
    assert.truthy(found["compute-sanitizer"]:match "^not run: ")
    local text = process.read(report)
    assert.truthy(text:match "^# rlengine on the emulated device\n\nA rehearsal")
    assert.truthy(text:find("\nNothing failed.\n", 1, true))
    for _, line in ipairs { "fill of 1, queued", "[1,256] x [256,256]", "softmax", "Adam over",
      "the engine's cache", "64-256-256-18 train 16" } do
      assert.truthy(text:find(line, 1, true), line)
    end
  end)

  it("says what failed, and goes on", function()
    local r = run("--device", "emu", "--build", stand_in "echo 1..1; echo 'not ok 1 - it'; exit 1",
      "--only", "device-tests,sanitizer")
    assert.equal(1, r.code, r.out .. r.err)
    assert.truthy(rows()["C tests of the device"]:match "^FAIL: 0 passed, [1-9]%d* failed")
    assert.truthy(rows()["compute-sanitizer"])
    local text = process.read(report)
    assert.truthy(text:find("**Something failed.**", 1, true))
    assert.truthy(text:find("not ok 1 - it", 1, true))
  end)

  it("ends what takes too long, with all that it started", function()
    local there = stand_in(("echo $$ >>%s/pids; exec sleep 1000"):format(folder))
    local r = run("--device", "emu", "--build", there, "--only", "device-tests,lua",
      "--seconds", "6")
    assert.equal(1, r.code, r.out .. r.err)
    assert.truthy(rows()["C tests of the device"]:match "^FAIL: took longer than %d s")
    assert.equal("not run: no time left", rows()["Lua tests"])
    for pid in process.read(folder .. "/pids"):gmatch "%d+" do
      assert.equal(1, process.run({ "test", "-d", "/proc/" .. pid }).code)
    end
  end)

  it("asks the driver and compute-sanitizer on a machine with a GPU", function()
    -- Stand-ins for both, and the emulated device under the name of the real one.
    local plugins, bin = folder .. "/plugins", folder .. "/bin"
    process.check { "mkdir", plugins, bin }
    process.check { "cp", build .. "/lib/rlengine/rlengine_emu.so", plugins .. "/rlengine_cuda.so" }
    process.write(bin .. "/nvidia-smi", [[#!/bin/sh
      case $1 in
        --query-gpu=name) echo "NVIDIA Stand-in" ;;
        --query-gpu=compute_cap) echo 9.0 ;;
        --query-gpu=*) echo 123 ;;
        -L) echo "GPU 0: NVIDIA Stand-in" ;;
      esac]])
    process.write(bin .. "/compute-sanitizer", [[#!/bin/sh
      [ "$2" != racecheck ] || { echo "========= Error: Race reported"; exit 99; }
      while [ "${1#--}" != "$1" ]; do shift 2; done
      exec "$@"]])
    process.write(bin .. "/nvcc", "#!/bin/sh\necho release 13.0\n")
    process.check { "sh", "-c", "chmod +x " .. bin .. "/*" }
    local function run_there(...)
      return process.run({ "tests/gpu/run.sh", "--no-build", "--build", build, "--report", report,
        "--quick", ... }, { env = {
          PATH = bin .. ":" .. os.getenv "PATH", RLENGINE_PLUGINS = plugins, CUDACXX = false } })
    end
    local r = run_there("--only", "device-tests,benchmarks,sanitizer")
    assert.equal(1, r.code, r.out .. r.err)
    local found = rows()
    assert.truthy(found["C tests of the device"]:match "^ok")
    assert.equal("ok", found["Operations"])
    assert.equal("FAIL: 3 runs, 1 with findings", found["compute-sanitizer"])
    local text = process.read(report)
    assert.truthy(text:match "^# rlengine on NVIDIA Stand%-in\n")
    assert.truthy(text:find("ok   memcheck test_device\n", 1, true), text)
    assert.truthy(text:match "FAIL racecheck test_device %(exit code 99%)\n=+ Error: Race reported")
    -- What it does not come to is no failure.
    process.write(bin .. "/compute-sanitizer", "#!/bin/sh\nexec sleep 1000\n")
    r = run_there("--only", "sanitizer", "--seconds", "12")
    assert.equal(0, r.code, r.out .. r.err)
    assert.truthy(rows()["compute-sanitizer"]:match "^ok: [1-3] runs, 0 with findings")
    assert.truthy(process.read(report):match "ok   %w+ test_device %(stopped after %d+ s, nothing")
  end)

  it("explains itself, and says which option it does not know", function()
    local r = process.run { "tests/gpu/run.sh", "--help" }
    assert.equal(0, r.code)
    assert.truthy(r.out:find("build-gpu/gpu-report.md", 1, true))
    r = process.run { "tests/gpu/run.sh", "--ony", "story" }
    assert.equal(2, r.code)
    assert.equal('unknown option "--ony"; tests/gpu/run.sh --help lists them\n', r.err)
  end)

  it("says why it cannot begin", function()
    local r = run("--device", "emu:99", "--build", build)
    assert.equal(2, r.code)
    assert.truthy(r.out:find('no device "emu:99"', 1, true), r.out)
    assert.truthy(process.read(report):find("**There is no device.**", 1, true))
    r = run("--device", "cuda 1")
    assert.equal(2, r.code)
    if process.run({ "sh", "-c", "command -v nvidia-smi" }).code ~= 0 then
      r = run "--device" -- no value
      assert.equal(2, r.code)
      r = run()
      assert.equal(2, r.code)
      assert.truthy(r.out:find("no NVIDIA driver", 1, true), r.out)
    end
  end)
end)
