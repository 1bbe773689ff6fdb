--- fails(fn, ...): what fn raises; that it does not is the test's failure.
return function(fn, ...)
  local ok, err = pcall(fn, ...)
  if ok then error("it did not fail", 2) end
  return err
end
