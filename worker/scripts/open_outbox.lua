-- Make an exporter's group on the outbox, unless there is one; it reads from the oldest verdict that is there. What the
-- outbox cut off before the exporter existed was never lost to it: its books begin with what the outbox holds now.
--
-- KEYS[1] verdicts      stream
-- KEYS[2] account:all   hash of counts; no TTL
-- ARGV[1] group
local made = redis.pcall('XGROUP', 'CREATE', KEYS[1], ARGV[1], '0', 'MKSTREAM')
if made.err then
  if string.find(made.err, 'BUSYGROUP', 1, true) then return 0 end
  return made
end

local function number_of(field)
  return tonumber(redis.call('HGET', KEYS[2], field) or 0)
end

local seen = number_of('exported:' .. ARGV[1]) + number_of('outbox_cut_off:' .. ARGV[1])
redis.call('HSET', KEYS[2], 'outbox_drift:' .. ARGV[1], redis.call('XLEN', KEYS[1]) + seen - number_of('outbox'))
return 1
