-- Fill the stream of traces as a producer does, only faster: the traces differ by their ids alone.
--
-- KEYS[1]  {prefix}:traces                 stream, no TTL
-- KEYS[2]  {prefix}:producer:{producer}    hash, no TTL; its fields `sent` and `service` as append.lua keeps them
--
-- ARGV[1]  producer
-- ARGV[2]  number of the first trace
-- ARGV[3]  how many
-- ARGV[4…] the JSON of a trace, cut wherever 16 digits of an id belong
local first, count = tonumber(ARGV[2]), tonumber(ARGV[3])
local parts = {unpack(ARGV, 4)}
for number = first, first + count - 1 do
  local payload = table.concat(parts, string.format('%016x', number))
  redis.call('XADD', KEYS[1], '*', 'v', '1', 't', payload, 'p', ARGV[1])
end
redis.call('HSET', KEYS[2], 'service', 'bench')
redis.call('HINCRBY', KEYS[2], 'sent', count)
