-- What a script counts for the books, written in the end.
local counts = {}

local function count(name, amount)
  if amount ~= 0 then counts[name] = (counts[name] or 0) + amount end
end

-- Into the books of the day and those since the beginning; what evens out is no entry.
local function write_books(day, all)
  for name, amount in pairs(counts) do
    if amount ~= 0 then
      redis.call('HINCRBY', day, name, amount)
      redis.call('HINCRBY', all, name, amount)
    end
  end
end
