-- Append one numbered batch of a producer to the stream of traces. Sending a batch again changes nothing.
--
-- KEYS[1]  {prefix}:traces                 stream, no TTL: capped by count here, by age and bytes by the worker
-- KEYS[2]  {prefix}:producer:{producer}    hash, TTL ARGV[4] renewed by every batch; its fields:
--              batch     number of the last batch appended
--              service   service of the producer
--              sent      traces (kind t) of this producer that were appended, including lost ones
--              lost      those of them that Redis confirmed and no longer has: it was flushed, or restored from older
--                        data
--              trimmed   entries of any producer that the cap removed while this producer appended
-- KEYS[3]  {prefix}:caps                   hash, no TTL, written by the worker; its field:
--              max_stream  cap of the stream in entries, in place of ARGV[3]
-- KEYS[4]  {prefix}:producers              sorted set, producer -> time of its last batch in ms; no TTL: the worker
--                                          removes lost producers
--
-- ARGV[1]  number of the batch: 1, 2, 3 …
-- ARGV[2]  producer
-- ARGV[3]  approximate cap of the stream in entries, until a worker has set one
-- ARGV[4]  TTL of the hash in seconds
-- ARGV[5]  service
-- ARGV[6]  traces of earlier batches that Redis confirmed
-- ARGV[7]  kinds of the entries, one letter each: t, f or r
-- ARGV[8…] their payloads
--
-- Returns 1 if the batch was appended, 0 if it had been before.
--
-- Everything that can fail is checked before the first change, because Redis does not undo a script that fails: a key of
-- a wrong type, a count that is no number, a missing permission or a full memory refuses the whole batch.

local traces, producer, producers = KEYS[1], KEYS[2], KEYS[4]
local number = tonumber(ARGV[1])

if tonumber(redis.call('HGET', producer, 'batch') or 0) >= number then
  return 0
end

-- The worker's cap first: otherwise one service with an old or small cap would trim the traces of all.
local cap = tonumber(redis.pcall('HGET', KEYS[3], 'max_stream'))
if not cap or cap < 1 then
  cap = tonumber(ARGV[3])
end

redis.call('ZCARD', producers)

-- Commands with invalid arguments, which change nothing: Redis checks permissions and memory before arguments.
for _, write in ipairs({
  {'XADD', traces, 'x', '', ''}, {'XTRIM', traces, 'MAXLEN', 'x'}, {'HSET', producer, '', '', ''},
  {'HINCRBY', producer, '', 'x'}, {'EXPIRE', producer, 'x'}, {'ZADD', producers, 'x', ''},
}) do
  local said = redis.pcall(unpack(write)).err
  -- Redis 6.2 puts the line of the script before the code, and the driver knows an error by its code.
  local code = said:match('OOM.*') or said:match('READONLY.*')
  if code then return redis.error_reply(code) end
  if said:find('NOPERM', 1, true) or said:find("can't run this", 1, true) or said:find("can't access", 1, true) then
    return redis.error_reply('NOPERM the user may not run ' .. write[1] .. ' on ' .. write[2] .. '; allow it with ACL SETUSER')
  end
end
for _, count in ipairs(redis.call('HMGET', producer, 'sent', 'lost', 'trimmed')) do
  if count and not (count:match('^-?%d+$') and math.abs(tonumber(count)) < 2 ^ 62) then
    return redis.error_reply('ERR a count in ' .. producer .. ' is no whole number below 2^62; correct it with HSET')
  end
end

local before = redis.call('XLEN', traces)
local kinds = ARGV[7]
local added, sent = #kinds, 0
for i = 1, added do
  local kind = kinds:sub(i, i)
  redis.call('XADD', traces, '*', 'v', '1', kind, ARGV[7 + i], 'p', ARGV[2])
  if kind == 't' then
    sent = sent + 1
  end
end
redis.call('XTRIM', traces, 'MAXLEN', '~', cap)

-- Redis cannot have more traces than it confirmed; if it has fewer, the difference is lost.
local lost = math.max(0, tonumber(ARGV[6]) - tonumber(redis.call('HGET', producer, 'sent') or 0))
redis.call('HSET', producer, 'batch', ARGV[1], 'service', ARGV[5])
redis.call('HINCRBY', producer, 'sent', sent + lost)
if lost > 0 then redis.call('HINCRBY', producer, 'lost', lost) end
redis.call('HINCRBY', producer, 'trimmed', before + added - redis.call('XLEN', traces))
redis.call('EXPIRE', producer, ARGV[4])
local clock = redis.call('TIME')
redis.call('ZADD', producers, clock[1] * 1000 + math.floor(clock[2] / 1000), ARGV[2])
return 1
