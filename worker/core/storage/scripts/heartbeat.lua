-- @include guard
-- Worker heartbeats: readiness per role, and circuits of judge models. Both hashes are pruned at each call.

-- Writes a process's own field, if it has a name, and removes expired fields; returns the values of all others.
local function exchange(key, process, value, lifetime_ms)
  local now, values = now_ms(), {}
  if process ~= '' then redis.call('HSET', key, process, now .. ' ' .. value) end
  for other, stored in pairs(pairs_of(redis.call('HGETALL', key))) do
    local written_ms, text = stored:match('^(%d+) (.*)$')
    if not written_ms or math.abs(now - tonumber(written_ms)) > tonumber(lifetime_ms) then
      redis.call('HDEL', key, other)
    else
      values[#values + 1] = text
    end
  end
  return values
end

-- @script heartbeat
-- Writes the heartbeat of a worker, and removes expired ones.
--
-- KEYS[1] workers   hash, process -> time in ms and its roles as JSON; TTL ARGV[3]
-- ARGV[1] process · ARGV[2] its roles: role -> whether it is ready, as JSON · ARGV[3] lifetime of a heartbeat in ms
local refused = guard({
  -- The first command needs no memory, so the script also runs on a full Redis.
  {KEYS[1], 'hash', 'HDEL', 'HSET', 'PEXPIRE', 'HGETALL'},
})
if refused then return refused end
exchange(KEYS[1], ARGV[1], ARGV[2], ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[3])

-- @script circuits
-- Writes the state of a worker's circuits, and returns the circuits of all workers.
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
return exchange(KEYS[1], ARGV[1], ARGV[2], ARGV[3])
