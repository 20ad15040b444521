-- Take, keep or give back a lease that one worker has at a time. Whoever already has it gets it again, so a call whose
-- reply was lost can be repeated.
--
-- KEYS[1] feedback:pass or dead:reviver   string, the holder; TTL ARGV[2]
-- ARGV[1] holder · ARGV[2] length of the lease in ms, 0 to give it back
-- Returns 1 when the lease is the holder's.
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
if tonumber(ARGV[2]) == 0 then
  redis.call('DEL', KEYS[1])
  return 0
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
