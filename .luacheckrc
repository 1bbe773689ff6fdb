-- Scripts and the module run on LuaJIT and on PUC Lua 5.1 to 5.4.
std = "max"
max_line_length = 100
codes = true
self = false -- a method need not use its object
ignore = { "581" } -- `not (x > 0)` is true for NaN, `x <= 0` is not
exclude_files = { "build*", ".venv", "lua/rlengine/meta" }
files["tests"] = { ignore = { "231", "241", "331" } } -- values kept so that they live
files["tests/**/*_spec.lua"] = { std = "max+busted" }
