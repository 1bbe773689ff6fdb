#!/usr/bin/env bash
# What tests/gpu/run.sh needs on a machine with a GPU that has neither our packages nor a network,
# built here:
#
#   tests/gpu/pack.sh FOLDER [GPUS]      GPUS as RLE_CUDA_ARCHITECTURES, e.g. 90-real
#
# and there, in a copy of this tree with FOLDER in it: tests/gpu/run.sh --build FOLDER. The C
# library there must not be older than the one here. Needs nvcc and the packages of scripts/test.sh.
set -eu
cd "$(dirname "$0")/../.."
folder=${1:?tests/gpu/pack.sh FOLDER [GPUS]} gpus=${2:-}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
build=$folder.build
tests=$(cd tests/c && ls test_device*.c)

# Libraries are found beside the programs, also those that libraries need: hence the old tags.
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DRLE_CUDA=ON \
  -DRLE_CUDA_ARCHITECTURES="$gpus" -DRLE_CUDA_FLAGS=-lineinfo -DCMAKE_BUILD_RPATH_USE_ORIGIN=ON \
  '-DCMAKE_BUILD_RPATH=$ORIGIN/libraries;$ORIGIN/../libraries' \
  -DCMAKE_EXE_LINKER_FLAGS=-Wl,--disable-new-dtags
# shellcheck disable=SC2086
cmake --build "$build" --target rlengine rlengine_cuda rlengine_emu bench_device ${tests//.c/}

rm -rf "$folder"
mkdir -p "$folder"/{lib/rlengine,tests,bench,libraries,lua}
cp "$build/rlengine" "$folder"
cp "$build/bench/bench_device" "$folder/bench"
cp "$build"/lib/rlengine/rlengine_{cuda,emu}.so "$folder/lib/rlengine"
nvcc=$(sed -n 's/^RLE_NVCC:[A-Z]*=//p' "$build/CMakeCache.txt")
arch=${gpus%%[;-]*}
"$nvcc" -std=c++17 -O2 -arch=sm_"${arch:-80}" -shared -Xcompiler=-fPIC -Itests/bench \
  -o "$folder/bench/cuda_baseline.so" tests/bench/cuda_baseline.cu
for test in $tests; do cp "$build/tests/${test%.c}" "$folder/tests"; done
strip -g "$folder/rlengine" "$folder"/{bench,tests,lib/rlengine}/*

# All they load but the C library and the compiler's; the Lua modules of the specs.
ldd "$folder/rlengine" "$folder"/tests/* | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u |
  grep -vE '/(libc|libm|libdl|libpthread|librt|libgcc_s|ld-linux[^/]*)\.so' |
  xargs -I{} cp -L {} "$folder/libraries"
for name in lua cpath; do
  "$folder/rlengine" -e "
    local path = ('$name' == 'lua') and package.path or package.cpath
    for place in path:gmatch '(/[^;]*)/%?%.' do print(place) end"
done | sort -u | while read -r place; do
  [ ! -d "$place" ] || cp -rL "$place/." "$folder/lua"
done
du -sh "$folder"
