-- Verdicts whose trace a receiver does not know yet.
--
-- They need no guard: a run that fails half-way leaves an id without a verdict, which receiver_due removes, or a verdict
-- without an id, which its outbox entry parks again, or which expires. Due times are by the caller's clock: a delay is at least a
-- minute, far above the difference between the clocks of workers.
--
-- KEYS[1] receiver:<name>:parked   hash of evaluation id to how often it was parked, a space, and the verdict as JSON; TTL of a week
-- KEYS[2] receiver:<name>:due      sorted set of evaluation ids by the time of the next delivery in ms; TTL of a week

-- @script receiver_park
-- Parks verdicts, each in place of its earlier entry. One that was parked before and is gone was erased: it stays away.
--
-- ARGV[1] the most verdicts that are parked · ARGV[..] evaluation id, time in ms, payload, in threes
-- Returns how many were refused for lack of room.
local refused = 0
for index = 2, #ARGV, 3 do
  local is_parked = redis.call('HEXISTS', KEYS[1], ARGV[index]) == 1
  local is_first = string.sub(ARGV[index + 2], 1, 2) == '1 '
  if is_first and not is_parked and redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[1]) then
    refused = refused + 1
  elseif is_first or is_parked then
    redis.call('HSET', KEYS[1], ARGV[index], ARGV[index + 2])
    redis.call('ZADD', KEYS[2], ARGV[index + 1], ARGV[index])
  end
end
redis.call('EXPIRE', KEYS[1], 604800)
redis.call('EXPIRE', KEYS[2], 604800)
return refused

-- @script receiver_due
-- Takes verdicts whose time has come; another worker takes them only after the lease.
--
-- ARGV[1] now in ms · ARGV[2] lease in ms · ARGV[3] maximum
-- Returns how many are parked, then evaluation id and payload of each that is taken.
local taken = { redis.call('ZCARD', KEYS[2]) }
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', ARGV[1], 'LIMIT', 0, ARGV[3])) do
  local payload = redis.call('HGET', KEYS[1], id)
  if payload then
    redis.call('ZADD', KEYS[2], ARGV[1] + ARGV[2], id)
    taken[#taken + 1] = id
    taken[#taken + 1] = payload
  else
    redis.call('ZREM', KEYS[2], id)
  end
end
return taken

-- @script receiver_unpark
-- Removes verdicts that were delivered, unless they were parked again meanwhile.
--
-- ARGV[..] evaluation id and payload, in pairs
for index = 1, #ARGV, 2 do
  if redis.call('HGET', KEYS[1], ARGV[index]) == ARGV[index + 1] then
    redis.call('HDEL', KEYS[1], ARGV[index])
    redis.call('ZREM', KEYS[2], ARGV[index])
  end
end
return 1
