#!/bin/bash
# Runs tests/sim/workload.lua in simulated worlds, one seed after the other, each with the
# faults whose turn it is, and stops at the first that fails: its last lines say how to see
# it again.
#
#   tests/sim/run.sh [--seeds N] [--first N] [--jobs N] [--keep-going]
#
# N seeds (100) from a first one (1), jobs at once (1). --keep-going: count failures instead.
# RLENGINE names the program (build/rlengine). A seed takes a tenth of a second.
set -u
cd "$(dirname "$0")/../.."
seeds=100 first=1 jobs=1 keep=0
while [ $# -gt 0 ]; do
  case $1 in
    --seeds) seeds=$2; shift 2 ;;
    --first) first=$2; shift 2 ;;
    --jobs) jobs=$2; shift 2 ;;
    --keep-going) keep=1; shift ;;
    *) echo "unknown option $1" >&2; exit 2 ;;
  esac
done
program=${RLENGINE:-build/rlengine}
worlds=("none" "cut=1,from=1" "half_open=2,refuse=1,from=1" "partition=4,from=1" "slow=1"
  "kill=2" "stop=2,from=1" "all=5,from=1")
folder=$(mktemp -d "${TMPDIR:-/tmp}/rlengine-sim-XXXXXX")
trap 'rm -rf "$folder"' EXIT

one() { # seed
  local faults=${worlds[$(($1 % ${#worlds[@]}))]} stops=0
  case $faults in stop* | all*) stops=1 ;; esac
  if ! timeout -k 5 120 "$program" "--sim=$1" "--sim-faults=$faults" tests/sim/workload.lua \
      --stops=$stops >"$folder/$1" 2>&1; then
    tail -n 40 "$folder/$1"
    grep -q "repeat with" "$folder/$1" ||
      echo "sim: seed $1 ended badly; repeat with: rlengine --sim=$1 --sim-faults=$faults" \
        "tests/sim/workload.lua --stops=$stops"
    rm -f "$folder/$1"
    return 1
  fi
  rm -f "$folder/$1"
}

lane() { # which of the jobs
  local seed failed=0
  for ((seed = first + $1; seed < first + seeds; seed += jobs)); do
    one "$seed" && continue
    failed=1
    echo "$seed" >>"$folder/failed"
    [ "$keep" = 1 ] || break
  done
  return "$failed"
}

pids=()
for ((job = 0; job < jobs; job++)); do
  lane "$job" &
  pids+=($!)
done
bad=0
for pid in "${pids[@]}"; do wait "$pid" || bad=1; done
if [ "$bad" = 1 ]; then
  echo "sim: failed seeds:" $(sort -n "$folder/failed")
  exit 1
fi
echo "sim: $seeds seeds from $first on are well"
