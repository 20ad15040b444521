-- Find batches that are due: nobody took them, their holder is gone, or their parking is over. Nobody holds them
-- from now on, and they are not found again before another wait is over.
--
-- KEYS[1] leases    sorted set, batch id -> due time in ms; no TTL
-- KEYS[2] holders   hash, batch id -> holder or 'parked'; no TTL
-- ARGV[1] how many at most · ARGV[2] the next wait in ms
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, ARGV[1])
for _, batch in ipairs(due) do
  redis.call('ZADD', KEYS[1], now + ARGV[2], batch)
  redis.call('HDEL', KEYS[2], batch)
end
return due
