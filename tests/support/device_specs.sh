#!/usr/bin/env bash
# The specs whose subjects are computed on a device, one a line, with the most telling first: those
# to run again with RLENGINE_TEST_DEVICE.
set -u
cd "$(dirname "$0")/../.." || exit 1
ls tests/ops/*_spec.lua tests/unit/*/*_spec.lua
ls tests/integration/{experiment,comm,rpc_batch,rpc_batch_rows,rpc_calls,rpc_large,rpc_refs,rpc_weights,rpc_workers,env,safetensors}_spec.lua
