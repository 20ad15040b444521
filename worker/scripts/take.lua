-- Take a batch's lease, or say why not: 'gone' (finished), 'held' (somebody works on it, or it is parked).
-- Whoever already holds it gets it again, so a call whose reply was lost can be repeated.
--
-- KEYS[1] leases       sorted set, batch id -> due time in ms; no TTL
-- KEYS[2] holders      hash, batch id -> holder or 'parked'; no TTL
-- KEYS[3] batch:<id>   string; no TTL
-- ARGV[1] batch id · ARGV[2] holder · ARGV[3] length of the lease in ms
local payload = redis.call('GET', KEYS[3])
if not payload then
  redis.call('ZREM', KEYS[1], ARGV[1])
  redis.call('HDEL', KEYS[2], ARGV[1])
  return {'gone'}
end
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local holder = redis.call('HGET', KEYS[2], ARGV[1])
local due = tonumber(redis.call('ZSCORE', KEYS[1], ARGV[1]) or 0)
if holder and holder ~= ARGV[2] and due > now then return {'held'} end
redis.call('ZADD', KEYS[1], now + ARGV[3], ARGV[1])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
return {'taken', payload}
