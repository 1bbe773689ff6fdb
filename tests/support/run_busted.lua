--- run_busted.lua: busted inside the program under test.
--   build/rlengine tests/support/run_busted.lua tests/unit/base
-- So the specs run on the program's LuaJIT, on the Lua files embedded in it and, where the
-- program is instrumented, under its sanitizers. Options are busted's.
--
-- RLENGINE_TEST_DEVICE=emu runs them on another device: it is the default device here and in
-- every process that a spec starts.

package.path = "tests/support/?.lua;" .. package.path

local device = os.getenv "RLENGINE_TEST_DEVICE"
if device and device ~= "" then
  assert(require("posix.stdlib").setenv("RLENGINE_DEVICE", device) == 0)
end

-- A leak checker at exit wants every finalizer to have run.
local exit = os.exit
os.exit = function(code) exit(code, true) end -- luacheck: ignore 122

-- .busted names luajit for those who call `busted`; here the program is the interpreter.
table.insert(arg, 1, "--ignore-lua")

require "busted.runner" { standalone = false }
