-- Take dead letters out for good: forgotten, dropped, or cut off by the caps. The ledger remembers that they have
-- ended, so that no retry under way, and no batch that still holds one, makes a verdict of it.
--
-- KEYS[1] account:<day>    hash of counts; TTL set by ingest
-- KEYS[2] account:all      hash of counts; no TTL
-- KEYS[3] dead             hash, evaluation id -> letter as JSON; no TTL
-- KEYS[4] dead:due         sorted set, evaluation id -> time given up in ms; no TTL
-- KEYS[5] dead:retries     hash, evaluation id -> times taken up by itself, batch of its retry; no TTL
-- KEYS[6..] ledger:<id>    string, 'removed'; TTL ARGV[1]
-- ARGV[1] TTL of the ledger in s · ARGV[2] only those given up at this time or before, in ms, or '+inf'
-- ARGV[3..] per ledger key the evaluation id
-- Before it stand shared/counts.lua and letters.lua.
-- Returns 1 for each that was there, else 0.
local removed = {}

local function is_wanted(id)
  local due = redis.call('ZSCORE', KEYS[4], id)
  return ARGV[2] == '+inf' or (due and tonumber(due) <= tonumber(ARGV[2]))
end

for place = 6, #KEYS do
  local id = ARGV[place - 3]
  local is_taken = is_wanted(id) and take_out(KEYS[3], KEYS[4], KEYS[5], id)
  removed[#removed + 1] = is_taken and 1 or 0
  if is_taken then
    redis.call('SET', KEYS[place], 'removed', 'EX', ARGV[1])
    count('removed', 1)
  end
end
write_books(KEYS[1], KEYS[2])
return removed
