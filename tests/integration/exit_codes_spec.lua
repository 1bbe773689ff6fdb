-- What the program ends with when nobody catches an error, after sysexits.h; and that a run of
-- several processes ends with the code of the one that failed.
package.path = "tests/support/?.lua;" .. package.path
local process = require "process"
local launched = require "launched"

local function run(script, env)
  script = 'rl = require "rlengine"; rpc = rl.rpc ' .. script
  return process.run({ process.program(), "-e", script }, { env = env })
end

local sanitized = process.read(process.program()):find("__asan_init", 1, true) ~= nil

local TOKEN = 'token = ("x"):rep(32)'

describe("an uncaught error ends the program with", function()
  local folder
  setup(function() folder = process.folder() end)
  teardown(function() process.remove(folder) end)

  it("1, when a script failed by itself", function()
    assert.equal(1, run("error('pole fell off')").code)
    assert.equal(1, run("error({})").code)
    assert.equal(1, run("rl.zeros(2):view(3)").code)
    assert.equal(1, run("rpc.rpc_sync('a', 'f')").code) -- no rpc.init
    assert.equal(1, run("this is no Lua").code)
    assert.equal(0, run("pcall(error, 'x')").code)
    for key, least in pairs { reconnect_for = ">=", busy_poll = ">=", timeout = ">",
      heartbeat = ">" } do
      local result = run(("rpc.init { name = 'a', listen = '127.0.0.1:0', %s, %s = -1 }"):format(
        TOKEN, key))
      assert.equal(1, result.code)
      assert.matches(key .. '" must be a number of seconds ' .. least .. " 0", result.err, 1, true)
    end
  end)

  it("69, when a worker is not there", function()
    local r = run(('rpc.init{ name = "a", connect = "unix:%s/none", connect_timeout = 0.1, %s }')
      :format(folder, TOKEN))
    assert.equal(69, r.code)
    assert.matches("UNAVAILABLE: no worker at unix:", r.err)
  end)

  it("F37: 69, when an address is in use", function()
    local r = run(([[
rpc.init{ name = "a", listen = "127.0.0.1:0", %s }
local address = rpc.worker_info().addresses[1]
rpc.shutdown()
local hold = io.popen(("%%s -e 'rl = require %%q; rl.rpc.init{ name = %%q, listen = %%q, "
  .. "token = %%q } print(1) io.stdout:flush() rl.rpc.sleep(1.5)'"):format(%q, "rlengine", "b",
  address, ("x"):rep(32)))
hold:read()
io.stdout:write(address:match ":(%%d+)$")
io.stdout:flush()
rpc.init{ name = "a", listen = address, %s }]]):format(TOKEN, process.program(), TOKEN))
    assert.equal(69, r.code, r.err)
    assert.truthy(r.err:find("UNAVAILABLE: cannot listen on 127.0.0.1:" .. r.out
      .. ": address already in use", 1, true), r.err)
  end)

  it("65, when a name is taken", function()
    local r = run(([[
rpc.init{ name = "a", listen = "unix:%s/s", %s }
local pipe = io.popen(%q .. " -e 'require(\"rlengine\").rpc.init{ name = \"a\", "
  .. "connect = \"unix:%s/s\", token = (\"x\"):rep(32) }' 2>&1; echo code $?")
rpc.sleep(0.5)
io.write(pipe:read "*a")]]):format(folder, TOKEN, process.program(), folder))
    assert.matches("ALREADY_EXISTS", r.out)
    assert.matches("code 65", r.out)
  end)

  it("F33: 77, when the token is missing, empty or open to others", function()
    local path = folder .. "/token"
    local function with_token()
      return run(('rpc.init{ name = "a", listen = "unix:%s/t" }'):format(folder),
        { RLENGINE_TOKEN_FILE = path })
    end
    local r = with_token()
    assert.equal(77, r.code)
    assert.truthy(r.err:find(("UNAUTHENTICATED: cannot read the token file %s: No such file")
      :format(path), 1, true), r.err)
    process.write(path, "")
    process.check { "chmod", "600", path }
    r = with_token()
    assert.equal(77, r.code)
    assert.truthy(r.err:find(("UNAUTHENTICATED: the token in %s is empty"):format(path), 1, true),
      r.err)
    process.write(path, ("x"):rep(40))
    process.check { "chmod", "644", path }
    r = with_token()
    assert.equal(77, r.code)
    assert.truthy(r.err:find(("UNAUTHENTICATED: token file %s can be read by others (mode 0644); "
      .. "chmod 600 it"):format(path), 1, true), r.err)
    process.check { "chmod", "600", path }
    assert.equal(0, with_token().code)
  end)

  it("F36: 78, when it would listen openly by mistake", function()
    local r = run(('rpc.init{ name = "a", listen = "0.0.0.0:29500", %s }'):format(TOKEN))
    assert.equal(78, r.code)
    assert.truthy(r.err:find("refusing to listen on 0.0.0.0:29500 without tls; use a loopback "
      .. "address, set tls, or set insecure_network=true", 1, true), r.err)
    r = run(('rpc.init{ name = "a", listen = "[::]:29500", %s }'):format(TOKEN))
    assert.equal(78, r.code)
    r = run(('rpc.init{ name = "a", connect = "10.255.255.1:29500", %s }'):format(TOKEN))
    assert.equal(78, r.code)
    assert.matches("refusing to connect to 10.255.255.1:29500 without tls", r.err)
    r = run(('rpc.init{ name = "a", listen = "unix:/tmp/open.sock", %s }'):format(TOKEN))
    assert.equal(78, r.code)
    r = run(('rpc.init{ name = "a", listen = "127.0.0.1:0", tls = { cert = "/no", key = "/no", '
      .. 'ca = "/no" }, %s }'):format(TOKEN))
    assert.equal(78, r.code)
    assert.matches("cannot read the tls key file /no: No such file", r.err)
  end)

  it("71, without memory", function()
    if not sanitized then -- whose shadow takes all of the address space
      local hungry = process.run { "sh", "-c", 'ulimit -v 300000; exec "$0" -e "$1"',
        process.program(), 'local t = {} for i = 1, 1e9 do t[i] = ("x"):rep(1e6) .. i end' }
      assert.equal(71, hungry.code)
      assert.matches("not enough memory", hungry.err)
    end
    local r = run('error(require("rlengine.core").error.new { code = "RESOURCE_EXHAUSTED", '
      .. 'message = "out of memory: wanted 65536 bytes for \\"frame body\\"" })')
    assert.equal(71, r.code)
    r = run('error(require("rlengine.core").error.new { code = "RESOURCE_EXHAUSTED", '
      .. 'message = "1 message too many" })')
    assert.equal(1, r.code)
  end)
end)

describe("rl.launch ends with the code of the process that failed:", function()
  local function code_of(body)
    local group = launched.start(([[
local rl = require "rlengine"
local core = require "rlengine.core"
rl.launch { trainers = 1, observers_per_trainer = 1, trainer = function(ctx) %s end }
]]):format(body))
    local code, err = group:wait(), group:err()
    group:remove()
    return code, err
  end

  it("78 for a refused setting, 77 for a refused token", function()
    local code, err = code_of('rl.rpc.shutdown() rl.rpc.init { name = "x", listen = "0.0.0.0:1", '
      .. 'token = ("x"):rep(32) }')
    assert.equal(78, code, err)
    assert.matches('trainer "agent_0" failed %(exit code 78%)', err)
    code, err = code_of 'error(core.error.new { code = "UNAUTHENTICATED", message = "m" })'
    assert.equal(77, code, err)
    code, err = code_of 'error(core.error.new { code = "ABORTED", message = "m" })'
    assert.equal(1, code, err)
  end)
end)
