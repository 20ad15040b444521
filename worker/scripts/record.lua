-- Finish evaluations: each is once in the ledger, and only then once in the outbox and in the books. One that was
-- given up, but whose verdict came after all, is a dead letter no more.
--
-- KEYS[1] verdicts         stream, one group per exporter; capped by ARGV[1]
-- KEYS[2] account:<day>    hash of counts; TTL set by ingest
-- KEYS[3] account:all      hash of counts; no TTL
-- KEYS[4] dead             hash, evaluation id -> letter as JSON; no TTL
-- KEYS[5] dead:due         sorted set, evaluation id -> time given up in ms; no TTL
-- KEYS[6] dead:retries     hash, evaluation id -> times taken up by itself, batch of its retry; no TTL
-- KEYS[7..] ledger:<id>    string, the outcome, or what is kept of the verdict as JSON; TTL ARGV[2]
-- ARGV[1] cap of the outbox in entries · ARGV[2] TTL of the ledger in s
-- ARGV[3..] per ledger key: evaluation id, verdict as JSON, outcome, reason or '', what the ledger keeps or ''
-- Before it stand shared/counts.lua and letters.lua.
-- Returns 1 for each evaluation that was new, else 0.
local fresh = {}

for place = 7, #KEYS do
  local first = 3 + (place - 7) * 5
  local id, verdict, outcome, reason, kept = unpack(ARGV, first, first + 4)
  if redis.call('SET', KEYS[place], kept ~= '' and kept or outcome, 'NX', 'EX', ARGV[2]) then
    redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[1], '*', 'v', '1', 'j', verdict)
    take_out(KEYS[4], KEYS[5], KEYS[6], id)
    count(outcome, 1)
    if reason ~= '' then count(outcome .. ':' .. reason, 1) end
    count('outbox', 1)
    fresh[#fresh + 1] = 1
  else
    fresh[#fresh + 1] = 0
  end
end
write_books(KEYS[2], KEYS[3])
return fresh
