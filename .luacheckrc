-- Scripts and the module run on LuaJIT and on PUC Lua 5.1 to 5.4.
std = "max"
max_line_length = 100
codes = true
exclude_files = { "build*", ".venv", "lua/rlengine/meta" }
-- table.unpack or unpack, and the like: fields that only one of the Luas has.
files["tests/**/*_spec.lua"] = { std = "max+busted" }
