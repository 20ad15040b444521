-- Renew the leases of one holder; return the ids of those it no longer holds.
--
-- KEYS[1] leases    sorted set, batch id -> due time in ms; no TTL
-- KEYS[2] holders   hash, batch id -> holder; no TTL
-- ARGV[1] length of the lease in ms · ARGV[2..] pairs of batch id and holder
local clock = redis.call('TIME')
local due = clock[1] * 1000 + math.floor(clock[2] / 1000) + ARGV[1]
local lost = {}
-- A full Redis lets a script go on that has begun with what it never refuses: this is to be done there too.
redis.call('HDEL', KEYS[2], '')
for place = 2, #ARGV, 2 do
  if redis.call('HGET', KEYS[2], ARGV[place]) == ARGV[place + 1] then
    redis.call('ZADD', KEYS[1], 'XX', due, ARGV[place])
  else
    lost[#lost + 1] = ARGV[place]
  end
end
return lost
