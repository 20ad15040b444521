-- Erase entries of the stream. What nobody has dealt with yet is acknowledged here, so that a reader that holds it in
-- its hands chooses nothing of it any more, and counts as cut off; but as no loss that workers would tell of.
--
-- KEYS[1] traces          stream, group ARGV[1]; no TTL
-- KEYS[2] account:<day>   hash of counts; TTL set by ingest
-- KEYS[3] account:all     hash of counts; no TTL
-- ARGV[1] group · ARGV[2..] entry ids
-- Before it stands shared/delivered.lua.
-- Returns how many were there.
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
local delivered = last_delivered(KEYS[1], ARGV[1])

local function is_unread(id)
  return not delivered or #redis.call('XRANGE', KEYS[1], '(' .. delivered, id, 'COUNT', 1) > 0
end

local erased, cut_off = 0, 0
for place = 2, #ARGV do
  local id = ARGV[place]
  if #redis.call('XRANGE', KEYS[1], id, id) == 1 then
    local unread = is_unread(id)
    local pending = redis.call('XACK', KEYS[1], ARGV[1], id)
    redis.call('XDEL', KEYS[1], id)
    erased = erased + 1
    if unread or pending == 1 then cut_off = cut_off + 1 end
  end
end
if erased > 0 then
  -- Redis 6.2 does not count what was added: there the books do, by what is left and what was trimmed.
  for place = 2, 3 do redis.call('HINCRBY', KEYS[place], 'trimmed', erased) end
end
if cut_off > 0 then
  for place = 2, 3 do redis.call('HINCRBY', KEYS[place], 'cut_off', cut_off) end
  redis.call('HINCRBY', KEYS[3], 'told:cut_off', cut_off)
end
return erased
