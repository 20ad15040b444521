-- @include guard
-- Worker heartbeats: readiness per role, and circuits of judge models. Both hashes are pruned at each call.

-- @script present
-- Writes the heartbeat of a worker, and removes expired ones.
--
-- KEYS[1] workers   hash, process -> time in ms and its roles as JSON; TTL ARGV[3]
-- ARGV[1] process · ARGV[2] its roles: role -> whether it is ready, as JSON · ARGV[3] lifetime of a heartbeat in ms
local refused = guard({
  -- The first command needs no memory, so the script also runs on a full Redis.
  {KEYS[1], 'hash', 'HDEL', 'HSET', 'PEXPIRE', 'HGETALL'},
})
if refused then return refused end
local now = now_ms()
redis.call('HSET', KEYS[1], ARGV[1], now .. ' ' .. ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
local all = redis.call('HGETALL', KEYS[1])
for place = 1, #all, 2 do
  local at = tonumber(all[place + 1]:match('^%d+'))
  if not at or math.abs(now - at) > tonumber(ARGV[3]) then redis.call('HDEL', KEYS[1], all[place]) end
end

-- @script circuits
-- Writes the state of a worker's circuits, and returns that of all workers.
--
-- KEYS[1] circuits   hash, process -> time in ms and circuits as JSON; no TTL, expired fields are removed here
-- ARGV[1] process, '' to read only · ARGV[2] its circuits: judge model -> seconds open, 0 for closed, null for unknown,
--         as JSON · ARGV[3] lifetime of an entry in ms
-- Returns the circuits of each process, as JSON.
local refused = guard({
  -- The first command needs no memory, so the script also runs on a full Redis.
  {KEYS[1], 'hash', 'HDEL', 'HSET', 'HGETALL'},
})
if refused then return refused end
local now = now_ms()
if ARGV[1] ~= '' then redis.call('HSET', KEYS[1], ARGV[1], now .. ' ' .. ARGV[2]) end
local said = {}
local all = redis.call('HGETALL', KEYS[1])
for place = 1, #all, 2 do
  local at, circuits = all[place + 1]:match('^(%d+) (.*)$')
  if math.abs(now - tonumber(at)) > tonumber(ARGV[3]) then
    redis.call('HDEL', KEYS[1], all[place])
  else
    said[#said + 1] = circuits
  end
end
return said
