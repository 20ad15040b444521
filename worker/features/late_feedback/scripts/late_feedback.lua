-- @script choose_late_feedback
-- @include retained
-- Ends late feedback whose traces were searched: chosen evaluations go into batches, and the feedback is removed, in one
-- step. Only feedback that is still pending takes effect, so that a repeated call, or a concurrent pass of another
-- worker, changes nothing.
--
-- KEYS[8] feedback:due   sorted set, feedback as JSON -> time of its pass in ms; TTL set by ingest
-- Returns the amount of feedback by outcome, and the ids of the batches.
local expected = {'chosen', 'feedback:pulled', 'feedback:not_found', 'feedback:no_rule', 'feedback:already_judged'}
local refused = guard_plan({{KEYS[8], 'zset', 'ZSCORE', 'ZADD', 'ZREM'}}) or guard_account(KEYS[4], KEYS[5], expected)
if refused then return refused end
-- All checks before the first write.
for _, trace in ipairs(plan.traces) do
  trace.is_settled = true
  for _, publication in ipairs(trace.publications) do
    trace.is_settled = trace.is_settled and is_settled(publication.id)
    look_up(publication.evaluations)
  end
end
refused = guard_batches()
if refused then return refused end

for _, trace in ipairs(plan.traces) do
  local gathered = {}
  for _, member in ipairs(trace.members) do
    if redis.call('ZSCORE', KEYS[8], member) then gathered[#gathered + 1] = member end
  end
  if #gathered == 0 then
    -- Another pass has dealt with it.
  elseif not trace.is_settled then
    for _, member in ipairs(gathered) do redis.call('ZADD', KEYS[8], 'XX', now + plan.wait_ms, member) end
  else
    local considered, new = 0, 0
    for _, publication in ipairs(trace.publications) do
      considered = considered + #publication.evaluations
      new = new + choose(publication.evaluations)
    end
    for _, member in ipairs(gathered) do redis.call('ZREM', KEYS[8], member) end
    -- Of several entries about one trace the first counts as `pulled`.
    local first = new > 0 and 1 or 0
    finish_feedback('pulled', first)
    local other_outcome = #trace.publications == 0 and 'not_found' or considered == 0 and 'no_rule' or 'already_judged'
    finish_feedback(other_outcome, #gathered - first)
  end
end

local batch_ids = write_batches()
write_account(KEYS[4], KEYS[5])
if next(counts) then redis.call('EXPIRE', KEYS[4], plan.account_ttl_s) end

return cjson.encode({outcomes = filled(feedback), made = filled(batch_ids)})

-- @script take_feedback
-- @include streams
-- Takes late feedback that another partition hands over because its stream does not have the trace, once.
--
-- KEYS[1] feedback:due     sorted set, feedback as JSON -> time of its pass in ms; TTL set by ingest, else ARGV[3]
-- KEYS[2] feedback:taken   sorted set, name of what was taken -> when, in ms; TTL ARGV[3] in seconds
-- ARGV[1] the feedback · ARGV[2] its name: the partition where it arrived, and its entry there · ARGV[3] a TTL
-- Returns 1 if it was taken now.
local refused = guard({{KEYS[1], 'zset', 'ZADD', 'TTL', 'EXPIRE'}, {KEYS[2], 'zset', 'ZADD', 'EXPIRE', 'ZRANGEBYSCORE', 'ZREM'}})
if refused then return refused end
local now = now_ms()
-- The TTL of the whole set ends only if no feedback comes, so members are removed by their age.
local old = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now - ARGV[3] * 1000, 'LIMIT', 0, 100)
if #old > 0 then redis.call('ZREM', KEYS[2], unpack(old)) end
if redis.call('ZADD', KEYS[2], 'NX', now, ARGV[2]) == 0 then return 0 end
redis.call('EXPIRE', KEYS[2], ARGV[3])
redis.call('ZADD', KEYS[1], now, ARGV[1])
if redis.call('TTL', KEYS[1]) < 0 then redis.call('EXPIRE', KEYS[1], ARGV[3]) end
return 1
