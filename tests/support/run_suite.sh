#!/usr/bin/env bash
# Runs one suite that prints TAP and notes how it went.
#   tests/support/run_suite.sh RESULTS LABEL SECONDS COMMAND...
# Appends "passed failed skipped" to RESULTS/counts and prints one line, with what failed
# beneath it. A suite that crashes, takes longer than SECONDS or says less than it announced
# has failed, whatever it printed. Exit code 3 of a suite means "cannot run here": skipped,
# and its last line is the reason. Always exits with 0: the counts tell.
#
# Suites of several processes and deadlines of their own depend on when the machine lets each of
# them run. One that fails runs once more; what failed the first time is printed all the same, and
# RESULTS/again lists it, so that it is looked into. Others get no second run.
set -u
results=$1 label=$2 limit=$3
shift 3
log=$results/$(printf '%s' "$label" | tr -c 'A-Za-z0-9._-' _).log
start=$(date +%s%N)

# Sets code, passed, failed, skipped and, where the suite as a whole is at fault, why.
run() {
  timeout -k 10 "$limit" "$@" >"$log" 2>&1 </dev/null
  code=$?
  read -r passed failed skipped plan < <(awk '
    /^[[:space:]]*1\.\.[0-9]+/ { sub(/^[[:space:]]*1\.\./, ""); plan += $0 + 0; planned = 1 }
    /^(not )?ok .*# *SKIP/ { skipped++; next }
    /^ok / { passed++ }
    /^not ok / { failed++ }
    END { print passed + 0, failed + 0, skipped + 0, planned ? plan : -1 }' "$log")
  why=
  if [ "$code" -eq 124 ] || [ "$code" -eq 137 ]; then
    why="took longer than $limit s"
  elif [ "$code" -eq 3 ]; then
    return
  elif [ "$plan" -lt 0 ]; then
    why="ended early (exit code $code)"
  elif [ "$plan" -ne $((passed + failed + skipped)) ]; then
    why="announced $plan tests, ran $((passed + failed + skipped))"
  elif [ "$code" -ne 0 ] && [ "$failed" -eq 0 ]; then
    why="exit code $code"
  elif [ $((passed + failed + skipped)) -eq 0 ]; then
    why="has no tests"
  fi
  [ -n "$why" ] && failed=$((failed + 1))
}

what_failed() {
  if [ -n "$why" ]; then
    tail -n 40 "$log" | sed 's/^/     /'
  else
    awk '/^not ok / { show = 1 } /^ok / { show = 0 } show' "$log" | head -80 | sed 's/^/     /'
  fi
}

run "$@"
case ${label#*san/} in
  faults/* | integration/* | sim/* | learning/* | c/test_rpc_* | c/test_process | c/test_restart)
    # Crashes, hangs and what sanitizers report are no matter of timing.
    if [ "$failed" -gt 0 ] && [ -z "$why" ] && ! grep -qE 'Sanitizer|runtime error:' "$log"; then
      cp "$log" "${log%.log}.first.log"
      {
        printf 'once more: %s (%d of %d tests failed)\n' "$label" "$failed" $((passed + failed))
        what_failed | sed 's/^     not ok/     the first time:/'
      } >"$log.line"
      cat "$log.line"
      printf '%s\n' "$label" >>"$results/again"
      run "$@"
    fi
    ;;
esac
took=$(( ($(date +%s%N) - start) / 100000000 ))

if [ "$code" -eq 3 ]; then
  echo "0 0 1" >>"$results/counts"
  printf 'skip %s: %s\n' "$label" "$(tail -n 1 "$log")"
  exit 0
fi

echo "$passed $failed $skipped" >>"$results/counts"
note=
[ "$skipped" -gt 0 ] && note=", $skipped skipped"
{
  if [ "$failed" -eq 0 ]; then
    printf 'ok   %s (%d tests%s, %d.%d s)\n' "$label" "$passed" "$note" $((took / 10)) $((took % 10))
    grep -E '^(not )?ok .*# *SKIP' "$log" | sed -E 's/^(not )?ok [0-9]* ?-? ?/     /' | head -5
  else
    printf 'FAIL %s (%d of %d tests%s, %d.%d s)%s\n' "$label" "$failed" $((passed + failed)) "$note" \
      $((took / 10)) $((took % 10)) "${why:+: $why}"
    what_failed
  fi
} >"$log.line"
cat "$log.line" # in one write: suites run side by side
