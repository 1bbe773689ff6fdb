#!/usr/bin/env bash
# Everything that can only be seen on a machine with an NVIDIA GPU, in under five minutes, as one
# report. Needs nvcc and the driver; what else is missing it installs first, where apt is there.
#
#   tests/gpu/run.sh                        build-gpu/gpu-report.md
#   tests/gpu/run.sh --device cuda:1        another GPU
#   tests/gpu/run.sh --device emu           the same on the emulated device: a rehearsal
#
#   --report FILE    where the report goes
#   --build FOLDER   where it is built (build-gpu; for emu: build)
#   --no-build       test what is built there already; installs nothing. So does a folder that
#                    tests/gpu/pack.sh made, for machines without network
#   --seconds N      time for everything but packages (290; emu: 2900); what has none left is not
#                    run, and says so. With more than 290 each part may take as much longer
#   --python PYTHON  a Python with PyTorch to compare with (python3, where that has it)
#   --quick          a little of every part, to see that it runs
#   --only PARTS     some of: device-tests,benchmarks,story,lua,sanitizer,policies
#
# The parts are in the order of what one would miss most. The report is written anew after each,
# so whoever stops this halfway still has one. Exit code: 0 all passed, 1 something failed, 2 it
# could not begin.
set -u
cd "$(dirname "$0")/../.." || exit 2

device=cuda quick=0 report='' build='' make=1 seconds='' only='' python=${RLENGINE_PYTHON:-python3}
while [ $# -gt 0 ]; do
  case $1 in
    --device | --report | --build | --seconds | --python | --only)
      [ $# -gt 1 ] || { echo "$1 needs a value"; exit 2; }
      case $1 in
        --device) device=$2 ;;
        --report) report=$2 ;;
        --build) build=$2 ;;
        --seconds) seconds=$2 ;;
        --python) python=$2 ;;
        --only) only=$2 ;;
      esac
      shift 2 ;;
    --no-build) make=0; shift ;;
    --quick) quick=1; shift ;;
    -h | --help) sed -n '2,22s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "unknown option \"$1\"; tests/gpu/run.sh --help lists them" >&2; exit 2 ;;
  esac
done
[[ $device =~ ^[a-z]+(:[0-9]+)?$ ]] || { echo "what is \"$device\"?"; exit 2; }
case $device in
  cuda*) gpu=1 build=${build:-build-gpu} seconds=${seconds:-290} ;;
  *) gpu=0 build=${build:-build} seconds=${seconds:-2900} ;;
esac
[[ $seconds =~ ^[1-9][0-9]*$ ]] || { echo "--seconds $seconds: a whole number is wanted"; exit 2; }
report=${report:-$build/gpu-report.md}
if [ -d "$build/libraries" ]; then # packed elsewhere
  make=0 packed=$(cd "$build" && pwd)
  export LUA_PATH="$packed/lua/?.lua;$packed/lua/?/init.lua;;" LUA_CPATH="$packed/lua/?.so;;"
fi
begin=$(date +%s)
left() { echo $((begin + seconds - $(date +%s))); }
mkdir -p "$build" "$(dirname "$report")" && work=$(mktemp -d "$build/gpu-XXXXXX") || exit 2
session=
end_session() { # SIGNAL
  local stat line its
  [ -n "$session" ] || return 0
  # Behind the name, which may have anything in it: state, parent, group, session.
  for stat in /proc/[0-9]*/stat; do
    { read -r line <"$stat"; } 2>/dev/null || continue
    read -r _ _ _ its _ <<<"${line##*)}"
    stat=${stat#/proc/}
    [ "$its" != "$session" ] || kill "-$1" "${stat%/stat}" 2>/dev/null
  done
}
trap 'end_session KILL; rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
: >"$work/rows"
: >"$work/sections"

# ---- the report ----

one_line() { tr -s ' \n\t' ' ' | sed 's/^ //; s/ $//'; }
# write_report STATE
write_report() {
  {
    cat "$work/head"
    printf '\n%s\n\n| part | result | time |\n|---|---|---|\n' "$1"
    cat "$work/rows" "$work/sections"
  } >"$report.new" && mv "$report.new" "$report"
}
state() {
  if grep -q '| FAIL' "$work/rows"; then echo "**Something failed.**"; else echo "$1"; fi
}

# until_done PID TIME: waits for a session's first process; 1: it had to be ended.
until_done() {
  local was=0
  while kill -0 "$1" 2>/dev/null; do
    if [ "$(date +%s)" -ge "$2" ]; then
      end_session "$([ "$was" -eq 0 ] && echo TERM || echo KILL)"
      was=1
    fi
    sleep 0.2
  done
  return $was
}

# longer SECONDS: as many more as there is more time for everything
longer() { echo $(($1 * (seconds > 290 ? seconds : 290) / 290)); }
wanted() { case ",${only:-$1}," in *",$1,"*) return 0 ;; *) return 1 ;; esac; }

# part NAME LIMIT TITLE FUNCTION: runs it for at most LIMIT seconds; its output is a section of the
# report. Its result is its last line when that begins with "result: ", else its exit code. Exit
# code 3: it cannot run here, the last line says why.
part() {
  local name=$1 limit=$2 title=$3 function=$4 start late code result log=$work/$1.log
  wanted "$name" || return 0
  limit=$(longer "$limit")
  [ "$limit" -le "$(left)" ] || limit=$(left)
  if [ "$limit" -lt 3 ]; then
    printf '| %s | not run: no time left | |\n' "$title" >>"$work/rows"
    write_report "$(state "Unfinished: there was no time for everything.")"
    return 0
  fi
  write_report "Unfinished: \"$title\" was under way."
  printf '%s ...\n' "$title"
  start=$(date +%s)
  # A part is a session of its own, so that all it started ends with its time.
  GPU_LIMIT=$limit setsid bash -c '. tests/gpu/parts.sh; "$0"' "$function" >"$log" 2>&1 </dev/null &
  session=$!
  until_done "$session" $((start + limit))
  late=$?
  wait "$session"
  code=$?
  session=
  [ "$late" -eq 0 ] || code=124
  result=$(grep '^result: ' "$log" | tail -n 1 | cut -c 9-)
  if [ "$code" -eq 124 ] && [ -s "$work/results/counts" ]; then
    result=$(awk '{ p += $1; f += $2 } END { printf "%d passed, %d failed until then", p, f }' \
      "$work/results/counts")
  fi
  rm -rf "$work/results"
  case $code in
    0) result="ok${result:+: $result}" ;;
    3) result="not run: $(tail -n 1 "$log" | one_line)" ;;
    124) result="FAIL: took longer than $limit s${result:+: $result}" ;;
    *) result="FAIL: ${result:-exit code $code}" ;;
  esac
  printf '| %s | %s | %d s |\n' "$title" "$(printf '%s' "$result" | tr '|' '/')" \
    $(($(date +%s) - start)) >>"$work/rows"
  printf '%s: %s\n' "$title" "$result"
  if [ "$code" -ne 3 ]; then
    { printf '\n## %s\n\n```\n' "$title"
      grep -v '^result: ' "$log" | head -n 400
      printf '```\n'; } >>"$work/sections"
  fi
  write_report "$(state "Unfinished.")"
}

# ---- what this machine is ----

number=${device##*[a-z:]}
field() {
  nvidia-smi --query-gpu="$1" --format=csv,noheader,nounits -i "${number:-0}" 2>/dev/null |
    head -n 1
}
nvcc=${CUDACXX:-$(command -v nvcc)}
[ -n "$nvcc" ] || for nvcc in /usr/local/cuda/bin/nvcc /usr/local/cuda-*/bin/nvcc ''; do
  [ ! -x "$nvcc" ] || break
done
name=$device cc=
if [ "$gpu" -eq 0 ]; then
  name="the emulated device"
elif command -v nvidia-smi >/dev/null; then
  name=$(field name)
  cc=$(field compute_cap | tr -d .)
elif ! ls /dev/nvidia[0-9]* /dev/dxg >/dev/null 2>&1; then # in a container it may be left out
  echo "there is no nvidia-smi, so no NVIDIA driver: this needs a GPU. --device emu rehearses it."
  exit 2
fi
if [ "$gpu" -eq 1 ] && [ "$make" -eq 1 ] && [ -z "$nvcc" ]; then
  echo "there is no nvcc: install the CUDA Toolkit"
  exit 2
fi
# Without nvidia-smi the toolkit knows; and what nvcc does not know is built for as by default.
if [ "$gpu" -eq 1 ] && [ -z "$cc" ] && [ -n "$nvcc" ]; then
  cc=$("$(dirname "$nvcc")/__nvcc_device_query" 2>/dev/null | tr ',' '\n' | head -n 1)
fi
if [ -z "$nvcc" ] || ! "$nvcc" --list-gpu-code 2>/dev/null | grep -qx "sm_$cc"; then cc=; fi
version=$([ -z "$nvcc" ] || "$nvcc" --version | sed -n 's/.*release \([0-9.]*\).*/\1/p')
# A toolkit that was only unpacked has its libraries where nothing looks for them.
if [ "$gpu" -eq 1 ] && [ -n "$nvcc" ]; then
  toolkit=$(dirname "$(dirname "$nvcc")")/lib64
  if [ -e "$toolkit/libcublas.so.${version%%.*}" ] &&
    ! ldconfig -p 2>/dev/null | grep -q "libcublas.so.${version%%.*} "; then
    export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$toolkit"
  fi
fi
{
  printf '# rlengine on %s\n\n' "${name:-an unknown GPU}"
  [ "$gpu" -eq 1 ] || printf 'A rehearsal: what runs here is an emulation, its times mean nothing.\n\n'
  printf '| | |\n|---|---|\n'
  printf '| when | %s |\n' "$(date -u '+%Y-%m-%d %H:%M UTC')"
  printf '| source | %s |\n' "$(git describe --always --dirty 2>/dev/null || echo 'no repository')"
  if [ "$gpu" -eq 1 ] && command -v nvidia-smi >/dev/null; then
    printf '| GPU | %s, compute capability %s, %s MiB, %s of them |\n' "$name" "$(field compute_cap)" \
      "$(field memory.total)" "$(nvidia-smi -L 2>/dev/null | wc -l)"
    printf '| driver | %s |\n' "$(field driver_version)"
    printf '| clocks now | SM %s MHz, memory %s MHz |\n' "$(field clocks.sm)" "$(field clocks.mem)"
    printf '| in use before | %s MiB, by %s processes |\n' "$(field memory.used)" \
      "$(nvidia-smi --query-compute-apps=pid --format=csv,noheader 2>/dev/null | wc -l)"
  fi
  printf '| nvcc | %s |\n' "${version:-none}"
  printf '| host | %s, %d cores, %s |\n' \
    "$(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1)" "$(nproc)" "$(uname -sr)"
  printf '| compiler | %s |\n' "$(cc --version 2>/dev/null | head -n 1)"
} >"$work/head"
write_report "Unfinished: nothing has run yet."

# ---- build ----

if [ "$make" -eq 1 ]; then
  timeout 300 tests/support/packages.sh "$work/apt.log" || echo "going on without"
  begin=$(date +%s)
  write_report "Unfinished: the build was under way."
  started=$(date +%s)
  echo "build ..."
  options=
  [ "$gpu" -eq 0 ] || options="-DRLE_CUDA=ON -DRLE_CUDA_ARCHITECTURES=${cc:+$cc-real}
    -DRLE_CUDA_FLAGS=-lineinfo"
  # What the parts need and nothing else.
  targets="rlengine rlengine_emu bench_device $(cd tests/c && echo test_device*.c | sed 's/\.c//g')"
  [ "$gpu" -eq 0 ] || targets="$targets rlengine_cuda"
  # shellcheck disable=SC2086
  if ! { cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release $options &&
    timeout "$(left)" cmake --build "$build" -j "$(nproc)" --target $targets; } \
    >"$work/build.log" 2>&1; then
    grep -E -A 8 'error|FAILED|CMake Error' "$work/build.log" | head -n 60 >"$work/build.short"
    [ -s "$work/build.short" ] || tail -n 20 "$work/build.log" >"$work/build.short"
    printf '| build | FAIL | %d s |\n' $(($(date +%s) - started)) >>"$work/rows"
    { printf '\n## build\n\n```\n'; cat "$work/build.short"; printf '```\n'; } >>"$work/sections"
    write_report "**It could not be built.**"
    cat "$work/build.short"
    echo "not built; the report is $report"
    exit 2
  fi
  printf '| build | ok | %d s |\n' $(($(date +%s) - started)) >>"$work/rows"
fi
started=$(date +%s)
if ! timeout 60 "$build/rlengine" tests/gpu/describe.lua "$device" >"$work/device" 2>&1; then
  printf '| device %s | FAIL: %s | |\n' "$device" "$(one_line <"$work/device")" >>"$work/rows"
  write_report "**There is no device.**"
  cat "$work/device"
  exit 2
fi
grep '^| ' "$work/device" >>"$work/head"
printf '| device opened, first kernel, first product | ok | %d s |\n' $(($(date +%s) - started)) \
  >>"$work/rows"

# ---- the parts ----

export RLENGINE_TEST_DEVICE=$device
export GPU_DEVICE=$device GPU_IS_REAL=$gpu GPU_BUILD=$build GPU_QUICK=$quick GPU_WORK=$work \
  GPU_NVCC=$nvcc GPU_CC=$cc GPU_PYTHON=$python
GPU_SUITE=$(longer 60)
GPU_MEMORY=$([ "$gpu" -eq 0 ] || field memory.total | tr -cd 0-9)
GPU_MEMORY=${GPU_MEMORY:-0}
export GPU_SUITE GPU_MEMORY
part device-tests 60 "C tests of the device" device_tests
part benchmarks 40 "Operations" benchmarks
part story 80 "The memory story" story
part lua 100 "Lua tests" lua_tests
part sanitizer 60 "compute-sanitizer" sanitizer
part policies 40 "Policies from Lua" policies

printf '| all | | %d s |\n' $(($(date +%s) - begin)) >>"$work/rows"
if grep -q '| FAIL' "$work/rows"; then
  write_report "**Something failed.**"
  echo "the report is $report"
  exit 1
fi
if grep -q 'no time left' "$work/rows"; then
  write_report "Nothing failed, but there was no time for everything."
else
  write_report "Nothing failed."
fi
echo "the report is $report"
