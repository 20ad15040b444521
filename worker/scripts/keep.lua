-- Keep entries from being taken over that a reader still works on: their idle time begins anew. Those that another
-- reader has claimed meanwhile stay with that one.
--
-- KEYS[1] stream; no TTL
-- ARGV[1] group · ARGV[2] reader · ARGV[3..] entry ids
-- Returns how many are still the reader's.
local ours = {}
for place = 3, #ARGV do
  local id = ARGV[place]
  if #redis.call('XPENDING', KEYS[1], ARGV[1], id, id, 1, ARGV[2]) == 1 then ours[#ours + 1] = id end
end
local kept = #ours
if kept > 0 then
  ours[kept + 1] = 'JUSTID'
  redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, unpack(ours))
end
return kept
