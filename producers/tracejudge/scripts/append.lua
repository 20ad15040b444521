-- Append one numbered batch of a producer to the stream of traces. A batch that comes again changes nothing.
--
-- KEYS[1]  {prefix}:traces                 stream, no TTL: capped by count here, by age and bytes by the worker
-- KEYS[2]  {prefix}:producer:{producer}    hash, TTL ARGV[4] renewed by every batch; its fields:
--              batch     number of the last batch that stands in the stream
--              service   what the producer publishes for
--              sent      traces (kind t) of this producer that were appended
--              trimmed   entries, whoever's, that the cap removed while this producer appended
--
-- ARGV[1]  number of the batch: 1, 2, 3 …
-- ARGV[2]  producer
-- ARGV[3]  cap of the stream in entries, approximate
-- ARGV[4]  TTL of the hash in seconds
-- ARGV[5]  service
-- ARGV[6]  the kinds of the entries, a letter each: t, f or r
-- ARGV[7…] their payloads
--
-- Returns 1 when the batch was appended, 0 when it stood there already.
--
-- The first read and the first write touch both keys before anything has changed, so that a key of a wrong
-- type or a full memory refuses the batch as a whole.

local traces, producer = KEYS[1], KEYS[2]
local number = tonumber(ARGV[1])

if tonumber(redis.call('HGET', producer, 'batch') or 0) >= number then
  return 0
end

local before = redis.call('XLEN', traces)
local kinds = ARGV[6]
local added, sent = #kinds, 0
for i = 1, added do
  local kind = kinds:sub(i, i)
  redis.call('XADD', traces, '*', 'v', '1', kind, ARGV[6 + i], 'p', ARGV[2])
  if kind == 't' then
    sent = sent + 1
  end
end
redis.call('XTRIM', traces, 'MAXLEN', '~', ARGV[3])

redis.call('HSET', producer, 'batch', ARGV[1], 'service', ARGV[5])
redis.call('HINCRBY', producer, 'sent', sent)
redis.call('HINCRBY', producer, 'trimmed', before + added - redis.call('XLEN', traces))
redis.call('EXPIRE', producer, ARGV[4])
return 1
