--- The program: options, arguments, exit codes, what it prints when a script fails.

local process = require "process"

describe("rlengine", function()
  local program = process.program()
  local folder

  setup(function() folder = process.folder() end)
  teardown(function() process.remove(folder) end)

  local function run(args, options)
    table.insert(args, 1, program)
    return process.run(args, options)
  end

  local function script(name, text)
    process.write(folder .. "/" .. name, text)
    return folder .. "/" .. name
  end

  it("runs a script with arg and ... as lua has them", function()
    local path = script("args.lua", "print(arg[0], arg[1], arg[2], #arg, ...)\nprint(arg[-1])")
    local r = run { path, "one", "--two=2" }
    assert.equal(path .. "\tone\t--two=2\t2\tone\t--two=2\n" .. program .. "\n", r.out)
    assert.equal(0, r.code)
  end)

  it("has the same arg table as luajit for every form of call", function()
    local path = script("table.lua", [[
      local keys = {}
      for k in pairs(arg) do keys[#keys + 1] = k end
      table.sort(keys)
      for _, k in ipairs(keys) do io.write(k, "=", k == keys[1] and "program" or arg[k], ";") end
      print(select("#", ...))]])
    local forms = {
      { path }, { path, "a", "" }, { "--", path, "x" }, { "-e", "y = 1", path, "-e" },
      { "-", "x", "y" },
    }
    for _, form in ipairs(forms) do
      local ours, theirs = { program, unpack(form) }, { "luajit", unpack(form) }
      local input = process.read(path)
      assert.same(process.run(theirs, { input = input }), process.run(ours, { input = input }))
    end
  end)

  it("runs -e chunks and -l modules in order, then the script", function()
    script("mod.lua", "print 'mod'; return { x = 5 }")
    local path = script("after.lua", "print('script', mod.x, m.x)")
    local r = run({ "-e", "print 'first'", "-lmod", "-l", "m=mod", "-eprint('last', mod.x)", path },
      { env = { LUA_PATH = folder .. "/?.lua" } })
    assert.equal("first\nmod\nlast\t5\nscript\t5\t5\n", r.out)
    assert.equal("", r.err)
  end)

  it("reads a script from standard input", function()
    assert.equal("hi\t0\n", run({}, { input = "print('hi', select('#', ...))" }).out)
    assert.equal("a\tb\n", run({ "-", "a", "b" }, { input = "print(...)" }).out)
    local r = run({}, { input = "local x = 1\nerror 'here'" })
    assert.equal(1, r.code)
    assert.truthy(r.err:find("rlengine: stdin:2: here\n", 1, true))
  end)

  it("skips a shebang line and counts it", function()
    local path = script("bang.lua", "#!/usr/bin/env rlengine\nerror 'x'")
    assert.truthy(run({ path }).err:find("bang.lua:2: x", 1, true))
  end)

  it("exits as lua does", function()
    local codes = {
      [0] = { "", "os.exit(true)", "os.exit(0)", "return 5" },
      { "error 'x'", "error()", "error({})", "x =", "os.exit(false)", "require 'no.such.module'" },
      [7] = { "os.exit(7)" },
    }
    for code, chunks in pairs(codes) do
      for _, chunk in ipairs(chunks) do assert.equal(code, run({ "-e", chunk }).code, chunk) end
    end
    assert.equal(1, run({ folder .. "/missing.lua" }).code)
    assert.equal(1, run({ "-e", "error 'x'", script("never.lua", "print 'ran'") }).code)
  end)

  it("names a wrong option and where to read on", function()
    for _, args in ipairs { { "-x" }, { "--halp" }, { "-ix" } } do
      local wrong = args[1]
      local r = run(args)
      assert.equal(1, r.code)
      assert.equal(("rlengine: unrecognized option '%s'\nTry 'rlengine --help'.\n")
        :format(wrong), r.err)
    end
    assert.truthy(run({ "-e" }).err:find("'-e' needs an argument", 1, true))
    assert.truthy(run({ "-l" }).err:find("'-l' needs an argument", 1, true))
  end)

  it("prints help and version", function()
    local help = run { "--help" }
    assert.equal(0, help.code)
    assert.truthy(help.out:find("usage: rlengine", 1, true))
    for line in help.out:gmatch "[^\n]+" do assert.truthy(#line <= 80, line) end
    local version = run({ "--version" }).out
    assert.truthy(version:match "^rlengine %d+%.%d+%.%d+ %(LuaJIT .+%)\n[^\n]+\n")
    local short = run({ "-v" }).out
    assert.equal(short .. "1\n", run({ "-v", "-e", "print(1)" }).out)
    assert.equal(short, version:match "^[^\n]*\n")
    local module = run({ "-e", "io.write(require('rlengine')._VERSION)" }).out
    assert.truthy(version:find("rlengine " .. module .. " (", 1, true))
  end)

  it("obeys LUA_INIT, and ignores it with -E", function()
    local env = { LUA_INIT = "io.write 'init '" }
    assert.equal("init x", run({ "-e", "io.write 'x'" }, { env = env }).out)
    assert.equal("x", run({ "-E", "-e", "io.write 'x'" }, { env = env }).out)
    env.LUA_INIT = "@" .. script("init.lua", "io.write 'file '")
    assert.equal("file x", run({ "-e", "io.write 'x'" }, { env = env }).out)
    env.LUA_INIT = "error 'bad init'"
    local r = run({ "-e", "io.write 'x'" }, { env = env })
    assert.equal(1, r.code)
    assert.equal("", r.out)
  end)

  describe("when a script fails", function()
    it("prints the message and a traceback with the script's lines", function()
      local path = script("deep.lua", "local function f()\n  error 'boo'\nend\nf()\n")
      assert.equal(("rlengine: %s:2: boo\nstack traceback:\n\t[C]: in function 'error'\n" ..
        "\t%s:2: in function 'f'\n\t%s:4: in main chunk\n"):format(path, path, path),
        run({ path }).err)
    end)

    it("prints an error object's code, message and place", function()
      local path = script("object.lua",
        "local core = require 'rlengine.core'\nlocal function f()\n" ..
        "  error(core.error.new{code = 'NOT_FOUND', message = 'no such thing'})\nend\nf()\n")
      local r = run { path }
      assert.equal(1, r.code)
      assert.truthy(r.err:find(("rlengine: NOT_FOUND: no such thing\n  at %s:3\nstack traceback:\n")
        :format(path), 1, true), r.err)
      assert.truthy(r.err:find(path .. ":5: in main chunk", 1, true))
      local e = run { "-e", "error(require('rlengine.core').error.new{message = 'm'})" }
      assert.truthy(e.err:find("rlengine: UNKNOWN: m\n  at (command line):1\n", 1, true), e.err)
    end)

    it("prints other error values by their __tostring or their type", function()
      local mine = "error(setmetatable({}, {__tostring = function() return 'mine' end}))"
      assert.truthy(run({ "-e", mine }).err:find("rlengine: mine\nstack traceback", 1, true))
      assert.truthy(run({ "-e", "error {}" }).err:find("(error object is a table value)", 1, true))
      assert.equal("", run({ "-e", "error()" }).err)
      local broken = "error(setmetatable({}, {__tostring = function() error 'again' end}))"
      local r = run { "-e", broken }
      assert.equal(1, r.code)
      assert.truthy(r.err:find("^rlengine: "))
    end)

    it("survives a stack overflow and endless recursion in C", function()
      local r = run { "-e", "local function f() return 1 + f() end f()" }
      assert.equal(1, r.code)
      assert.truthy(r.err:find("stack overflow", 1, true))
      assert.equal(1, run({ "-e", "local s = ('('):rep(1e5) assert(load('x=' .. s))" }).code)
    end)

    it("names a file that cannot be read", function()
      local r = run { folder .. "/missing.lua" }
      assert.equal(("rlengine: cannot open %s/missing.lua: No such file or directory\n")
        :format(folder), r.err)
      assert.truthy(run({ folder }).err:find("Is a directory", 1, true))
    end)
  end)

  describe("loads source text only", function()
    local refusal = "refused: Lua bytecode (only source text is loaded)"
    local code

    setup(function()
      code = string.dump(loadstring "return 1", true)
      script("code.luac", code)
      script("bang.luac", "#!/usr/bin/env rlengine\n" .. code)
    end)

    it("as a script, on standard input and as LUA_INIT", function()
      for _, name in ipairs { "code.luac", "bang.luac" } do
        local path = folder .. "/" .. name
        local r = run { path }
        assert.equal(65, r.code)
        assert.equal(("rlengine: %s: %s\n"):format(path, refusal), r.err)
      end
      local r = run({}, { input = code })
      assert.equal(65, r.code)
      assert.equal(("rlengine: stdin: %s\n"):format(refusal), r.err)
      local env = { LUA_INIT = "@" .. folder .. "/code.luac" }
      assert.equal(65, run({ "-e", "" }, { env = env }).code)
    end)

    it("by load, loadstring, loadfile, dofile and require", function()
      local path = script("all.lua", ([[
        local path, code = %q .. "/code.luac", string.dump(function() end)
        local function show(...) print((select("#", ...)), ...) end
        show(load(code)) show(load(code, "=name")) show(load(code, "@file", "b"))
        show(load(code, "x", "bt")) show(loadstring(code))
        local sent = false
        show(load(function() sent = not sent return sent and code or nil end, "=reader"))
        show(loadfile(path)) show(loadfile(path, "b"))
        show(pcall(dofile, path))
        package.path = %q .. "/?.luac"
        local ok, why = pcall(require, "code")
        print(ok, why:find("refused: Lua bytecode", 1, true) ~= nil)
      ]]):format(folder, folder))
      local file = folder .. "/code.luac"
      local names = { "load", "name", "file", "x", "load", "reader", file, file }
      local expected = {}
      for i, name in ipairs(names) do expected[i] = ("2\tnil\t%s: %s"):format(name, refusal) end
      expected[#expected + 1] = ("2\tfalse\t%s: %s"):format(file, refusal)
      expected[#expected + 1] = "false\ttrue"
      local r = run { path }
      assert.equal("", r.err)
      assert.equal(table.concat(expected, "\n") .. "\n", r.out)
    end)

    it("and text as before", function()
      local path = script("text.lua", ([[
        assert(load("return 1")() == 1)
        assert(load("return x", "n", "t", { x = 2 })() == 2)
        assert(load("return x", "n", "bt", { x = 2 })() == 2)
        local parts = { "return", " ", "3" }
        assert(load(function() return table.remove(parts, 1) end)() == 3)
        assert(select(2, load("x =", "=name")):match "^name:1:")
        assert(loadstring("return 4", "c")() == 4)
        local path = %q .. "/piece.lua"
        assert(loadfile(path, "t", { y = 5 })() == 5)
        y = 6
        assert(dofile(path) == 6)
        assert(select("#", dofile(path)) == 1)
        assert(not loadfile "/no/such/file")
        assert(not pcall(dofile, "/no/such/file"))
        assert(not pcall(load))
        package.path = %q .. "/?.lua"
        assert(require "piece" == 6)
        local ok, why = pcall(require, "broken")
        assert(not ok and why:find("error loading module 'broken' from file", 1, true))
        print "good"
      ]]):format(folder, folder))
      script("piece.lua", "return y, ...")
      script("broken.lua", "x =")
      local r = run { path }
      assert.equal("good\n", r.out, r.err)
    end)
  end)

  describe("and its own Lua files", function()
    it("are inside the program, whatever LUA_PATH says", function()
      script("rlengine.lua", "error 'the wrong one'")
      local r = run({ "-e", "print(require('rlengine')._VERSION)" },
        { env = { LUA_PATH = folder .. "/?.lua", LUA_CPATH = "" }, cwd = "/" })
      assert.equal("", r.err)
      assert.truthy(r.out:match "^%d")
    end)

    it("are all there", function()
      local names = process.check({ "sh", "-c",
        "cd lua && find rlengine -name '*.lua' ! -path 'rlengine/meta/*' | LC_ALL=C sort" })
      for path in names:gmatch "[^\n]+" do
        local module = path:gsub("/init%.lua$", ""):gsub("%.lua$", ""):gsub("/", ".")
        local r = run { "-e", ("print(package.loaders[2](%q))"):format(module) }
        assert.truthy(r.out:match "^function", path)
      end
    end)

    it("say so when a name is not among them", function()
      local r = run { "-e", "require 'rlengine.nothing_like_it'" }
      local place = "no file 'rlengine/nothing_like_it.lua' inside the program"
      assert.truthy(r.err:find(place, 1, true))
    end)

    it("cost little memory: the program starts within 10 MB", function()
      local cache = process.read(program:gsub("[^/]+$", "") .. "CMakeCache.txt")
      if cache:find("RLE_SANITIZE:BOOL=ON", 1, true) then
        pending "an instrumented program is larger"
      end
      local r = run { "-e", "io.write((io.open '/proc/self/status':read '*a'))" }
      assert.truthy(tonumber(r.out:match "VmHWM:%s+(%d+) kB") <= 10 * 1024, r.out)
    end)

    it("make rl no global of scripts", function()
      assert.equal("nil\n", run({ "-e", "print(rl)" }).out)
    end)
  end)
end)
