--- describe.lua: what a device says of itself, as rows of run.sh's table.
--
--   rlengine tests/gpu/describe.lua DEVICE
--
-- Opens it, computes with it once and multiplies matrices that are large enough for cuBLAS.
local rl = require "rlengine"

local device = rl.device(arg[1])
local p = device:properties()

local function row(name, text, ...) print(("| %s | %s |"):format(name, text:format(...))) end

row("device", "%s: %s, compute capability %s, %.1f GiB, %d multiprocessors, %d KiB shared", device,
  p.name, p.compute_capability or "none", p.memory / 2 ^ 30, p.multiprocessors,
  (p.shared_memory or 0) / 1024)
row("CUDA", "the driver knows %s, the plug-in was built with %s", p.driver or "none",
  p.runtime or "none")

local x = rl.ones(1, 512, { device = device })
local product = x:matmul(rl.ones(512, 512, { device = device }))
if product:sum():item() ~= 512 * 512 then error("1 x 512 is not 512", 0) end
if device.type ~= "cpu" then row("products", "%s", rl.cuda.matmul { device = device }.backend) end

local report = rl.memory.report(device)
row("memory of one process",
  "context %.1f MiB, workspace %.1f MiB, tensors %.1f MiB; unaccounted %d bytes",
  (report.context or 0) / 2 ^ 20, (report.workspace or 0) / 2 ^ 20,
  (report.reserved - (report.workspace or 0)) / 2 ^ 20,
  report.unaccounted or 0)
