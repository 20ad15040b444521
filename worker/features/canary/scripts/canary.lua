-- @script choose_canary
-- @include batch_writer
-- Chooses the evaluations of one judging of the canary, and sets the time of the next one, in one step. It takes effect
-- only while the stored time is the time of the plan, so that a repeated call, or another worker, changes nothing.
--
-- KEYS[1] to KEYS[7], see batch_writer.lua; the TTL of account:<day> is plan.account_ttl_s
-- KEYS[8] canary   hash: due (ms) and the open drifts, see worker/features/canary/canary.py; no TTL
-- KEYS[9..] batch:<id> · ready:<judge model>, named by their index in the plan
-- ARGV[1] the plan, as msgpack
-- Returns the number of evaluations chosen, -1 if it took no effect.
local refused = guard_plan({{KEYS[8], 'hash', 'HGET', 'HSET'}}) or guard_account(KEYS[4], KEYS[5], {'chosen'})
if refused then return refused end
if redis.call('HGET', KEYS[8], 'due') ~= plan.due then return -1 end
-- All checks before the first write.
for _, trace in ipairs(plan.traces) do look_up(trace.evaluations) end
refused = guard_batches()
if refused then return refused end

local chosen = 0
for _, trace in ipairs(plan.traces) do chosen = chosen + choose(trace.evaluations) end
write_batches()
write_account(KEYS[4], KEYS[5])
if next(counts) then redis.call('EXPIRE', KEYS[4], plan.account_ttl_s) end
redis.call('HSET', KEYS[8], 'due', plan.next)
return chosen
