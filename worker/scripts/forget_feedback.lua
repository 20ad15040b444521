-- Erase gathered feedback; a pass that has read it deals with it no more.
--
-- KEYS[1] feedback:due    sorted set, feedback as JSON -> time of its pass in ms; TTL set by ingest
-- KEYS[2] account:<day>   hash of counts; TTL set by ingest
-- KEYS[3] account:all     hash of counts; no TTL
-- ARGV[1..] members
-- Returns how many were there.
local erased = 0
for _, member in ipairs(ARGV) do erased = erased + redis.call('ZREM', KEYS[1], member) end
if erased > 0 then
  for place = 2, 3 do redis.call('HINCRBY', KEYS[place], 'feedback:forgotten', erased) end
end
return erased
