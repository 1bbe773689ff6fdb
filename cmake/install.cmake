# `cmake --install` places the program, the Lua module, the headers and a pkg-config file.
