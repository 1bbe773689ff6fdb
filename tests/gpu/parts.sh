# parts.sh - the parts of run.sh, each a function that prints its section of the report. It is
# sourced in a process of its own for each. A line "result: ..." is the part's line in the table;
# exit code 3 means that it cannot run here, with the reason in the last line.
# shellcheck shell=bash

results=$GPU_WORK/results
mkdir -p "$results"
: >"$results/counts"

# How many suites use the device at a time. Each of their processes takes half a GiB of a GPU for its
# context, and a suite may have a dozen; GPU_MEMORY: its MiB, 0: not known.
side_by_side() {
  local n=$(($(nproc) / 2)) room=$((GPU_MEMORY ? GPU_MEMORY / 8192 : 8))
  n=$((n > 8 ? 8 : n))
  n=$((n > room ? room : n))
  echo $((n < 1 ? 1 : n))
}

# suites: runs the suites on standard input (label, seconds, command, separated by tabs), several
# at a time, and says how they went.
suites() {
  local at_a_time
  at_a_time=$(side_by_side)
  tee "$results/plan" | tr '\t' '\n' | xargs -d '\n' -n 3 -P "$at_a_time" bash -c '
    IFS=" " read -ra command <<<"$3"
    exec tests/support/run_suite.sh "$0" "$1" "$2" "${command[@]}"' "$results"
  awk -v planned="$(wc -l <"$results/plan")" '
    { p += $1; f += $2; s += $3 }
    END {
      if (NR < planned) { f += planned - NR; printf "%d of %d suites ran\n", NR, planned }
      printf "result: %d passed, %d failed%s\n", p, f, s ? ", " s " skipped" : ""
      exit f > 0 || p == 0 }' "$results/counts"
}

# What measures: a little where little is wanted, or where it is an emulation, which would take
# hours over the rest.
measures_little() {
  [ "$GPU_QUICK" -eq 1 ] || [ "$GPU_IS_REAL" -eq 0 ]
}

# The first of what is listed, when little is wanted.
some() { if [ "$GPU_QUICK" -eq 1 ]; then head -n "$1"; else cat; fi; }

c_tests() {
  local file
  for file in tests/c/test_device*.c; do
    basename "$file" .c
  done | some 1
}

device_tests() {
  c_tests | while read -r name; do
    printf '%s\t'"$GPU_SUITE"'\tenv CMOCKA_MESSAGE_OUTPUT=TAP %s/tests/%s\n' "$name" "$GPU_BUILD" "$name"
  done | suites
}

lua_tests() {
  tests/support/device_specs.sh |
    if [ "$GPU_QUICK" -eq 1 ]; then grep tensor_spec; else cat; fi |
    while read -r file; do
      printf '%s\t'"$GPU_SUITE"'\t%s/rlengine tests/support/run_busted.lua -o TAP %s\n' \
        "${file#tests/}" "$GPU_BUILD" "$file"
    done | suites
}

benchmarks() {
  local baseline=$GPU_BUILD/bench/cuda_baseline.so options=()
  ! measures_little || options+=(--quick)
  if [ ! -e "$baseline" ]; then # else packed with the rest
    baseline=$GPU_WORK/cuda_baseline.so
    # Also where no GPU is: that it builds is worth knowing.
    [ -z "$GPU_NVCC" ] || "$GPU_NVCC" -std=c++17 -O2 -arch=sm_"${GPU_CC:-80}" -shared \
      -Xcompiler=-fPIC -Itests/bench -o "$baseline" tests/bench/cuda_baseline.cu || return 1
  fi
  [ "$GPU_IS_REAL" -eq 0 ] || [ ! -e "$baseline" ] || options+=(--baseline "$baseline")
  "$GPU_BUILD/bench/bench_device" "$GPU_DEVICE" "${options[@]}"
}

policies() {
  local options=(--device="$GPU_DEVICE")
  ! measures_little || options+=(--quick)
  if [ "$GPU_IS_REAL" -eq 1 ] && "$GPU_PYTHON" -c 'import torch' 2>/dev/null; then
    options+=(--torch="$GPU_PYTHON")
  else
    echo "without PyTorch"
  fi
  "$GPU_BUILD/rlengine" tests/bench/device_lua.lua "${options[@]}"
}

# The story's own figures, with the driver's beside them.
story() {
  local watch='' code
  [ "$GPU_QUICK" -eq 0 ] || { echo "a rehearsal; it is a test of its own"; return 3; }
  if [ "$GPU_IS_REAL" -eq 1 ] && command -v nvidia-smi >/dev/null; then
    nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits |
      sed 's/^/nvidia-smi before: /; s/$/ MiB in use on the GPU/'
    while sleep 0.5; do
      nvidia-smi --query-compute-apps=pid,used_memory --format=csv,noheader,nounits
    done >"$GPU_WORK/apps" 2>/dev/null &
    watch=$!
  fi
  "$GPU_BUILD/rlengine" scripts/oom_story.lua --device="$GPU_DEVICE"
  code=$?
  if [ -n "$watch" ]; then
    kill "$watch"
    echo "nvidia-smi, memory of each process while it ran (MiB): first, most, last seen"
    awk -F', *' '$2 ~ /^[0-9]+$/ { if (!($1 in most)) first[$1] = $2
        if ($2 > most[$1]) most[$1] = $2
        last[$1] = $2 }
      END {
        for (p in most) { printf "  process %s: %s, %s, %s\n", p, first[p], most[p], last[p]; n++ }
        if (!n) print "  it names no process (it sees none from inside a container)"
      }' "$GPU_WORK/apps"
  fi
  return $code
}

# one_sanitized TOOL ROOM KIND TEST: a line on how it went, and what was found. Under the tool a
# kernel takes a hundred times as long: no test has to come to its end.
one_sanitized() {
  local tool=$1 room=$2 kind=$3 name=$4 log=$GPU_WORK/tool-$3-$4.log code
  # Calls that the driver refuses are a test's purpose; the engine looks at each itself.
  if [ "$kind" = memcheck ]; then set -- --report-api-errors no; else set --; fi
  timeout -k 2 "$room" "$tool" --tool "$kind" --error-exitcode 99 "$@" \
    "$GPU_BUILD/tests/$name" >"$log" 2>&1
  code=$?
  if [ "$code" -eq 124 ] || [ "$code" -eq 137 ]; then
    if grep -qE '^=+ (Error|Invalid|Race|Hazard|Barrier|Program hit)' "$log"; then
      code=99
    else
      echo "ok   $kind $name (stopped after $room s, nothing found)"
      return
    fi
  fi
  if [ "$code" -eq 0 ]; then
    echo "ok   $kind $name"
  else # in one write: others run beside it
    printf 'FAIL %s %s (exit code %d)\n%s\n' "$kind" "$name" "$code" \
      "$(grep '^=====' "$log" | head -n 30)"
  fi
}

sanitizer() {
  local tool='' place runs at_a_time room
  for place in "$(command -v compute-sanitizer)" "$(dirname "${GPU_NVCC:-/}")/compute-sanitizer" \
    "$(dirname "${GPU_NVCC:-/}")/../compute-sanitizer/compute-sanitizer"; do
    [ -z "$tool" ] && [ -n "$place" ] && [ -x "$place" ] && tool=$place
  done
  [ "$GPU_IS_REAL" -eq 1 ] || { echo "the emulation looks for these faults itself"; return 3; }
  [ -n "$tool" ] || { echo "compute-sanitizer is not installed"; return 3; }
  # Every test has its part of the time, so that each gets its turn with each kind.
  at_a_time=$(side_by_side)
  runs=$(($(c_tests | wc -l) * 3))
  room=$(((GPU_LIMIT - 3) / ((runs + at_a_time - 1) / at_a_time)))
  [ "$room" -ge 2 ] || { echo "there is too little time for it"; return 3; }
  [ "$room" -le 60 ] || room=60
  export -f one_sanitized
  for kind in memcheck racecheck synccheck; do
    for name in $(c_tests); do printf '%s\n%s\n' "$kind" "$name"; done
  done | xargs -d '\n' -n 2 -P "$at_a_time" bash -c 'one_sanitized "$0" "$@"' "$tool" "$room" |
    tee "$results/sanitized"
  grep -c '^FAIL ' "$results/sanitized" >"$results/findings"
  echo "result: $(grep -cE '^(ok|FAIL) ' "$results/sanitized") runs," \
    "$(cat "$results/findings") with findings"
  [ "$(cat "$results/findings")" -eq 0 ]
}
