-- Take names of readers out of a consumer group that have nothing pending and were silent for long. In one step, so that
-- nothing becomes pending in between.
--
-- KEYS[1] stream; no TTL
-- ARGV[1] group · ARGV[2] for how long they were silent at least, in ms · ARGV[3] how many at most
-- ARGV[4..] names that stay
-- Returns how many were taken out; 0 where there is no such stream or group.
local keep = {}
for place = 4, #ARGV do keep[ARGV[place]] = true end
local consumers = redis.pcall('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])
if consumers.err then return 0 end
local retired = 0
for _, consumer in ipairs(consumers) do
  local state = {}
  for place = 1, #consumer, 2 do state[consumer[place]] = consumer[place + 1] end
  -- Before 7.2 `idle` is the time since the reader was last given something, from then on since it last asked.
  if state.pending == 0 and state.idle >= tonumber(ARGV[2]) and not keep[state.name] then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], state.name)
    retired = retired + 1
    if retired == tonumber(ARGV[3]) then break end
  end
end
return retired
