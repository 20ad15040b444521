-- Acknowledge outbox entries for one exporter and tell which were acknowledged here for the first time.
--
-- KEYS[1] verdicts      stream
-- KEYS[2] account:all   hash of counts; no TTL
-- ARGV[1] group · ARGV[2..] entry ids
-- Returns 1 or 0 for each entry.
local fresh, total = {}, 0
for place = 2, #ARGV do
  local acknowledged = redis.call('XACK', KEYS[1], ARGV[1], ARGV[place])
  fresh[#fresh + 1] = acknowledged
  total = total + acknowledged
end
if total > 0 then redis.call('HINCRBY', KEYS[2], 'exported:' .. ARGV[1], total) end
return fresh
