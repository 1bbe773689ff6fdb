-- What `rl` offers: every name that is promised is there.
local rl = require "rlengine"

describe("rl", function()
  it("loads each of its submodules and functions", function()
    local names = getmetatable(rl).__names()
    assert.is_true(#names > 10)
    for _, name in ipairs(names) do
      assert.is_not_nil(rl[name], name)
    end
  end)

  it("has nothing under other names", function()
    assert.is_nil(rl.no_such_thing)
  end)

  it("leaves no globals behind", function()
    local before = {}
    for key in pairs(_G) do before[key] = true end
    for _, name in ipairs(getmetatable(rl).__names()) do assert(rl[name]) end
    for key in pairs(_G) do assert.is_true(before[key], key) end
  end)
end)
