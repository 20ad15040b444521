-- Give evaluations up: each becomes one dead letter, with an outbox entry that tells of it; nothing in the ledger.
--
-- KEYS[1] verdicts         stream; capped by ARGV[1]
-- KEYS[2] account:<day>    hash of counts; TTL set by ingest
-- KEYS[3] account:all      hash of counts; no TTL
-- KEYS[4] dead             hash, evaluation id -> letter as JSON; no TTL
-- KEYS[5] dead:due         sorted set, evaluation id -> time given up in ms; no TTL
-- KEYS[6..] ledger:<id>    string
-- ARGV[1] cap of the outbox in entries · ARGV[2..] per ledger key: evaluation id, letter as JSON, verdict as JSON, reason
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local buried = {}
for place = 6, #KEYS do
  local first = 2 + (place - 6) * 4
  local id = ARGV[first]
  if redis.call('EXISTS', KEYS[place]) == 0 and redis.call('HSETNX', KEYS[4], id, ARGV[first + 1]) == 1 then
    redis.call('ZADD', KEYS[5], now, id)
    redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[1], '*', 'v', '1', 'd', ARGV[first + 2])
    for _, account in ipairs({KEYS[2], KEYS[3]}) do
      redis.call('HINCRBY', account, 'dead', 1)
      redis.call('HINCRBY', account, 'dead:' .. ARGV[first + 3], 1)
      redis.call('HINCRBY', account, 'outbox', 1)
    end
    buried[#buried + 1] = 1
  else
    buried[#buried + 1] = 0
  end
end
return buried
