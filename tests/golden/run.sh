#!/usr/bin/env bash
# A comparison with another implementation, as one TAP test: tests/golden/run.sh SCRIPT.
# Needs Python packages that the engine itself never needs; without them it is skipped
# (exit code 3). $RLENGINE_PYTHON names the Python that has them.
script=$1
python=${RLENGINE_PYTHON:-python3}
if ! command -v "$python" >/dev/null; then
  echo "python3 is not installed"
  exit 3
fi
output=$("$python" "$script" 2>&1)
code=$?
if [ "$code" -eq 2 ]; then
  tail -n 1 <<<"$output"
  exit 3
fi
echo 1..1
[ "$code" -eq 0 ] && echo "ok 1 - $script" || echo "not ok 1 - $script"
sed 's/^/# /' <<<"$output"
exit "$code"
