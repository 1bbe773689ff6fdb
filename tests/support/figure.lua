--- figure("F02", "error %d ms after the kill", 3): what a test of a fault has measured, for the
-- table in docs/faults.md. Goes to the file $RLENGINE_FIGURES names, a line each; nowhere
-- without one.
return function(row, text, ...)
  local path = os.getenv "RLENGINE_FIGURES"
  if not path then return end
  local file = assert(io.open(path, "a"))
  file:write(row, "\t", text:format(...), "\n")
  file:close()
end
