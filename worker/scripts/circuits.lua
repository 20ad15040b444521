-- Tell the other workers how a worker's circuits stand, and be told how theirs do.
--
-- KEYS[1] circuits   hash, process -> {at, circuits as JSON}; no TTL, what is old is taken out here
-- ARGV[1] process, '' to be told only · ARGV[2] its circuits: judge model -> seconds open, 0 for closed, null for unknown, as JSON
-- ARGV[3] how long a word counts, in ms
-- Returns what counts.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
-- A full Redis lets a script go on that has begun with what it never refuses: this is to be done there too.
redis.call('HDEL', KEYS[1], ARGV[1])
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
