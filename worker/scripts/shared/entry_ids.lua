-- The order of a stream's entries. It stands before the scripts that compare ids.
local function before(left, right)
  local a, b = {left:match('(%d+)-(%d+)')}, {right:match('(%d+)-(%d+)')}
  a[1], a[2], b[1], b[2] = tonumber(a[1]), tonumber(a[2]), tonumber(b[1]), tonumber(b[2])
  return a[1] < b[1] or (a[1] == b[1] and a[2] < b[2])
end
