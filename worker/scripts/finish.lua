-- Remove a batch of which every evaluation is in the ledger or dead; a second call changes nothing.
--
-- KEYS[1] leases                sorted set; no TTL
-- KEYS[2] holders               hash; no TTL
-- KEYS[3] waiting               hash, judge model -> bytes of unfinished batches; no TTL
-- KEYS[4] ready:<judge model>   sorted set; no TTL
-- KEYS[5] batch:<id>            string; no TTL
-- KEYS[6] tries:<id>            hash; TTL set when the batch was put back
-- ARGV[1] batch id · ARGV[2] judge model
local size = redis.call('STRLEN', KEYS[5])
if redis.call('DEL', KEYS[5], KEYS[6]) > 0 and size > 0 then
  redis.call('HINCRBY', KEYS[3], ARGV[2], -size)
end
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('HDEL', KEYS[2], ARGV[1])
redis.call('ZREM', KEYS[4], ARGV[1])
return size
