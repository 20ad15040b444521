-- Finish evaluations: each is once in the ledger, and only then once in the outbox and in the books.
--
-- KEYS[1] verdicts         stream, one group per exporter; capped by ARGV[1]
-- KEYS[2] account:<day>    hash of counts; TTL set by ingest
-- KEYS[3] account:all      hash of counts; no TTL
-- KEYS[4..] ledger:<id>    string, the outcome; TTL ARGV[2]
-- ARGV[1] cap of the outbox in entries · ARGV[2] TTL of the ledger in s
-- ARGV[3..] per ledger key: verdict as JSON, outcome, reason or ''
-- Returns 1 for each evaluation that was new, else 0.
local fresh, counts = {}, {}

local function count(name)
  counts[name] = (counts[name] or 0) + 1
end

for place = 4, #KEYS do
  local first = 3 + (place - 4) * 3
  if redis.call('SET', KEYS[place], ARGV[first + 1], 'NX', 'EX', ARGV[2]) then
    redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[1], '*', 'v', '1', 'j', ARGV[first])
    count(ARGV[first + 1])
    if ARGV[first + 2] ~= '' then count(ARGV[first + 1] .. ':' .. ARGV[first + 2]) end
    count('outbox')
    fresh[#fresh + 1] = 1
  else
    fresh[#fresh + 1] = 0
  end
end
for name, amount in pairs(counts) do
  redis.call('HINCRBY', KEYS[2], name, amount)
  redis.call('HINCRBY', KEYS[3], name, amount)
end
return fresh
