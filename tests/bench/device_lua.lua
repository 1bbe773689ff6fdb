--- device_lua.lua: policies from Lua on a device, each against the same on the CPU in the same
-- run and, with --torch, against PyTorch on the GPU.
--
--   build/rlengine tests/bench/device_lua.lua [--device=cuda] [--torch=python3] [--quick]
--
-- Prints the best of several rounds: forward passes under no_grad by batch size; select_action
-- as a script has it, with gradient, sampling and the action's number; a step of training,
-- forward, backward and Adam. Nothing of a round is left unfinished when its time is taken.
-- --quick runs everything once, with few rows, to see that it runs.

local ffi = require "ffi"
local rl = require "rlengine"
local nn = rl.nn

local args = rl.args {
  device = { "cuda", "what to measure" },
  torch = { "", "a Python that has PyTorch" },
  quick = { false, "run everything once" },
}
local here = arg[0]:match "^(.*)/[^/]*$" or "."

ffi.cdef [[
  struct bench_time { long s, ns; };
  int clock_gettime(int id, struct bench_time *t);
]]
local time = ffi.new "struct bench_time"
local function now()
  ffi.C.clock_gettime(1, time)
  return tonumber(time.s) + tonumber(time.ns) * 1e-9
end

--- Seconds of one of n calls, the last one waited for.
local function best(device, n, fn)
  if args.quick then n = 1 end
  local least = math.huge
  for round = 0, args.quick and 1 or 5 do
    local start = now()
    for _ = 1, n do fn() end
    device:synchronize()
    if round > 0 then least = math.min(least, (now() - start) / n) end
  end
  return least
end

local networks = {
  { "4-128-2", { 4, 128, 2 } },
  { "64-256-256-18", { 64, 256, 256, 18 } },
}

local function network(sizes, device)
  local layers = {}
  for i = 1, #sizes - 1 do
    layers[#layers + 1] = nn.Linear(sizes[i], sizes[i + 1])
    if i < #sizes - 1 then layers[#layers + 1] = nn.Tanh() end
  end
  return nn.Sequential(unpack(layers)):to(device)
end

--- Names in order, and seconds by name.
local function measure(device)
  local order, seconds = {}, {}
  local function row(name, n, fn)
    order[#order + 1] = name
    seconds[name] = best(device, n, fn)
  end
  for _, given in ipairs(networks) do
    local title, sizes = given[1], given[2]
    local net = network(sizes, device)
    local inputs, outputs = sizes[1], sizes[#sizes]
    for _, batch in ipairs(args.quick and { 1, 8 } or { 1, 64, 1024, 8192 }) do
      local x = rl.randn(batch, inputs, { device = device })
      row(("%s forward %d"):format(title, batch), batch > 64 and 20 or 200, function()
        rl.no_grad(net, x)
      end)
    end
    local state, saved = rl.randn(inputs, { device = device }), {}
    row(title .. " select_action", 100, function()
      local policy = rl.distributions.Categorical { logits = net(state) }
      local action = policy:sample()
      saved[#saved + 1] = policy:log_prob(action)
      if #saved == 100 then saved = {} end
      return action:item()
    end)
    saved = {} -- luacheck: ignore
    local optimizer = rl.optim.Adam(net:parameters(), { lr = 1e-3 })
    for _, batch in ipairs(args.quick and { 16 } or { 256, 4096 }) do
      local x = rl.randn(batch, inputs, { device = device })
      local gradient = rl.randn(batch, outputs, { device = device })
      row(("%s train %d"):format(title, batch), 20, function()
        optimizer:zero_grad()
        net(x):backward(gradient)
        optimizer:step()
      end)
    end
  end
  return order, seconds
end

rl.manual_seed(1)
local device = rl.device(args.device)
local order, seconds = measure(device)
local _, cpu = measure(rl.device "cpu")

local torch = {}
if args.torch ~= "" then
  local pipe = assert(io.popen(("%s %s/device_torch.py 2>&1"):format(args.torch, here)))
  for line in pipe:lines() do
    local name, took = line:match "^torch\t(.-)\t([%d.]+)$"
    if name then torch[name] = tonumber(took) elseif line:match "^PyTorch" then print(line) end
  end
  pipe:close()
end

print(("%-30s %12s %22s %22s"):format("", device.name, "the CPU", next(torch) and "PyTorch" or ""))
for _, name in ipairs(order) do
  local line = ("%-30s %9.2f us"):format(name, seconds[name] * 1e6)
  for _, other in ipairs { cpu[name], torch[name] } do
    line = line .. ("  %9.2f us = %5.2f x"):format(other * 1e6, other / seconds[name])
  end
  print(line)
end
print("(a ratio of 2.00 x: the other takes twice the time)")
