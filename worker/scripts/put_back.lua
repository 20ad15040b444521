-- Give a batch back that is not finished: nobody holds it, and it is due again after a while. Parked batches are not
-- taken before they are due, even if a wake-up for them arrives. Only the holder can put a batch back.
--
-- KEYS[1] leases    sorted set, batch id -> due time in ms; no TTL
-- KEYS[2] holders   hash, batch id -> holder or 'parked'; no TTL
-- ARGV[1] batch id · ARGV[2] holder · ARGV[3] delay in ms · ARGV[4] '1' to park it
if redis.call('HGET', KEYS[2], ARGV[1]) ~= ARGV[2] then return 0 end
local clock = redis.call('TIME')
redis.call('ZADD', KEYS[1], 'XX', clock[1] * 1000 + math.floor(clock[2] / 1000) + ARGV[3], ARGV[1])
if ARGV[4] == '1' then
  redis.call('HSET', KEYS[2], ARGV[1], 'parked')
else
  redis.call('HDEL', KEYS[2], ARGV[1])
end
return 1
