#!/usr/bin/env bash
# From a fresh Debian 12 or Ubuntu to a policy that balances the pole: installs what is
# missing, builds the engine, and trains CartPole with one trainer and two observers.
#
#   scripts/quickstart.sh            options behind it go to scripts/cartpole_reinforce.lua
#
# Nothing is installed outside the package manager; the engine stays in the folder build/.
set -eu
cd "$(dirname "$0")/.."

say() { printf '\n== %s\n' "$*"; }
stop() {
  printf 'quickstart: %s\n' "$*" >&2
  exit 1
}

# package: what it is needed for
needed="
gcc: compiles the engine
libc6-dev: headers of the C library
cmake: configures the build
ninja-build: runs the build
pkg-config: finds the libraries below
libluajit-5.1-dev: LuaJIT, which runs your scripts
libevent-dev: the event loop under remote calls
libssl-dev: OpenSSL, with which processes prove who they are and encrypt what they say
libedit-dev: line editing at the prompt
"

command -v apt-get >/dev/null || stop "this script installs with apt-get, which is not here." \
  "Install the packages that README.md names, then: cmake --preset release && cmake --build build"

say "packages"
missing=
while IFS=: read -r package reason; do
  [ -n "$package" ] || continue
  if ! dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed'; then
    printf '  %-20s%s\n' "$package" "$reason"
    missing="$missing $package"
  fi
done <<<"$needed"

if [ -z "$missing" ]; then
  echo "  all that is needed is here"
else
  as_root=
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || stop "these packages are missing, and installing them needs" \
      "root: run this script as root, or: apt-get install$missing"
    as_root=sudo
  fi
  echo "  installing them ${as_root:+with sudo }..."
  export DEBIAN_FRONTEND=noninteractive
  log=$(mktemp)
  if ! { $as_root apt-get update -qq &&
    $as_root apt-get install -y -qq --no-install-recommends $missing; } >"$log" 2>&1; then
    tail -n 15 "$log" >&2
    stop "apt-get could not install them (all it said: $log)"
  fi
  rm -f "$log"
fi

say "build"
mkdir -p build
if ! { cmake --preset release && cmake --build build --target rlengine -j "$(nproc)"; } \
  >build/quickstart.log 2>&1; then
  grep -E -A 8 'error|FAILED|CMake Error' build/quickstart.log | tail -n 40 >&2
  stop "the build failed (all of it: build/quickstart.log)"
fi
echo "  $(build/rlengine --version) in build/rlengine"

say "train: build/rlengine scripts/cartpole_reinforce.lua --observers=2 $*"
exec build/rlengine scripts/cartpole_reinforce.lua --observers=2 "$@"
