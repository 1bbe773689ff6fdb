-- Networks from Lua against a plain C loop of the same arithmetic in the same run.
--
--   luajit tests/bench/nn_lua.lua [--torch python]
--
-- Prints the best of several repetitions: a policy Linear(4,128) - ReLU - Linear(128,2)
-- forward at batch 1 under no_grad; select_action as the CartPole scripts have it, with
-- gradient, dropout, softmax and sampling; forward, backward and Adam at batch 256. The
-- baseline is nn_baseline.c, compiled for this machine; with --torch also PyTorch.

local ffi = require "ffi"
local rl = require "rlengine"
local nn = rl.nn

local here = arg[0]:match("^(.*)/[^/]*$") or "."

local function baseline()
  local library = os.tmpname()
  local command = ("cc -O3 -march=native -mprefer-vector-width=512 -ffast-math -shared -fPIC "
    .. "-o %s %s/nn_baseline.c -lm"):format(library, here)
  if os.execute(command) ~= 0 and os.execute(command) ~= true then
    error("cannot compile the baseline: " .. command)
  end
  ffi.cdef [[
    typedef struct { float f[898]; } net;
    void forward(const net *, const float *x, float *h, float *y, int rows);
    void train(net *, const float *x, const float *gy, float *h, float *y, net *g, net *m,
               net *v, int rows, int step);
  ]]
  local c = ffi.load(library)
  os.remove(library)
  return c
end

local function best(n, fn)
  fn(n)
  local least = math.huge
  for _ = 1, 15 do
    local start = os.clock()
    fn(n)
    least = math.min(least, (os.clock() - start) / n)
  end
  return least
end

local function report(name, seconds, base, limit)
  local line = ("%-34s %9.3f us"):format(name, seconds * 1e6)
  if base then
    line = line .. ("  %8.1f x the C loop (%.3f us)"):format(seconds / base, base * 1e6)
  end
  if limit then line = line .. "   limit " .. limit end
  print(line)
end

rl.manual_seed(1)
local c = baseline()
local function floats(n)
  local a = ffi.new("float[?]", n)
  for i = 0, n - 1 do a[i] = math.random() - 0.5 end
  return a
end
local weights, gradient, m, v = ffi.new("net"), ffi.new("net"), ffi.new("net"), ffi.new("net")
for i = 0, 897 do weights.f[i] = math.random() - 0.5 end
local x, gy = floats(256 * 4), floats(256 * 2)
local h, y = floats(256 * 128), floats(256 * 2)

local c_forward = best(200000, function(n)
  for _ = 1, n do c.forward(weights, x, h, y, 1) end
end)
local step = 0
local c_train = best(2000, function(n)
  for _ = 1, n do
    step = step % 1000 + 1
    c.train(weights, x, gy, h, y, gradient, m, v, 256, step)
  end
end)

local net = nn.Sequential(nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 2))
local one = rl.randn(4)
local lua_forward = best(20000, function(n)
  rl.no_grad(function()
    for _ = 1, n do net(one) end
  end)
end)
report("forward 1, no_grad around a loop", lua_forward, c_forward, "1 us")
report("forward 1, no_grad around each", best(20000, function(n)
  for _ = 1, n do rl.no_grad(net, one) end
end), c_forward)

local Policy = nn.class "Policy"
function Policy:init()
  self.affine1 = nn.Linear(4, 128)
  self.dropout = nn.Dropout(0.6)
  self.affine2 = nn.Linear(128, 2)
end
function Policy:forward(state)
  return self.affine2(self.dropout(self.affine1(state)):relu()):softmax(-1)
end
local policy = Policy()
local device = rl.device "cpu"
local state, saved = rl.tensor{ 0.01, -0.02, 0.03, 0.04 }, {}
local function select_action(observation)
  local dist = rl.distributions.Categorical{ probs = policy(observation:to(device)) }
  local action = dist:sample()
  table.insert(saved, dist:log_prob(action))
  return action:item()
end
report("select_action", best(5000, function(n)
  for _ = 1, n do
    select_action(state)
    if #saved == 200 then saved = {} end -- an episode
  end
end), nil, "5 us")
saved = nil -- luacheck: ignore

local many, target = rl.randn(256, 4), rl.randn(256, 2)
local optimizer = rl.optim.Adam(net:parameters(), { lr = 1e-3 })
report("forward, backward, Adam at 256", best(500, function(n)
  for _ = 1, n do
    optimizer:zero_grad()
    net(many):backward(target)
    optimizer:step()
  end
end), c_train, "2.5 x")

if arg[1] == "--torch" then
  local pipe = assert(io.popen((arg[2] or "python3") .. " " .. here .. "/nn_torch.py"))
  print("PyTorch, one thread:")
  for line in pipe:lines() do
    local name, seconds = line:match("^torch\t(.-)\t([%d.]+)$")
    if name then print(("  %-32s %9.3f us"):format(name, tonumber(seconds) * 1e6)) end
  end
  pipe:close()
end
