-- @include batch_writer streams
-- Chooses evaluations of traces that the stream retains: for late feedback, and for a replay. Both use these keys:
--
-- KEYS[1] traces   stream, group plan.group; no TTL; only read
-- KEYS[2] to KEYS[7], see batch_writer.lua; the TTL of account:<day> is plan.account_ttl_s
-- KEYS[9..] batch:<id> · ready:<judge model>, named by their index in the plan
-- ARGV[1] the plan, as msgpack · ARGV[2..] traces of conversations, named by their index in the plan
local delivered = last_delivered(KEYS[1], plan.group)

-- Whether ingest has finished an entry: delivered and not pending. A trace chosen before ingest decides, and which its
-- rate would have chosen, would be a duplicate there, and would be missing in the quality series.
local function is_settled(id)
  if not delivered or before(delivered, id) then return false end
  return #redis.call('XPENDING', KEYS[1], plan.group, id, id, 1) == 0
end

-- @script replay
-- @include sessions
-- Chooses among retained traces, counts, and advances the position, in one step. It takes effect only at the replay's
-- current position: a repeated call, or another process on the same replay, changes nothing and gets the position.
--
-- KEYS[8] replay:<name>   hash: question, next, counts; TTL plan.ledger_ttl_s
-- KEYS[9] sessions:due · KEYS[10] sessions, see sessions.lua, and session:<id> by index in the plan: that of the replay,
-- and the one that ingest gathers
-- Returns all of replay:<name>; nothing if Redis has forgotten it.
local counters = {'traces', 'not_matching', 'cut_off', 'cut_off_ms', 'not_read', 'chosen', 'already_judged', 'gathered'}
local writes, sessions = {{KEYS[8], 'hash', 'HSET', 'HINCRBY', 'EXPIRE', 'HGETALL'}}, {}
for _, trace in ipairs(plan.traces) do sessions[#sessions + 1] = trace.session end
if sessions[1] then
  for _, write in ipairs({session_writes(KEYS[9], KEYS[10], KEYS[sessions[1].key])}) do writes[#writes + 1] = write end
end
local refused = guard_plan(writes) or guard_counters(KEYS[8], counters)
  or guard_account(KEYS[4], KEYS[5], {'chosen', 'session:gathered', 'session:opened'})
for _, session in ipairs(sessions) do
  refused = refused or guard_session(KEYS[10], KEYS[session.key]) or guard({{KEYS[session.live], 'hash'}})
end
if refused then return refused end
if redis.call('HGET', KEYS[8], 'next') ~= plan.from then return redis.call('HGETALL', KEYS[8]) end

local replay_counts = plan.counts
local function count_in_replay(name, amount)
  replay_counts[name] = (replay_counts[name] or 0) + amount
end

-- The ledger no longer knows which older traces were judged.
local oldest_ms = now - plan.ledger_ttl_s * 1000
local function entry_state(id)
  if tonumber(id:match('^%d+')) < oldest_ms or #redis.call('XRANGE', KEYS[1], id, id) == 0 then return 'cut_off' end
  return is_settled(id) and 'open' or 'not_read'
end

-- All checks before the first write.
for _, trace in ipairs(plan.traces) do
  trace.entry_state = entry_state(trace.id)
  look_up(trace.evaluations)
end
refused = guard_batches()
if refused then return refused end

local counted = {}
local function count_new(evaluations)
  local amount = 0
  for _, evaluation in ipairs(evaluations) do
    if evaluation.state == '' and not counted[evaluation.field] then
      counted[evaluation.field] = true
      amount = amount + 1
    end
  end
  return amount
end

-- Gathers a trace for the replay, unless ingest gathers its conversation for a first judging.
local function gather_trace(session)
  local live = session_state(KEYS[session.live])
  if live.count > 0 and live.generation == 0 then return count_in_replay('not_read', 1) end
  session.text = ARGV[session.text]
  local keys = {due = KEYS[9], all = KEYS[10], session = KEYS[session.key]}
  if plan.dry_run or gather(keys, session, now, plan.sessions) then count_in_replay('gathered', 1) end
end

for _, trace in ipairs(plan.traces) do
  if trace.entry_state == 'open' then
    if trace.session then gather_trace(trace.session) end
    local new = plan.dry_run and count_new(trace.evaluations) or not plan.dry_run and choose(trace.evaluations)
    count_in_replay('chosen', new)
    count_in_replay('already_judged', #trace.evaluations - new)
  else
    count_in_replay(trace.entry_state, 1)
  end
end

write_batches()
write_account(KEYS[4], KEYS[5])
if next(counts) then redis.call('EXPIRE', KEYS[4], plan.account_ttl_s) end

redis.call('HSET', KEYS[8], 'next', plan.next)
for name, amount in pairs(replay_counts) do
  if amount ~= 0 then redis.call('HINCRBY', KEYS[8], name, amount) end
end
redis.call('EXPIRE', KEYS[8], plan.ledger_ttl_s)
return redis.call('HGETALL', KEYS[8])
