-- Verdicts whose trace a receiver does not know yet.
--
-- KEYS[1] receiver:<name>:parked   hash of evaluation id to how often it was parked, a space, and the verdict as JSON; TTL of a day
-- KEYS[2] receiver:<name>:due      sorted set of evaluation ids by the time of the next delivery in ms; TTL of a day

-- @script receiver_park
-- Parks verdicts, each in place of its earlier entry.
--
-- ARGV[..] evaluation id, time in ms, payload, in threes
for place = 1, #ARGV, 3 do
  redis.call('HSET', KEYS[1], ARGV[place], ARGV[place + 2])
  redis.call('ZADD', KEYS[2], ARGV[place + 1], ARGV[place])
end
redis.call('EXPIRE', KEYS[1], 86400)
redis.call('EXPIRE', KEYS[2], 86400)
return 1

-- @script receiver_due
-- Takes verdicts whose time has come; another worker takes them only after the lease.
--
-- ARGV[1] now in ms · ARGV[2] lease in ms · ARGV[3] maximum
-- Returns how many are parked, then evaluation id and payload of each that is taken.
local taken = { redis.call('ZCARD', KEYS[2]) }
for _, name in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', ARGV[1], 'LIMIT', 0, ARGV[3])) do
  local payload = redis.call('HGET', KEYS[1], name)
  if payload then
    redis.call('ZADD', KEYS[2], ARGV[1] + ARGV[2], name)
    taken[#taken + 1] = name
    taken[#taken + 1] = payload
  else
    redis.call('ZREM', KEYS[2], name)
  end
end
return taken

-- @script receiver_unpark
-- Removes verdicts that were delivered, unless they were parked again meanwhile.
--
-- ARGV[..] evaluation id and payload, in pairs
for place = 1, #ARGV, 2 do
  if redis.call('HGET', KEYS[1], ARGV[place]) == ARGV[place + 1] then
    redis.call('HDEL', KEYS[1], ARGV[place])
    redis.call('ZREM', KEYS[2], ARGV[place])
  end
end
return 1
