#!/usr/bin/env bash
# Installs the Debian packages that building and testing need, where they are missing.
#   tests/support/packages.sh [LOG]
# Asks the network only when something is missing. Exit code 1: something still is, and the
# last line names it. Where there is no dpkg, CMake names what it does not find.
set -u
log=${1:-/dev/null}
packages="gcc g++ cmake ninja-build pkg-config libluajit-5.1-dev libevent-dev libssl-dev libedit-dev
  luajit lua-busted lua-posix lua-cjson lua-check libcmocka-dev procps openssl
  lua5.1 liblua5.1-0-dev lua5.4 liblua5.4-dev luarocks make"
command -v dpkg-query >/dev/null || exit 0
missing_ones() {
  for package in $packages; do
    dpkg-query -W -f='${Status}\n' "$package" 2>/dev/null | grep -q 'ok installed' ||
      printf ' %s' "$package"
  done
}
missing=$(missing_ones)
[ -n "$missing" ] || exit 0
echo "installing what is missing:$missing"
as_root=
[ "$(id -u)" -eq 0 ] || as_root=sudo
export DEBIAN_FRONTEND=noninteractive
# shellcheck disable=SC2086
{ timeout 120 $as_root apt-get update -qq &&
  timeout 300 $as_root apt-get install -y -qq --no-install-recommends $missing; } >"$log" 2>&1 && exit 0
tail -n 5 "$log"
echo "not installed:$(missing_ones)"
exit 1
