-- Give a batch back that is not finished: nobody holds it, and it is ready again at once or after a while. Only the
-- holder can put a batch back.
--
-- KEYS[1] leases                sorted set, batch id -> due time in ms; no TTL
-- KEYS[2] holders               hash, batch id -> holder or 'parked'; no TTL
-- KEYS[3] ready:<judge model>   sorted set, batch id -> time of its making in ms; no TTL
-- KEYS[4] tries:<batch id>      hash, evaluation id -> calls so far; TTL ARGV.tries_ttl_s
-- ARGV[1] batch id · ARGV[2] holder · ARGV[3] time of its making in ms · ARGV[4] delay in ms, 0 for none
-- ARGV[5] when a ready batch is looked at again, in ms · ARGV[6] TTL of the tries in s
-- ARGV[7..] pairs of evaluation id and calls of this round
if redis.call('HGET', KEYS[2], ARGV[1]) ~= ARGV[2] then return 0 end
-- A full Redis lets a script go on that has begun with what it never refuses: this is to be done there too.
redis.call('ZREM', KEYS[3], ARGV[1])
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
if tonumber(ARGV[4]) > 0 then
  redis.call('ZADD', KEYS[1], 'XX', now + ARGV[4], ARGV[1])
  redis.call('HSET', KEYS[2], ARGV[1], 'parked')
else
  redis.call('ZADD', KEYS[1], 'XX', now + ARGV[5], ARGV[1])
  redis.call('HDEL', KEYS[2], ARGV[1])
  redis.call('ZADD', KEYS[3], ARGV[3], ARGV[1])
end
for place = 7, #ARGV, 2 do redis.call('HINCRBY', KEYS[4], ARGV[place], ARGV[place + 1]) end
if #ARGV > 6 then redis.call('EXPIRE', KEYS[4], ARGV[6]) end
return 1
