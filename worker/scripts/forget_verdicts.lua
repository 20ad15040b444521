-- Erase entries of the outbox. For an exporter that has not read one yet it counts as cut off, but as no loss that
-- workers would tell of; one that has it in its hands sends it, and acknowledges it as usual.
--
-- KEYS[1] verdicts      stream, one group per exporter
-- KEYS[2] account:all   hash of counts; no TTL
-- ARGV[1..] entry ids
-- Returns how many were there.
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
local delivered = {}
for _, group in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
  local state = {}
  for place = 1, #group, 2 do state[group[place]] = group[place + 1] end
  delivered[state['name']] = state['last-delivered-id']
end

local erased = 0
for _, id in ipairs(ARGV) do
  if #redis.call('XRANGE', KEYS[1], id, id) == 1 then
    for group, last in pairs(delivered) do
      if #redis.call('XRANGE', KEYS[1], '(' .. last, id, 'COUNT', 1) > 0 then
        redis.call('HINCRBY', KEYS[2], 'outbox_cut_off:' .. group, 1)
        redis.call('HINCRBY', KEYS[2], 'told:outbox_cut_off:' .. group, 1)
      end
    end
    erased = erased + redis.call('XDEL', KEYS[1], id)
  end
end
return erased
