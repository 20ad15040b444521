-- Take the leases of the oldest batches of one judge model that are ready.
--
-- KEYS[1] ready:<judge model>   sorted set, batch id -> time of its making in ms; no TTL
-- KEYS[2] leases                sorted set, batch id -> due time in ms; no TTL
-- KEYS[3] holders               hash, batch id -> holder or 'parked'; no TTL
-- ARGV[1] how many at most · ARGV[2] holder · ARGV[3] length of the lease in ms · ARGV[4] only those made before, in ms
-- Returns their ids.
local clock = redis.call('TIME')
local due = clock[1] * 1000 + math.floor(clock[2] / 1000) + ARGV[3]
local taken = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '(' .. ARGV[4], 'LIMIT', 0, ARGV[1])
for _, batch in ipairs(taken) do
  -- First what a full Redis refuses: verdicts could not be written there, so nothing is begun.
  redis.call('ZADD', KEYS[2], due, batch)
  redis.call('HSET', KEYS[3], batch, ARGV[2])
  redis.call('ZREM', KEYS[1], batch)
end
return taken
