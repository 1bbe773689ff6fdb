#!/usr/bin/env bash
# Builds everything and runs every test. Installs what the tests need where it is missing.
#
#   scripts/test.sh                  everything
#   scripts/test.sh --fast           without the instrumented builds and the fuzz targets
#   scripts/test.sh --fast unit/env  ... and only suites whose name contains the text
#
# The last line is "N passed, N failed" (and ", N skipped"), over all suites; the exit code
# is 0 when nothing failed and everything ran. What a suite printed is in build/test-results.
set -u
cd "$(dirname "$0")/.." || exit 1

fast=0 only=
for argument in "$@"; do
  case $argument in
    --fast) fast=1 ;;
    -*) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 1 ;;
    *) only=$argument ;;
  esac
done

# ---- parts, with their time ----

part_start=$(date +%s)
begin() {
  part=$1
  part_start=$(date +%s)
  printf '\n== %s\n' "$part"
}
finish() { printf '== %s: %d s\n' "$part" $(($(date +%s) - part_start)); }

results=build/test-results
rm -rf "$results"
mkdir -p "$results"
: >"$results/counts"
fail() { # a part that is no suite
  printf 'FAIL %s\n' "$1"
  echo "0 1 0" >>"$results/counts"
}
summary() {
  if [ -s "$results/again" ]; then
    printf 'ran a second time, see above: %s\n' "$(paste -sd ' ' "$results/again")"
  fi
  awk '{ p += $1; f += $2; s += $3 }
    END { printf "%d passed, %d failed%s\n", p, f, s ? ", " s " skipped" : ""
          exit f > 0 || p == 0 }' "$results/counts"
}

# ---- packages ----

begin "packages"
tests/support/packages.sh "$results/apt.log" || fail "apt-get install"
finish

# ---- builds ----

jobs=$(nproc)

# build PRESET FOLDER TARGET [cmake options...]
build() {
  local preset=$1 folder=$2 target=$3
  shift 3
  begin "build $preset"
  if cmake --preset "$preset" "$@" >"$results/$preset.log" 2>&1 &&
    nice cmake --build "$folder" --target "$target" -j "$jobs" >>"$results/$preset.log" 2>&1; then
    finish
  else
    grep -E -A 12 'error|FAILED|CMake Error' "$results/$preset.log" | head -60
    fail "build $preset (all of it: $results/$preset.log)"
    finish
    return 1
  fi
}

# ---- suites ----

# Which barriers are removed and what the fuzz targets try changes with every commit, and is the
# same for one.
nth=$(git rev-list --count HEAD 2>/dev/null || echo 1)

# Comparisons with other implementations need Python packages; .ci/run puts them in .venv.
if [ -z "${RLENGINE_PYTHON:-}" ] && [ -x .venv/bin/python ]; then
  export RLENGINE_PYTHON=$PWD/.venv/bin/python
fi

# Seconds until a suite counts as hanging: far more than any takes on a slow and busy machine.
patience=900

plan=$results/plan # lines of: label, command, separated by a tab
suite() {
  local label=$1
  shift
  case $label in *"$only"*) printf '%s\t%s\n' "$label" "$*" >>"$plan" ;; esac
}
run_suites() {
  [ -f "$plan" ] || return 0
  # As many at a time as there are cores, the longest first; rows of faults, which tell how soon
  # something was noticed, one at a time.
  local alone
  for alone in 0 1; do
    awk -F '\t' -v alone=$alone '($1 ~ /(^|\/)faults\//) == alone' "$plan" | tr '\t' '\n' |
      xargs -d '\n' -r -n 2 -P $((alone ? 1 : jobs)) bash -c '
        IFS=" " read -ra command <<<"$3"
        exec tests/support/run_suite.sh "$0" "$2" "$1" "${command[@]}"' "$results" "$patience"
  done
  # What did not even start has failed.
  local planned ran
  planned=$(wc -l <"$plan") ran=$(wc -l <"$results/counts")
  if [ "$ran" -lt $((before + planned)) ]; then fail "only $((ran - before)) of $planned suites ran"; fi
  rm "$plan"
}

# A test that has nothing to say under the sanitizers tells so in a comment near its top, with
# the reason: "released only: it measures".
released_only() { # FILE LABEL
  local reason
  reason=$(head -n 30 "$1" | sed -n 's/.*released only: *\(.*[^ *\/]\).*/\1/p' | head -n 1)
  [ -n "$reason" ] || return 1
  case $2 in *"$only"*) printf 'left %s: %s\n' "$2" "$reason" ;; esac
}

# suites_of FOLDER PREFIX: C tests and specs of a build
suites_of() {
  local folder=$1 prefix=$2 file found=0
  for file in tests/integration/*_spec.lua tests/learning/*_spec.lua tests/*/*_spec.lua \
    tests/*/*/*_spec.lua; do
    [ -f "$file" ] || continue
    grep -qsxF "${prefix}${file#tests/}" "$results/seen" && continue
    echo "${prefix}${file#tests/}" >>"$results/seen"
    case $prefix$file in asan/tests/learning/* | asan/tests/gpu/*) continue ;; esac
    [ -n "$prefix" ] && released_only "$file" "$prefix${file#tests/}" && continue
    suite "$prefix${file#tests/}" \
      "$folder/rlengine tests/support/run_busted.lua -o TAP $file"
    found=1
  done
  for file in tests/c/test_*.c; do
    [ -n "$prefix" ] && released_only "$file" "${prefix}c/$(basename "$file" .c)" && continue
    file=$(basename "$file" .c)
    suite "${prefix}c/$file" "env CMOCKA_MESSAGE_OUTPUT=TAP $folder/tests/$file"
  done
  [ "$found" -eq 1 ] || fail "no spec was found"
}

# Specs again with the emulated device as the default one, here and in every process that
# they start: all units, every operation, and what moves tensors between processes and files.
emulated_suites() {
  local file
  if [ ! -f build/lib/rlengine/rlengine_emu.so ]; then
    fail "the emulated device was not built"
    return
  fi
  for file in $(tests/support/device_specs.sh); do
    suite "emu/${file#tests/}" env RLENGINE_TEST_DEVICE=emu \
      build/rlengine tests/support/run_busted.lua -o TAP "$file"
  done
}

# CI compiles the kernels for one generation of GPUs: that takes a third of the time.
if build release build all ${CI:+-DRLE_CUDA_ARCHITECTURES=90}; then
  begin "tests"
  before=$(wc -l <"$results/counts")
  suites_of build ""
  emulated_suites
  suite "lint" build/rlengine tests/lint/lint.lua
  suite "lint/self-test" build/rlengine tests/lint/lint.lua --self-test
  suite "emu/coverage" build/rlengine tests/emu/coverage.lua --tap
  suite "emu/barriers" build/rlengine tests/emu/mutate_barriers.lua --sample 3 --seed "$nth"
  suite "gpu/budget" build/rlengine tests/gpu/check_budget.lua
  suite "lint/luacheck" bash tests/lint/luacheck.sh
  for script in tests/golden/compare_*.py; do
    [ -f "$script" ] && suite "golden/$(basename "$script" .py)" bash tests/golden/run.sh "$script"
  done
  run_suites
  finish
fi

# Instrumented builds are clang's where it is installed, so that its warnings count too.
compiler=gcc cxx=g++
choose_compiler() { # SANITIZERS
  compiler=gcc cxx=g++
  if echo 'int main(void){return 0;}' | clang "-fsanitize=$1" -x c - -o "$results/probe" \
    2>/dev/null && "$results/probe"; then
    compiler=clang cxx=clang++ # of one kind: a process has one sanitizer's runtime
  fi
}

if [ "$fast" -eq 0 ]; then
  choose_compiler address,undefined
  if build asan build-asan all -DCMAKE_C_COMPILER=$compiler -DCMAKE_CXX_COMPILER=$cxx; then
    begin "tests under AddressSanitizer and UndefinedBehaviorSanitizer ($compiler)"
    before=$(wc -l <"$results/counts")
    export UBSAN_OPTIONS=print_stacktrace=1
    suites_of build-asan asan/
    run_suites
    finish
  fi
fi

# Remote calls have threads; the rest of the engine has none that share anything. Built are only
# the layers below them, in seconds.
if [ "$fast" -eq 0 ]; then
  choose_compiler thread
  if build tsan build-tsan tsan -DCMAKE_C_COMPILER=$compiler -DCMAKE_CXX_COMPILER=$cxx; then
    begin "tests under ThreadSanitizer ($compiler)"
    before=$(wc -l <"$results/counts")
    for file in $(sed -n '/^foreach(name/,/)/p' engine/cmake/tsan.cmake | grep -o 'test_[a-z_]*'); do
      suite "tsan/c/$file" "env CMOCKA_MESSAGE_OUTPUT=TAP build-tsan/tests/$file"
    done
    run_suites
    finish
  fi

  # 30 seconds for each target, two at a time; tests/fuzz/run.sh for longer.
  begin "fuzz targets"
  before=$(wc -l <"$results/counts")
  suite "fuzz" tests/fuzz/run.sh --seed "$nth" --tap
  run_suites
  finish
fi

echo
summary
