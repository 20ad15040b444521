-- Take evaluations out of a batch, whoever holds it: the ledger remembers that they have ended, so the verdict that a
-- worker still makes of one is not written. A batch that holds nothing any more is finished.
--
-- KEYS[1] leases                sorted set, batch id -> due time in ms; no TTL
-- KEYS[2] holders               hash, batch id -> holder or 'parked'; no TTL
-- KEYS[3] waiting               hash, judge model -> bytes of unfinished batches; no TTL
-- KEYS[4] ready:<judge model>   sorted set, batch id -> time of its making in ms; no TTL
-- KEYS[5] batch:<id>            string; no TTL
-- KEYS[6] tries:<id>            hash, evaluation id -> calls so far; TTL set when the batch was put back
-- KEYS[7] account:<day>         hash of counts; TTL set by ingest
-- KEYS[8] account:all           hash of counts; no TTL
-- KEYS[9] dead                  hash, evaluation id -> letter as JSON; no TTL
-- KEYS[10] dead:due             sorted set, evaluation id -> time given up in ms; no TTL
-- KEYS[11] dead:retries         hash, evaluation id -> times taken up by itself, batch of its retry; no TTL
-- KEYS[12..] ledger:<id>        string, 'removed'; TTL ARGV[5]
-- ARGV[1] batch id · ARGV[2] judge model · ARGV[3] SHA-1 of the payload as it was read, in hex
-- ARGV[4] the payload that takes its place, or '' where nothing is left · ARGV[5] TTL of the ledger in s
-- ARGV[6..] per ledger key the evaluation id
-- Before it stand shared/counts.lua and letters.lua.
-- Returns {evaluations that had not ended, letters among them}; -1 instead of the first where the batch has changed.
local old = redis.call('GET', KEYS[5])
if not old then return {0, 0} end
if redis.sha1hex(old) ~= ARGV[3] then return {-1, 0} end

local letters = 0
for place = 12, #KEYS do
  local id = ARGV[place - 6]
  if redis.call('SET', KEYS[place], 'removed', 'NX', 'EX', ARGV[5]) then
    if take_out(KEYS[9], KEYS[10], KEYS[11], id) then letters = letters + 1 end
    count('removed', 1)
  end
  redis.call('HDEL', KEYS[6], id)
end
if ARGV[4] == '' then
  redis.call('DEL', KEYS[5], KEYS[6])
  redis.call('ZREM', KEYS[1], ARGV[1])
  redis.call('HDEL', KEYS[2], ARGV[1])
  redis.call('ZREM', KEYS[4], ARGV[1])
else
  redis.call('SET', KEYS[5], ARGV[4])
end
redis.call('HINCRBY', KEYS[3], ARGV[2], #ARGV[4] - #old)
write_books(KEYS[7], KEYS[8])
return {counts['removed'] or 0, letters}
