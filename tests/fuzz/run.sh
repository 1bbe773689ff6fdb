#!/usr/bin/env bash
# Runs the fuzz targets, two at a time: each from the recorded sessions on, for so many seconds.
#
#   tests/fuzz/run.sh                              30 seconds each
#   tests/fuzz/run.sh --seconds 3600 frames        one of them for an hour
#   tests/fuzz/run.sh --seed 7                     the same choices again (but for when it ends)
#   tests/fuzz/run.sh --repeat FILE frames         an input once more
#   tests/fuzz/run.sh --tap                        as a suite
#
# The build is in build-fuzz, inputs that were worth keeping in build-fuzz/corpus: the next run
# goes on from them. What failed is left in build-fuzz/found, and how to repeat it is printed.
# Exit code 3: clang's libFuzzer is not installed.
set -u
cd "$(dirname "$0")/../.." || exit 1
seconds=30 seed=0 tap=0 repeat='' build=build-fuzz targets=''
while [ $# -gt 0 ]; do
  case $1 in
    --seconds) seconds=$2; shift ;;
    --seed) seed=$2; shift ;;
    --repeat) repeat=$2; shift ;;
    --build) build=$2; shift ;;
    --tap) tap=1 ;;
    -*) sed -n '2,13s/^# \{0,1\}//p' "$0"; exit 2 ;;
    *) targets="$targets $1" ;;
  esac
  shift
done

probe=$(mktemp -d)
trap 'rm -rf "$probe"' EXIT
echo 'int LLVMFuzzerTestOneInput(const char *p, long n) { return p == 0 && n; }' >"$probe/probe.c"
if ! clang -fsanitize=fuzzer,address "$probe/probe.c" -o "$probe/probe" 2>/dev/null; then
  echo "clang's libFuzzer is not installed (apt install clang)"
  exit 3
fi

{
  cmake -S . -B "$build" -G Ninja -DRLE_FUZZ=ON -DRLE_CUDA=OFF -DCMAKE_BUILD_TYPE=Debug \
    "-DCMAKE_C_FLAGS_DEBUG=-O1 -g" -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++ &&
    nice cmake --build "$build" --target fuzz
} >"$build.log" 2>&1 || { tail -n 40 "$build.log"; echo "the fuzz targets were not built"; exit 1; }
rm -f "$build.log"

export UBSAN_OPTIONS=print_stacktrace=1
names=$(cd tests/fuzz && for file in fuzz_*.c; do
  file=${file#fuzz_}
  echo "${file%.c}"
done)
for target in $targets; do
  if ! echo "$names" | grep -qx "$target"; then
    echo "no target \"$target\"; there are:" $names
    exit 2
  fi
done
[ -n "$targets" ] || targets=$names

if [ -n "$repeat" ]; then
  for target in $targets; do "$build/fuzz_$target" "$repeat" || exit 1; done
  exit 0
fi

mkdir -p "$build/found" "$build/corpus"
"$build/record" "$build/seeds" || exit 1
cp -r tests/fuzz/corpus/. "$build/seeds/" 2>/dev/null

# One line a target: "ok name: N inputs, N a second", or what it failed with.
run_one() {
  local target=$1 log=$build/$1.log
  mkdir -p "$build/corpus/$target" "$build/seeds/$target"
  local limit=4096
  case $target in frames) limit=65536 ;; esac
  if "$build/fuzz_$target" -seed="$seed" -max_total_time="$seconds" -timeout=30 -rss_limit_mb=1024 \
    -max_len=$limit -print_final_stats=1 -artifact_prefix="$build/found/$target-" \
    "$build/corpus/$target" "$build/seeds/$target" >"$log" 2>&1; then
    awk -v target="$target" '/stat::number_of_executed_units/ { n = $2 }
      /stat::average_exec_per_sec/ { rate = $2 }
      END { printf "ok - %s: %d inputs, %d a second\n", target, n, rate }' "$log"
  else
    echo "not ok - $target"
    grep -vE '^#[0-9]+' "$log" | tail -n 60 | sed 's/^/#   /'
    input=$(sed -n 's/.*Test unit written to //p' "$log" | tail -n 1)
    [ -n "$input" ] && echo "#   repeat with: tests/fuzz/run.sh --repeat $input $target"
  fi
}
export -f run_one
export build seconds seed
results=$(echo $targets | tr ' ' '\n' | xargs -P 2 -I{} bash -c 'run_one {}')
if [ "$tap" -eq 1 ]; then echo "1..$(echo $targets | wc -w)"; fi
echo "$results"
! echo "$results" | grep -q '^not ok'
