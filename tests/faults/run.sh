#!/usr/bin/env bash
# Runs rows of the fault matrix and prints what was measured, a table.
#
#   tests/faults/run.sh                   every row, a few times each: minutes
#   tests/faults/run.sh F02 F10           these rows
#   tests/faults/run.sh --full F02        as often as the matrix asks for
#   tests/faults/run.sh --write           ... and put the figures into docs/faults.md
#
# Needs what scripts/test.sh has built; another build's folder: BUILD=build-asan. Exits with 0
# when every row held.
set -u
cd "$(dirname "$0")/../.." || exit 1

rows=() write=
for argument in "$@"; do
  case $argument in
    --full) export RLE_FULL=1 ;;
    --write) write=docs/faults.md ;;
    [FB][0-9][0-9]) rows+=("$argument") ;;
    *) sed -n '2,11s/^# \{0,1\}//p' "$0"; exit 1 ;;
  esac
done

build=${BUILD:-build}
if ! [ -x "$build/tests/fault_proxy" ]; then
  echo "$build/tests/fault_proxy is not there: cmake --build $build" >&2
  exit 1
fi
results=$(mktemp -d "${TMPDIR:-/tmp}/rlengine-faults-XXXXXX")
trap 'rm -rf "$results"' EXIT
export RLENGINE_FIGURES=$results/figures
: >"$RLENGINE_FIGURES"
if [ -z "${RLENGINE_PYTHON:-}" ] && [ -x .venv/bin/python ]; then
  export RLENGINE_PYTHON=$PWD/.venv/bin/python
fi

# What tests a row has its name in its own: it("F02: ...") or f02_...().
if [ ${#rows[@]} -gt 0 ]; then
  wanted=$(IFS='|'; echo "${rows[*]}")
else
  wanted='[FB][0-9][0-9]'
fi
specs=$(grep -rlE --include='*_spec.lua' "(it|describe)\\(\"[^\"]*($wanted)[:,]|figure\\(\"($wanted)" tests)
programs=$(grep -lE "(^|[^a-z])($(echo "$wanted" | tr FB fb))_[a-z]|figure\\(\"($wanted)" tests/c/test_*.c)
filters=()
for row in "${rows[@]}"; do filters+=("--filter=$row"); done

for file in $specs; do
  printf '%s ...\n' "$file" >&2
  timeout 7200 "$build/rlengine" tests/support/run_busted.lua -o TAP "${filters[@]}" "$file" \
    >>"$results/tap" 2>>"$results/errors" </dev/null || echo "not ok - $file ended with $?" >>"$results/tap"
done
for file in $programs; do
  name=$(basename "$file" .c)
  if ! [ -x "$build/tests/$name" ]; then
    echo "$file is left out: $build/tests/$name is not built" >&2
    continue
  fi
  printf '%s ...\n' "$file" >&2
  CMOCKA_MESSAGE_OUTPUT=TAP timeout 7200 "$build/tests/$name" >>"$results/tap" \
    2>>"$results/errors" </dev/null || echo "not ok - $name ended with $?" >>"$results/tap"
done

"$build/rlengine" tests/faults/report.lua "$results" "$write" "${rows[@]}"
