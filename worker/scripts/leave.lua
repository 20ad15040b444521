-- Take a reader's name out of a consumer group, unless entries are pending there: those are claimed by others first.
--
-- KEYS[1] stream; no TTL
-- ARGV[1] group · ARGV[2] name
-- Returns whether it was taken out.
local consumers = redis.pcall('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])
if consumers.err then return 0 end
for _, consumer in ipairs(consumers) do
  local state = {}
  for place = 1, #consumer, 2 do state[consumer[place]] = consumer[place + 1] end
  if state.name == ARGV[2] then
    if state.pending > 0 then return 0 end
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2])
    return 1
  end
end
return 0
