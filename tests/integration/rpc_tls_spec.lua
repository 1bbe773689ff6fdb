-- Remote calls over TLS between real processes: a key from the token, certificates, and those
-- who have neither.
package.path = "tests/support/?.lua;" .. package.path
local rl = require "rlengine"
local process = require "process"
local workers = require "workers"
local rpc = rl.rpc

local BASIC = [[
rpc.register("echo", function(...) return ... end)
rpc.register("busy", function(s)
  local t = require("posix.time")
  local function now() local v = t.clock_gettime(1) return v.tv_sec + v.tv_nsec * 1e-9 end
  local ends = now() + s
  while now() < ends do end
  return "done"
end)
]]

-- A script that joins, says what became of it, and ends.
local JOIN = [[
local rpc = require("rlengine").rpc
local ok, err = pcall(rpc.init, { name = "w", connect = %q, token = %q, %s })
print(ok and "joined" or tostring(err))
os.exit(ok and 0 or 3)
]]

local function joins(group, more, address)
  local path = group.folder .. "/join.lua"
  process.write(path, JOIN:format(address or group.address, workers.token, more or ""))
  local w = group:run(path, "w")
  assert.is_true(workers.eventually(function() return w:output() ~= "" end))
  w:join()
  return w:output()
end

local function listens(options)
  options.listen = "tcp://127.0.0.1:0"
  return workers.group(options)
end

local function openssl(...)
  return process.check { "openssl", ... }
end

-- An authority, and a certificate of it for each name: <folder>/<name>.crt and .key.
local function certificates(folder, names)
  local function at(name) return folder .. "/" .. name end
  local function key(name)
    openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out",
      at(name .. ".key"))
    process.check { "chmod", "600", at(name .. ".key") }
  end
  key "ca"
  openssl("req", "-x509", "-new", "-key", at "ca.key", "-days", "2", "-subj", "/CN=our authority",
    "-out", at "ca.crt")
  for name, subject in pairs(names) do
    key(name)
    openssl("req", "-new", "-key", at(name .. ".key"), "-subj", "/CN=" .. name, "-out",
      at(name .. ".csr"))
    process.write(at(name .. ".ext"), "subjectAltName=" .. subject .. "\n")
    openssl("x509", "-req", "-in", at(name .. ".csr"), "-CA", at "ca.crt", "-CAkey", at "ca.key",
      "-CAcreateserial", "-days", "2", "-extfile", at(name .. ".ext"), "-out", at(name .. ".crt"))
  end
end

local function files(folder, name)
  return { cert = ("%s/%s.crt"):format(folder, name), key = ("%s/%s.key"):format(folder, name),
    ca = folder .. "/ca.crt" }
end

local function written(options)
  return ("tls = { cert = %q, key = %q, ca = %q }"):format(options.cert, options.key, options.ca)
end

describe("TLS with a key from the token", function()
  it("carries calls, tensors and references", function()
    local group = listens { tls = "psk" }
    group:start("w", BASIC .. [[
local Thing = rpc.class("Thing", { "get" })
function Thing:init(v) self.v = v end
function Thing:get() return self.v end
]], 'tls = "psk"')
    assert.is_true(workers.eventually(function() return #rpc.workers() == 1 end))
    assert.same({ 1, "x" }, { rpc.rpc_sync("w", "echo", 1, "x") })
    for _, count in ipairs { 1, 4096, 65537, 3000000 } do
      local t = rl.arange(0, count)
      assert.is_true(rpc.rpc_sync("w", "echo", t):eq(t):all():item())
    end
    assert.equal("kept", rpc.remote("w", "Thing", "kept"):rpc_sync():get())
    local futures = {}
    for i = 1, 200 do futures[i] = rpc.rpc_async("w", "echo", i, rl.ones(1000)) end
    for i, result in ipairs(rpc.wait_all(futures)) do assert.equal(i, result) end
    group:finish { blocks = true }
  end)

  it("answers while a script computes", function()
    local group = listens { tls = "psk", heartbeat = 0.1, timeout = 1 }
    group:start("w", BASIC, 'tls = "psk"')
    assert.is_true(workers.eventually(function() return #rpc.workers() == 1 end))
    assert.equal("done", rpc.rpc_sync("w", "busy", 2.5))
    group:finish()
  end)

  it("F33: is refused with another token, by the same words as without TLS", function()
    local group = listens { tls = "psk" }
    local said = joins(group, 'tls = "psk", token = ("1"):rep(32)')
    assert.equal("UNAUTHENTICATED: 127.0.0.1 refused the token in the option token\n",
      (said:gsub("^.*UNAUTH", "UNAUTH")))
    assert.equal(0, #rpc.workers())
    assert.equal(1, rpc.counters().refused_peers)
    group:finish()
  end)

  it("tells who has no TLS, and is told", function()
    local group = listens { tls = "psk" }
    assert.matches("^FAILED_PRECONDITION: connection to 127.0.0.1:%d+: the other side speaks " ..
      "tls, which is not set here; set tls here too\n$", joins(group))
    group:finish()
    group = listens {}
    assert.matches("^FAILED_PRECONDITION: connection to 127.0.0.1:%d+: it speaks without tls, " ..
      "which is set here; set tls there too\n$", joins(group, 'tls = "psk"'))
    group:finish()
  end)

  it("is for TCP: a Unix socket of the same worker stays plain", function()
    local group = workers.group { tls = "psk" }
    assert.equal("joined\n", joins(group))
    group:finish()
  end)

  it("takes no older TLS", function()
    local group = listens { tls = "psk" }
    local path = group.folder .. "/old.lua"
    process.write(path, ([[
local pipe = io.popen("openssl s_client -tls1_2 -connect %s </dev/null 2>&1; echo over")
print(pipe:read "*a")
]]):format(group.address:match "//(.*)"))
    local w = group:run(path, "old")
    assert.is_true(workers.eventually(function() return w:output():find "over" end))
    assert.matches("alert protocol version", w:output())
    w:join()
    group:finish()
  end)

  it("lets a worker listen where others can reach it", function()
    local group = workers.group { listen = { "tcp://0.0.0.0:0" }, tls = "psk" }
    assert.equal("joined\n", joins(group, 'tls = "psk"', (group.address:gsub("0.0.0.0",
      "127.0.0.1"))))
    group:finish()
  end)
end)

describe("TLS with certificates", function()
  local folder
  setup(function()
    folder = process.folder()
    certificates(folder, { trainer = "IP:127.0.0.1,DNS:localhost", observer = "IP:127.0.0.1",
      other = "DNS:other.lab" })
  end)
  teardown(function() process.remove(folder) end)

  it("carries calls between workers of one authority", function()
    local group = listens { tls = files(folder, "trainer") }
    group:start("w", BASIC, written(files(folder, "observer")))
    assert.is_true(workers.eventually(function() return #rpc.workers() == 1 end))
    local t = rl.arange(0, 100000)
    assert.is_true(rpc.rpc_sync("w", "echo", t):eq(t):all():item())
    group:finish { blocks = true }
  end)

  it("needs one that names the address, or the name that was given", function()
    local group = listens { tls = files(folder, "other") }
    local o = written(files(folder, "observer"))
    assert.matches('UNAUTHENTICATED: tls: certificate of "127.0.0.1" is for another name',
      joins(group, o))
    assert.equal("joined\n", joins(group, (o:gsub("}$", ', name = "other.lab" }'))))
    group:finish()
  end)

  it("still needs the token", function()
    local group = listens { tls = files(folder, "trainer") }
    local said = joins(group, written(files(folder, "observer")) .. ', token = ("1"):rep(32)')
    assert.matches('UNAUTHENTICATED: "test" refused the token in the option token', said)
    group:finish()
  end)

  it("says what is wrong with the files", function()
    local function fails(tls)
      local ok, err = pcall(rpc.init, { name = "x", listen = "127.0.0.1:0",
        token = workers.token, tls = tls })
      assert.is_false(ok)
      return tostring(err)
    end
    process.check { "chmod", "640", folder .. "/other.key" }
    assert.equal(("FAILED_PRECONDITION: tls key file %s/other.key can be read by others (mode "
      .. "0640); chmod 600 it"):format(folder), fails(files(folder, "other")))
    process.check { "chmod", "600", folder .. "/other.key" }
    assert.matches("tls certificate file /nowhere: No such file", fails { cert = "/nowhere",
      key = folder .. "/other.key", ca = folder .. "/ca.crt" })
    assert.matches('unknown option "certificate"', fails { certificate = "x" })
    assert.matches('option "tls" must be "psk"', fails "yes")
    assert.matches('goes without cert', fails { psk = true, cert = "x" })
    assert.matches("the private key %(key%) is missing", fails { cert = folder .. "/other.crt" })
  end)
end)

describe("TLS in a simulated network", function()
  it("carries calls through random faults, the same run for the same seed", function()
    local folder = process.folder()
    local path = folder .. "/run.lua"
    process.write(path, [[
local rl = require "rlengine"
rl.launch {
  observers_per_trainer = 2, rpc = { tls = { psk = true, unix = true } },
  trainer = function(ctx)
    local done = 0
    for _ = 1, 200 do
      for _, name in ipairs(ctx.observers) do
        if pcall(rl.rpc.rpc_sync, name, "rlengine.alive") then done = done + 1 end
      end
    end
    print("calls", done)
  end,
}
]])
    local function run(seed, faults)
      local r = process.run { process.program(), "--sim=" .. seed, "--sim-faults=" .. faults, path }
      assert.equal(0, r.code, ("seed %d: %s%s"):format(seed, r.out, r.err))
      return tonumber(r.out:match "calls%s+(%d+)"), (r.out .. r.err):match "trace %x+"
    end
    local count = os.getenv "RLE_FULL" and 1000 or 12
    for seed = 1, count do run(seed, "all") end
    local calls, trace = run(7, "cut=20")
    assert.is_true(calls > 0)
    assert.truthy(trace)
    assert.same({ calls, trace }, { run(7, "cut=20") })
    process.remove(folder)
  end)
end)
