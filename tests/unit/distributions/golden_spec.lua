-- Values and gradients against those that PyTorch gave: tests/golden/record_torch.py.

local golden = require "golden"

for _, file in ipairs{ "distributions" } do
  describe("as PyTorch: " .. file, function()
    local families, run = golden.describe("tests/golden/torch_" .. file .. ".txt")
    it("has records", function() assert.is_true(#families > 0) end)
    for _, family in ipairs(families) do
      it(family, function()
        local differences = run(family)
        assert.are.equal("", table.concat(differences, "\n"))
      end)
    end
  end)
end
