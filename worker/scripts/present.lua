-- Say that a worker is there, and how its roles fare; take out those that have said nothing for long.
--
-- KEYS[1] workers   hash, process -> its roles as JSON, behind the time in ms; TTL
-- ARGV[1] process · ARGV[2] its roles: role -> whether it is ready, as JSON · ARGV[3] how long a word is kept, in ms
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
-- A full Redis lets a script go on that has begun with what it never refuses: this is to be done there too.
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('HSET', KEYS[1], ARGV[1], now .. ' ' .. ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
local all = redis.call('HGETALL', KEYS[1])
for place = 1, #all, 2 do
  local at = tonumber(all[place + 1]:match('^%d+'))
  if not at or math.abs(now - at) > tonumber(ARGV[3]) then redis.call('HDEL', KEYS[1], all[place]) end
end
