-- Collectives as scripts use them: trainers of rl.launch, and workers that were started by hand.
package.path = "tests/support/?.lua;" .. package.path
local rl = require "rlengine"
local core = require "rlengine.core"
local launched = require "launched"
local workers = require "workers"
local rpc, comm = rl.rpc, rl.comm

local function fails(fn, ...)
  local ok, err = pcall(fn, ...)
  assert.is_false(ok, "it did not fail")
  return tostring(err)
end

-- A script whose trainers run `body` with ctx and group, and then say so.
local function trainers(count, body)
  local run = launched.start(([[
    local rl = require "rlengine"
    local comm, rpc = rl.comm, rl.rpc
    local function equal(want, got)
      if want ~= got then error(("%%s, not %%s"):format(tostring(got), tostring(want)), 2) end
    end
    local function same(want, tensor)
      equal(rl.tensor(want, { dtype = tensor.dtype }):eq(tensor):all():item(), true)
    end
    rl.launch {
      trainers = %d, observers_per_trainer = 0,
      trainer = function(ctx)
        local group = comm.group()
        %s
        print "done"
      end,
    }]]):format(count, body))
  local code = run:wait(60)
  local out, err = run:out(), run:err()
  run:remove()
  assert.equal(0, code, out .. err)
  for rank = 0, count - 1 do assert.matches(("agent_%d | done"):format(rank), out, 1, true) end
  assert.equal("", err)
end

describe("rl.comm in rl.launch", function()
  it("knows the other trainers without being told", function()
    trainers(3, [[
      equal(ctx.rank, group.rank)
      equal(3, group.size)
      equal(group, comm.group())
      equal(("Group(rank %d of 3: agent_0, agent_1, agent_2)"):format(ctx.rank), tostring(group))
      local x = rl.tensor { 1, 10 } * (ctx.rank + 1)
      equal(x, group:all_reduce(x))
      same({ 6, 60 }, x)
      same({ 2, 20 }, group:all_reduce(rl.tensor { 1, 10 } * (ctx.rank + 1), { op = "mean" }))
      same({ 1 }, comm.all_reduce(rl.tensor { ctx.rank + 1 }, { op = "min" }))
      same({ 3 }, comm.all_reduce(rl.tensor { ctx.rank + 1 }, { op = "max", name = "largest" }))
      same({ 24 }, group:all_reduce(rl.tensor { ctx.rank + 2 }, { op = "prod" }))
      same({ 3 * ctx.rank == 6 and 6 or ctx.rank + 1 },
        group:reduce(rl.tensor { ctx.rank + 1 }, { to = 2 }))
      same({ 1 }, group:broadcast(rl.tensor { ctx.rank }, { from = 1 }))
      local all = group:all_gather(rl.tensor { { ctx.rank, 7 } })
      equal("f32[3,1,2]", tostring(all):match "f32%b[]")
      same({ { { 0, 7 } }, { { 1, 7 } }, { { 2, 7 } } }, all)
      equal(nil, group:barrier())
      equal(nil, comm.barrier { name = "end", timeout = 20 })
    ]])
  end)

  it("takes lists, views and every dtype", function()
    trainers(2, [[
      local grid = rl.zeros(3, 4)
      local a, b = grid:t()[2], grid[3] -- a column and a row, which meet
      a:fill_(ctx.rank + 1)
      group:all_reduce({ a }, {})
      group:broadcast { b }
      equal(9, grid:sum():item())
      same({ 0, 3, 0, 0 }, grid[3])
      for _, dtype in ipairs { "f32", "f64", "i32", "i64", "u8" } do
        local x = rl.tensor({ 1, 2, 100 + ctx.rank }, { dtype = dtype })
        group:all_reduce(x)
        same({ 2, 4, 201 }, x)
        equal(dtype, x.dtype)
      end
      local flags = rl.tensor({ ctx.rank == 0, true, false }, { dtype = "bool" })
      same({ true, true, false }, group:all_reduce(flags:clone(), { op = "max" }))
      same({ false, true, false }, group:all_reduce(flags, { op = "min" }))
      local list = {}
      for i = 1, 100 do list[i] = rl.full({ i }, ctx.rank) end
      group:all_reduce(list, { name = "many" })
      for i = 1, 100 do equal(i, list[i]:sum():item()) end
      group:all_reduce(rl.zeros(0))
      -- Long enough for parts at both ranks; the same bits as a plain sum.
      rl.manual_seed(7)
      local p, q = rl.randn(700001), rl.randn(700001)
      local mine = (ctx.rank == 0 and p or q):clone()
      group:all_reduce(mine)
      equal(true, mine:eq(p + q):all():item())
    ]])
  end)

  it("sums what two ranks swap, whoever of them is first", function()
    trainers(2, [[
      -- Of every size and kind of memory: short, long, of several pieces; one, a list, a view.
      for i = 1, 60 do
        local n = ({ 4000, 20000, 60000, 300001, 800000 })[i % 5 + 1]
        local a, b = rl.full({ n }, ctx.rank + 1), rl.full({ n, 2 }, 10 * (ctx.rank + 1))
        local column = b:t()[1]
        if i % 3 == 0 and ctx.rank == i % 2 then rpc.sleep(0.002) end
        if i % 4 < 2 then
          group:all_reduce { a, column }
        else
          local sums = { group:all_reduce(a, { async = true }),
            group:all_reduce(column, { async = true }) }
          rpc.wait_all(sums)
        end
        equal(true, a:eq(3):all():item())
        equal(true, column:eq(30):all():item())
        equal(true, b:t()[2]:eq(10 * (ctx.rank + 1)):all():item())
      end
    ]])
  end)

  for ranks = 2, 3 do
    it("is right for whatever " .. ranks .. " ranks do one after the other", function()
      trainers(ranks, [[
        local R, seed = group.size, 7
        local S, mine = R * (R + 1) / 2, ctx.rank + 1
        local function draw(n) -- the same at all ranks
          seed = (seed * 1103515245 + 12345) % 2147483648
          return math.floor(seed / 65536) % n
        end
        local function check(t, value, what)
          if not t:eq(value):all():item() then error(what .. " of " .. t:numel(), 2) end
        end
        local sizes = { 1, 5000, 16384, 16385, 40000, 65537, 270000, 600000 }
        for _ = 1, os.getenv "RLE_FULL" and 1000 or 40 do
          local n, kind, list, root = sizes[draw(#sizes) + 1], draw(6), draw(2), draw(R)
          local late, ms = draw(2 * R), draw(4)
          if ctx.rank == late then rpc.sleep(ms / 1000) end
          local a, b = rl.full({ n }, mine), rl.full({ n, 2 }, 10 * mine):t()[1]
          if kind < 2 then
            group:all_reduce { a, list == 1 and b or nil }
            check(a, S, "sum")
            check(b, list == 1 and 10 * S or 10 * mine, "sum of a column")
          elseif kind == 2 then
            group:reduce(a, { to = root })
            check(a, ctx.rank == root and S or mine, "reduce")
          elseif kind == 3 then
            group:broadcast({ a, list == 1 and b or nil }, { from = root })
            check(a, root + 1, "broadcast")
          elseif kind == 4 then
            local all = group:all_gather(a)
            for r = 1, R do check(all[r], r, "gather") end
          else
            rpc.wait_all { group:all_reduce(a, { async = true }),
              group:all_reduce(b, { async = true, op = "max" }) }
            check(a, S, "sum, while another is open")
            check(b, 10 * R, "largest")
          end
        end
      ]])
    end)
  end

  it("averages gradients, and leaves alone what records them", function()
    trainers(2, [[
      rl.manual_seed(ctx.rank)
      local net = rl.nn.Linear(3, 2)
      rl.no_grad(function() group:broadcast(net:parameters()) end)
      local both = group:all_gather(net.weight)
      equal(false, both.requires_grad)
      same({ true }, both[1]:eq(both[2]):all():reshape(1))
      net(rl.ones(1, 3) * (ctx.rank + 1)):sum():backward()
      if ctx.rank == 1 then net.bias.grad = nil end
      group:average_gradients(net:parameters())
      same({ 1.5, 1.5, 1.5 }, net.weight.grad[1])
      same({ 0.5, 0.5 }, net.bias.grad)
      local ok, err = pcall(group.all_reduce, group, net.weight)
      equal("FAILED_PRECONDITION: allreduce changes its tensors in place, and tensor 1 records "
        .. "gradients: call it inside rl.no_grad, or with what is in its .grad or behind its "
        .. ":detach()", tostring(err))
      group:barrier()
    ]])
  end)

  it("gives futures, and serves calls while it waits", function()
    trainers(2, [[
      local other, served = ctx.rank == 0 and "agent_1" or "agent_0", 0
      rpc.register("sum", function(x) -- a handler waits in a collective
        served = served + 1
        return group:all_reduce(rl.tensor { x }, { name = "in a handler" })[1]:item()
      end)
      group:barrier()
      local f = group:all_reduce(rl.tensor { 1 }, { async = true })
      local g = group:all_gather(rl.tensor { ctx.rank }, { async = true })
      same({ { 0 }, { 1 } }, g:wait())
      same({ 2 }, f:wait())
      equal(true, f:done())
      local sum = rpc.rpc_async(other, "sum", ctx.rank + 1)
      equal(3, (sum:wait()))
      equal(1, served)
      -- Who waits in a collective answers the other, who comes to it only then.
      rpc.register("where", function() return "there" end)
      group:barrier()
      if ctx.rank == 1 then
        for _ = 1, 20 do equal("there", (rpc.rpc_sync(other, "where"))) end
      end
      group:barrier { name = "last" }
    ]])
  end)

  it("moves its bytes while a worker computes", function()
    trainers(2, [[
      local time = require "posix.time"
      local function now()
        local t = time.clock_gettime(1)
        return t.tv_sec + t.tv_nsec * 1e-9
      end
      for _, n in ipairs { 1, 300000 } do
        group:barrier()
        local x = rl.full({ n }, ctx.rank + 1)
        local future, waited
        if ctx.rank == 0 then
          future = group:all_reduce(x, { async = true })
          local ends = now() + 2
          while now() < ends do end
          rpc.rpc_sync("agent_1", "computed")
          future:wait()
        else
          local computed
          rpc.register("computed", function() computed = true end)
          group:all_reduce(x)
          equal(nil, computed) -- it was done before the other one had come to its end
          while not computed do rpc.sleep(0.005) end
        end
        equal(3, x[n]:item())
      end
    ]])
  end)

  it("says at every rank what is not the same everywhere, and who is missing", function()
    trainers(2, [[
      local x = rl.zeros(2 + ctx.rank)
      local ok, err = pcall(group.all_reduce, group, x, { name = "grads" })
      equal("INVALID_ARGUMENT", err.code)
      equal('collective 1 of the group is not the same everywhere: rank 0 (worker "agent_0") '
        .. 'calls allreduce "grads" sum of f32[2], rank 1 (worker "agent_1") calls allreduce '
        .. '"grads" sum of f32[3]', err.message)
      if ctx.rank == 0 then
        ok, err = pcall(group.barrier, group, { timeout = 0.2 })
        equal("DEADLINE_EXCEEDED: barrier number 2 not finished after 0.2 s (rank 1 silent?)",
          tostring(err))
        rpc.rpc_sync("agent_1", "go")
      else
        local go
        rpc.register("go", function() go = true end)
        while not go do rpc.sleep(0.002) end
        ok, err = pcall(group.barrier, group)
        equal("DEADLINE_EXCEEDED: barrier number 2 not finished after 0.2 s (rank 1 silent?)",
          tostring(err))
      end
      local lasting = comm.group { name = "a group more", timeout = 30 }
      lasting:barrier()
      lasting:close()
      lasting:close()
      group:barrier()
    ]])
  end)

  it("makes groups again: of a name that was closed, and after a failure at one rank", function()
    trainers(3, [[
      local names = group.names
      for i = 1, 30 do
        local n = i % 2 == 0 and 1000000 or 1
        local again = comm.group { names[1], names[2], names[3], name = "again", timeout = 20 }
        local ok, err = pcall(comm.group, { names[3], names[2], names[1], name = "again" })
        equal("ALREADY_EXISTS", not ok and err.code)
        local sum = again:all_reduce(rl.zeros(n) + (ctx.rank + 1), { async = true })
        -- The others have the result meanwhile, and go on to the next group.
        if ctx.rank == i % 3 then
          local till = os.clock() + 0.02
          while os.clock() < till do local _ = i end
        end
        equal(6, sum:wait()[n]:item())
        again:close()
      end
      local core = require "rlengine.core"
      if ctx.rank == 1 then
        local make = core.comm.group
        core.comm.group = function() error "no memory" end
        equal(false, (pcall(comm.group, { names[1], names[2], names[3] })))
        core.comm.group = make
      end
      comm.group({ names[1], names[2], names[3], timeout = 20 }):barrier()
    ]])
  end)

  it("ends with the run when a trainer dies", function()
    local run = launched.start [[
      local rl = require "rlengine"
      rl.launch {
        trainers = 2, observers_per_trainer = 0,
        trainer = function(ctx)
          local group = rl.comm.group()
          group:barrier()
          local signal, unistd = require "posix.signal", require "posix.unistd"
          if ctx.rank == 1 then signal.kill(unistd.getpid(), signal.SIGKILL) end
          print(pcall(group.barrier, group))
        end,
      }]]
    assert.not_equal(0, run:wait(30))
    assert.matches('trainer "agent_1" died %(signal 9%)', run:err())
    run:remove()
  end)
end)

describe("rl.comm", function()
  local MEMBER = [[
    rpc.register("sum", function(x, address)
      local group = rl.comm.group { "test", "b", addresses = { test = address } }
      return group:all_reduce(rl.tensor { x }):item(), group.rank
    end)
  ]]

  -- The first time some things are allocated for good; the second time nothing may be left.
  local function twice(fn)
    return function()
      fn { blocks = true }
      fn()
    end
  end

  it("works between workers that were started by hand", twice(function(allow)
    local team = workers.group()
    team:start("b", MEMBER)
    rpc.wait_for { "b" }
    local theirs = rpc.rpc_async("b", "sum", 4, team.address)
    local group = comm.group { "test", "b" }
    local x = rl.tensor { 3 }
    assert.equal(7, group:all_reduce(x, { timeout = 20 }):item())
    x:free()
    local sum, rank = theirs:wait()
    assert.equal(7, sum)
    assert.equal(1, rank)
    team:finish(allow)
  end))

  it("works on devices, through the host", function()
    local team = workers.group()
    local alone = comm.group { "test" }
    local device = rl.device_count "emu" > 0 and "emu" or "cpu"
    local x = rl.tensor({ 1, 2, 3 }, { device = device })
    local before = rl.memory.allocated "cpu"
    alone:all_reduce(x)
    assert.equal(before, rl.memory.allocated "cpu") -- nothing is kept until the next one
    assert.equal(6, x:sum():item())
    assert.equal(device, alone:all_gather(x).device.type)
    x:free()
    team:finish { blocks = true } -- the device stays open
  end)

  it("refuses what it cannot do, with the reason", twice(function(allow)
    assert.matches("call rpc.init first", fails(comm.group, { "a" }))
    local team = workers.group()
    assert.matches("only a trainer of rl.launch has a group without them", fails(comm.group))
    assert.matches('this worker, "test", is not in the group', fails(comm.group, { "a", "b" }))
    assert.matches('worker "test" is in the group twice', fails(comm.group, { "test", "test" }))
    assert.matches('unknown option "nme"; did you mean "name"?', fails(comm.group, { "test",
      nme = "x" }), 1, true)
    local group = comm.group { "test", timeout = 5 }
    local x = rl.tensor { 1, 2 }
    assert.matches('all_reduce: unknown option "opp"; did you mean "op"?', fails(group.all_reduce,
      group, x, { opp = "sum" }), 1, true)
    assert.matches('unknown operation "avg"', fails(group.all_reduce, group, x, { op = "avg" }))
    assert.matches("wants a tensor, or a list of tensors, got number", fails(group.all_reduce,
      group, 1))
    assert.matches("there is no mean of i64; take the sum", fails(group.all_reduce, group,
      rl.tensor({ 1 }, { dtype = "i64" }), { op = "mean" }))
    assert.matches("one collective is of one dtype", fails(group.broadcast, group,
      { x, rl.tensor({ 1 }, { dtype = "i64" }) }))
    assert.matches("there is no rank 1 in a group of 1", fails(group.broadcast, group, x,
      { from = 1 }))
    assert.matches("share their memory", fails(group.all_reduce, group, rl.zeros(1):expand(4)))
    assert.matches("a rank is a whole number from 0", fails(group.broadcast, group, x,
      { from = 1e20 }))
    assert.matches("RESOURCE_EXHAUSTED", fails(group.all_gather, group,
      rl.zeros(1):expand(2 ^ 30, 2 ^ 30, 2)))
    assert.matches("timeout must be a number of seconds > 0", fails(group.barrier, group,
      { timeout = 0 }))
    group:close()
    assert.matches("this group was closed", fails(group.barrier, group))
    local before = comm.group { "test" }
    assert.equal(0, core.comm.works())
    x:free()
    team:finish(allow)
    before:close() -- its worker is gone: nothing to do
    assert.matches("call rpc.init first", fails(before.barrier, before))
  end))
end)
