--- The prompt, as a person meets it: through a pseudo-terminal.

local process = require "process"
local pty = require "pty"

describe("the prompt", function()
  local home, term

  before_each(function()
    home = process.folder()
    term = nil
  end)
  after_each(function()
    if term then term:close() end
    process.remove(home)
  end)

  local function open(options)
    options = options or {}
    local argv = { process.program() }
    for _, a in ipairs(options.args or {}) do argv[#argv + 1] = a end
    local env = { HOME = home, XDG_STATE_HOME = "", LUA_INIT = "" }
    for key, value in pairs(options.env or {}) do env[key] = value end
    term = pty.spawn(argv, { env = env, columns = options.columns })
    term:expect "Ctrl-D leaves.\n> "
  end

  --- Type a line and return what came before the next prompt.
  local function ask(line, next_prompt)
    term:send(line .. "\r")
    term:expect(line .. "\n")
    return term:expect(next_prompt or "> ")
  end

  local function leave()
    term:send "\4"
    local code = term:finish()
    term = nil
    return code
  end

  it("prints what expressions are worth", function()
    open()
    assert.equal("2\n", ask "1 + 1")
    assert.equal("2\t3\n", ask "=2, 3")
    assert.equal('"a\\n\\"b\\""\n', ask [['a\n"b"']])
    assert.equal("nil\n", ask "nil")
    assert.equal("", ask "x = 5")
    assert.equal("5\n", ask "x")
    assert.equal("6\n", ask "return 6")
    assert.equal("hello\n", ask "print 'hello'")
    assert.equal("", ask "")
    assert.equal("", ask "-- nothing")
    assert.equal(0, leave())
  end)

  it("shows tables one level deep", function()
    open()
    assert.equal('{1, 2, "x", a = 5, sub = {…}, ["two words"] = {}}\n',
      ask "{1, 2, 'x', a = 5, sub = {1}, ['two words'] = {}}")
    assert.equal("{}\n", ask "{}")
    assert.equal("{1, [3] = 3, [true] = 1}\n", ask "{1, nil, 3, [true] = 1}")
    ask "t = {} for i = 1, 40 do t[i] = i * 1000 end t.name = 'long'"
    assert.truthy(ask("t"):match '^{\n  1000, 2000, .+ 40000,\n  name = "long",\n}\n$')
    ask "mt = {__tostring = function() return 'mine' end}"
    assert.equal("mine\n", ask "setmetatable({}, mt)")
    assert.equal("{mine}\n", ask "{setmetatable({}, mt)}")
    assert.equal("{self = {…}}\n", ask "(function() local t = {} t.self = t return t end)()")
  end)

  it("opens the tables of a list of tables", function()
    open()
    assert.equal('{{a = 1, b = {…}}, {a = 2}}\n', ask "{{a = 1, b = {1}}, {a = 2}}")
    assert.equal("{{…}}\n", ask "(function() local t = {} t[1] = t return t end)()")
    assert.equal("{{…}, 3}\n", ask "{{1}, 3}")
    assert.truthy(ask "{{a = ('x'):rep(60), b = 'yyyyyyyyyy'}}"
      :match '^{\n  {\n    a = "x+",\n    b = "yyyyyyyyyy",\n  },\n}\n$')
  end)

  it("keeps the last result in _", function()
    open()
    ask "6 * 7"
    assert.equal("43\n", ask "_ + 1")
    assert.equal("43\n", ask "_")
    ask "print 'no result'"
    assert.equal("43\n", ask "_")
  end)

  it("goes on with >> while a chunk is unfinished", function()
    open()
    assert.equal("", ask("for i = 1, 2 do", ">> "))
    assert.equal("", ask("  print(i)", ">> "))
    assert.equal("1\n2\n", ask "end")
    assert.equal("", ask("{1,", ">> "))
    assert.equal("{1, 2}\n", ask "2}")
    assert.equal("", ask("s = [[a", ">> "))
    assert.equal("", ask "b]]")
    assert.equal('"a\\nb"\n', ask "s")
    assert.equal("", ask("x =", ">> "))
    assert.equal("", ask "7")
    assert.equal("7\n", ask "x")
  end)

  it("survives errors and says where they were", function()
    open()
    assert.equal("stdin:1: oops\n", ask "error 'oops'")
    assert.truthy(ask("x = = 1"):match "^stdin:1: unexpected symbol near '='\n$")
    ask "function f() local y = nil + 1 end"
    assert.equal("stdin:1: attempt to perform arithmetic on a nil value\nstack traceback:\n" ..
      "\tstdin:1: in function 'f'\n\tstdin:1: in main chunk\n", ask "f()")
    assert.equal("", ask "error()")
    ask "broken = setmetatable({}, {__tostring = function() error 'bad' end})"
    assert.truthy(ask("broken"):find("bad", 1, true))
    assert.truthy(ask("core = require 'rlengine.core'; core.error.new(5)"):find("stdin:1", 1, true))
    assert.equal("NOT_FOUND: no such\n  at stdin:1\n",
      ask "error(core.error.new{code = 'NOT_FOUND', message = 'no such'})")
    assert.equal("2\n", ask "1 + 1")
    assert.equal(0, leave())
  end)

  it("has the engine as rl and says so", function()
    open()
    assert.truthy(term.text:find("`rl` is the engine", 1, true))
    assert.equal("true\n", ask "rl == require 'rlengine'")
    assert.truthy(ask("rl._VERSION"):match '^"%d')
  end)

  it("refuses bytecode too", function()
    open()
    assert.truthy(ask("load(string.dump(function() end))"):find("refused: Lua bytecode", 1, true))
  end)

  describe("on Ctrl-C", function()
    it("throws the line away", function()
      open()
      term:send "error 'never run'"
      term:expect "never run'"
      term:send "\3"
      term:expect "^C\n> "
      assert.equal("3\n", ask "1 + 2")
    end)

    it("throws an unfinished chunk away", function()
      open()
      ask("for i = 1, 2 do", ">> ")
      term:send "\3"
      term:expect "^C\n> "
      assert.equal("3\n", ask "1 + 2")
    end)

    it("interrupts what runs and returns to the prompt", function()
      open()
      local loops = {
        "io.write 'go\\n' while true do end",
        "io.write 'go\\n' for i = 1, math.huge do local t = {i} end",
        "io.write 'go\\n' local f f = function() while true do end end f()",
        "io.write 'go\\n' coroutine.wrap(function() while true do end end)()",
      }
      for _, loop in ipairs(loops) do
        term:send(loop .. "\r")
        term:expect(loop .. "\ngo\n")
        term:send "\3"
        term:expect "CANCELLED: interrupted\n"
        term:expect "> "
      end
      assert.equal("3\n", ask "1 + 2")
      assert.equal(0, leave())
    end)

    it("interrupts a read and a result that takes long to show", function()
      open()
      term:send "io.write 'go\\n' io.read()\r"
      term:expect "\ngo\n"
      term:wait_asleep()
      term:send "\3"
      term:expect "interrupted"
      term:expect "> "
      ask "slow = {__tostring = function() io.write 'go\\n' while true do end end}"
      term:send "setmetatable({}, slow)\r"
      term:expect "\ngo\n"
      term:send "\3"
      term:expect "interrupted"
      term:expect "> "
      assert.equal("3\n", ask "1 + 2")
    end)

    it("ends the process at the second one when the first cannot be noticed", function()
      open()
      -- Only what is typed stays interpreted; compiled loops see no signal.
      process.write(home .. "/loop.lua", "return function() print 'go' while true do end end")
      term:send(("dofile %q ()\r"):format(home .. "/loop.lua"))
      term:expect "\ngo\n"
      while term:alive() do
        term:send "\3"
        term:read(0.05)
      end
      assert.equal(130, term:finish())
      term = nil
    end)
  end)

  describe("completes with Tab", function()
    it("globals", function()
      open()
      term:send "coll\t"
      term:expect "collectgarbage"
      term:send "\r"
      term:expect "function: "
      term:expect "> "
      term:send "no_such_prefix\t\t\3"
      term:expect "^C\n> "
    end)

    it("fields, and lists what is ambiguous", function()
      open()
      ask "config = {learning_rate = 1, learning_start = 2, gamma = 3}"
      term:send "config.l\t"
      term:expect "config.learning_"
      term:send "\t"
      term:expect "learning_rate   learning_start\n"
      term:expect "> config.learning_"
      term:send "r\t\r"
      assert.equal("rate\n1\n", term:expect "> ")
    end)

    it("methods through metatables, and those of strings", function()
      open()
      ask "Base = {reset = print}; Base.__index = Base"
      ask "Class = setmetatable({step_once = print, size = 4}, Base); Class.__index = Class"
      ask "object = setmetatable({}, Class)"
      term:send "object:st\t"
      term:expect "object:step_once"
      term:send "\3"
      term:expect "> "
      term:send "object:res\t"
      term:expect "object:reset"
      term:send "\3"
      term:expect "> "
      term:send "object:si\t\tx\r" -- a number is no method
      term:expect "object:six\n"
      term:expect ">> "
      term:send "\3"
      term:expect "> "
      ask "name = 'x'"
      term:send "name:upp\t()\r"
      term:expect 'name:upper()\n"X"\n'
    end)

    it("the engine's submodules before they are loaded", function()
      open()
      term:send "rl.\t"
      local list = term:expect "> rl."
      for _, name in ipairs { "nn", "optim", "rpc", "env", "memory", "launch", "no_grad" } do
        assert.truthy(list:find("%f[%w]" .. name .. "%f[^%w]"), name)
      end
      assert.is_nil(list:find("_VERSION", 1, true))
    end)

    it("fields and methods of tensors", function()
      open()
      ask "x = rl.zeros(2, 3)"
      term:send "x:requires_g\t\r"
      term:expect "x:requires_grad_\n>> "
      term:send "\3"
      term:expect "^C\n> "
      term:send "x.sha\t\r"
      assert.equal("x.shape\n{2, 3}\n", term:expect "> ")
      term:send "x.\t"
      local list = term:expect "> x."
      assert.truthy(list:find "%f[%w]dtype%f[^%w]" and list:find "%f[%w]matmul%f[^%w]")
    end)

    it("inside an expression, and indents an empty line", function()
      open()
      term:send "\tprint(math.hu\t)\r"
      assert.equal("  print(math.huge)\ninf\n", term:expect "> ")
    end)
  end)

  describe("remembers lines", function()
    local function history() return process.read(home .. "/.local/state/rlengine/history") end

    it("in a file that the next prompt reads", function()
      open()
      ask "first = 1"
      ask "second = 2"
      assert.equal("first = 1\nsecond = 2\n", history()) -- before it ends, too
      assert.equal(0, leave())
      open()
      term:send "\27[A"
      term:expect_line "> second = 2"
      term:send "\27[A"
      term:expect_line "> first = 1"
      term:send " + 5\r"
      term:expect "> "
      assert.equal("6\n", ask "first")
      assert.equal(0, leave())
      assert.equal("first = 1\nsecond = 2\nfirst = 1 + 5\nfirst\n", history())
    end)

    it("only for its owner", function()
      open()
      ask "x = 1"
      local modes = process.check { "stat", "-c", "%a", home .. "/.local/state/rlengine",
        home .. "/.local/state/rlengine/history" }
      assert.equal("700\n600\n", modes)
    end)

    it("where XDG_STATE_HOME says, and the newest thousand", function()
      local state = home .. "/state"
      process.check { "mkdir", "-p", state .. "/rlengine" }
      local lines = {}
      for i = 1, 2500 do lines[i] = "x = " .. i end
      process.write(state .. "/rlengine/history", table.concat(lines, "\n") .. "\n")
      open { env = { XDG_STATE_HOME = state } }
      ask "y = 0"
      assert.equal(0, leave())
      local text = process.read(state .. "/rlengine/history")
      assert.equal(1001, select(2, text:gsub("\n", "\n")))
      assert.truthy(text:match "^x = 1501\n")
      assert.truthy(text:match "x = 2500\ny = 0\n$")
    end)

    it("not at all where it cannot write, and works", function()
      process.write(home .. "/file", "")
      open { env = { XDG_STATE_HOME = home .. "/file" } }
      assert.equal("2\n", ask "1 + 1")
      assert.equal(0, leave())
    end)
  end)

  it("serves remote calls while it waits for keys", function()
    open()
    ask("rl.rpc.make_token '" .. home .. "/token'")
    ask(("rl.rpc.init{name = 'server', listen = 'unix:%s/socket', token_file = '%s/token'}")
      :format(home, home))
    ask "calls = 0"
    ask "rl.rpc.register('double', function(x) calls = calls + 1 return 2 * x end)"
    term:send "1 + " -- a line is half typed
    term:expect "1 + "
    local client = ([[
      local rpc = require "rlengine".rpc
      rpc.init{name = "client", connect = "unix:%s/socket", token_file = "%s/token"}
      for i = 1, 100 do assert(rpc.rpc_sync("server", "double", i) == 2 * i) end
      print(rpc.rpc_sync("server", "double", 21))
      rpc.shutdown()]]):format(home, home)
    assert.equal("42\n", process.check { process.program(), "-e", client })
    term:send "calls\r"
    assert.equal("calls\n102\n", term:expect "> ")
    term:send "\3" -- Ctrl-C leaves the worker alone
    term:expect "^C\n> "
    assert.equal("42\n", process.check { process.program(), "-e", client })
    assert.equal("202\n", ask "calls")
    assert.equal("", ask "rl.rpc.shutdown()")
    assert.equal("3\n", ask "1 + 2")
    assert.equal(0, leave())
  end)

  it("edits lines, with characters beyond ASCII", function()
    open()
    term:send "'wörld'\1\6hé\r" -- Ctrl-A, right, insert
    term:expect "'héwörld'\n"
    assert.equal('"héwörld"\n', term:expect "> ")
  end)

  it("redraws when the terminal changes its width and after a stop", function()
    open()
    term:send "1 + "
    term:expect "1 + "
    term:resize(40)
    term:expect "> 1 + "
    term:send "4\r"
    assert.equal("4\n5\n", term:expect "> ")
  end)

  it("is entered after a script with -i", function()
    process.write(home .. "/script.lua", "y = 11; print('ran', ...)")
    open { args = { "-i", home .. "/script.lua", "arg" } }
    assert.truthy(term.text:find("ran\targ\n", 1, true))
    assert.equal("11\n", ask "y")
    assert.equal(0, leave())
  end)

  it("leaves with os.exit's code", function()
    open()
    term:send "os.exit(9)\r"
    assert.equal(9, term:finish())
    term = nil
  end)

  describe("without a terminal", function()
    it("is a script unless -i is given", function()
      local r = process.run({ process.program() }, { input = "1 + 1" })
      assert.equal(1, r.code)
      r = process.run({ process.program(), "-i" }, { input = "1 + 1\nx =\n5\nx" })
      assert.equal(0, r.code)
      assert.truthy(r.out:find("> 2\n> >> > 5\n> \n", 1, true), r.out)
    end)

    it("reads lines of any length", function()
      local long = "x = '" .. ("a"):rep(60000) .. "'\n#x\n"
      local r = process.run({ process.program(), "-i" }, { input = long })
      assert.truthy(r.out:find("60000\n", 1, true))
    end)
  end)
end)

describe("a script", function()
  it("is interrupted by Ctrl-C with its line, and exits with 130", function()
    local folder = process.folder()
    process.write(folder .. "/loop.lua", [[
      jit.off()
      local function work()
        print "go"
        while true do
        end
      end
      work()
      print "never"
    ]])
    local term = pty.spawn { process.program(), folder .. "/loop.lua" }
    term:expect "go\n"
    term:send "\3"
    term:expect "rlengine: CANCELLED: interrupted\n"
    term:expect "loop.lua:"
    term:expect "in function 'work'"
    assert.equal(130, term:finish())
    process.remove(folder)
  end)

  it("notices Ctrl-C when it enters the engine, in compiled code too", function()
    local term = pty.spawn { process.program(), "-e", [[
      local rl = require "rlengine"
      local x = rl.zeros(3)
      print "go"
      while true do x = x + 1 end]] }
    term:expect "go\n"
    term:send "\3"
    term:expect "rlengine: CANCELLED: interrupted\n  at (command line):4\n"
    assert.equal(130, term:finish())
  end)

  it("notices Ctrl-C while it serves remote calls", function()
    local folder = process.folder()
    local term = pty.spawn { process.program(), "-e", ([[
      local rpc = require "rlengine".rpc
      rpc.make_token "%s/token"
      rpc.init{name = "server", listen = "unix:%s/socket", token_file = "%s/token"}
      print "go"
      rpc.serve()]]):format(folder, folder, folder) }
    term:expect "go\n"
    term:wait_asleep()
    term:send "\3"
    term:expect "rlengine: CANCELLED: interrupted\n"
    assert.equal(130, term:finish())
    process.remove(folder)
  end)

  it("may catch Ctrl-C and go on", function()
    local term = pty.spawn { process.program(), "-e", [[
      jit.off()
      local ok, e = pcall(function() print "go" while true do end end)
      print(ok, e.code, e.message)
      os.exit(3)]] }
    term:expect "go\n"
    term:send "\3"
    term:expect "false\tCANCELLED\tinterrupted\n"
    assert.equal(3, term:finish())
  end)

  it("that cannot notice it is ended by the second Ctrl-C", function()
    local term = pty.spawn { process.program(), "-e", "print 'go' while true do end" }
    term:expect "go\n"
    while term:alive() do
      term:send "\3"
      term:read(0.05)
    end
    assert.equal(130, term:finish())
  end)
end)
