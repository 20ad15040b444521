-- Remove a batch of which every evaluation is in the ledger or dead; a second call changes nothing.
--
-- KEYS[1] leases       sorted set; no TTL
-- KEYS[2] holders      hash; no TTL
-- KEYS[3] waiting      hash, judge model -> bytes of unfinished batches; no TTL
-- KEYS[4] batch:<id>   string; no TTL
-- ARGV[1] batch id · ARGV[2] judge model
local size = redis.call('STRLEN', KEYS[4])
if redis.call('DEL', KEYS[4]) == 1 then
  redis.call('HINCRBY', KEYS[3], ARGV[2], -size)
end
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('HDEL', KEYS[2], ARGV[1])
return size
