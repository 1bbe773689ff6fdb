#!/bin/sh
# Runs nvcc and keeps what it says in a file, ptxas' figures of every kernel among it.
#   nvcc.sh LOG COMMAND...
# Prints the rest of it (warnings and errors); ends with the command's exit code.
log=$1
shift
"$@" >"$log" 2>&1
code=$?
grep -v -e '^ptxas info ' -e '^    [0-9]* bytes stack frame' "$log" >&2
exit $code
