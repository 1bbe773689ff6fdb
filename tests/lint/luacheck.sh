#!/usr/bin/env bash
# luacheck over every Lua file, as one TAP test.
echo 1..1
if output=$(luacheck --no-color -q lua engine scripts tests .busted .luacheckrc 2>&1); then
  echo "ok 1 - luacheck: $(tail -n 1 <<<"$output")"
else
  echo "not ok 1 - luacheck"
  sed 's/^/# /' <<<"$output"
  exit 1
fi
