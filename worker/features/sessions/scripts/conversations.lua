-- @script session_choose
-- @include guard accounting batch_writer sessions
-- Chooses the evaluations of conversations that are due, drops the traces of quiet conversations, and sets when they are
-- due next, in one step. It takes effect only for a conversation that has not changed since the caller read it, so that
-- a repeated call, or a call after another worker's, changes nothing.
--
-- KEYS[1] to KEYS[7], see batch_writer.lua; the TTL of account:<day> is plan.account_ttl_s
-- KEYS[8] sessions:due · KEYS[9] sessions
-- KEYS[10..] session:<id>, batch:<id>, ready:<judge model>, named by their index in the plan
-- ARGV[1] the plan, as msgpack
-- Returns a JSON object, see worker/features/sessions/conversations.py.
local expected = {'chosen', 'session:judged', 'session:updated', 'session:dropped', 'session:expired'}
for _, session in ipairs(plan.sessions) do
  for model in pairs(session.shed) do expected[#expected + 1] = 'shed:' .. model end
end
local refused = guard_plan({session_writes(KEYS[8], KEYS[9], KEYS[plan.sessions[1].key])})
  or guard_account(KEYS[4], KEYS[5], expected)
for _, session in ipairs(plan.sessions) do
  refused = refused or guard_session(KEYS[9], KEYS[session.key])
end
if refused then return refused end

-- All checks before the first write.
for _, session in ipairs(plan.sessions) do
  session.state = session_state(KEYS[session.key])
  for _, group in ipairs(session.groups) do look_up(group.evaluations) end
end
refused = guard_batches()
if refused then return refused end

local shed, ended = {}, {}
local function end_session(outcome, amount)
  count('session:' .. outcome, amount)
  ended[outcome] = (ended[outcome] or 0) + amount
end

local function finish_session(session)
  local keys, state = {due = KEYS[8], all = KEYS[9], session = KEYS[session.key]}, session.state
  if redis.call('EXISTS', keys.session) == 0 then
    -- Its TTL has ended, because no worker ran for so long.
    end_session('expired', redis.call('ZREM', keys.due, session.member))
    return
  end
  for _, name in ipairs({'count', 'generation', 'bytes'}) do
    if state[name] ~= session[name] then return end
  end
  if session.is_judged then
    for _, group in ipairs(session.groups) do choose(group.evaluations) end
    for model, amount in pairs(session.shed) do
      count('shed:' .. model, amount)
      shed[model] = (shed[model] or 0) + amount
    end
    end_session(state.generation == 0 and 'judged' or 'updated', 1)
    state.judged, state.generation = state.count, state.generation + 1
    redis.call('HSET', keys.session, 'judged', state.judged, 'generation', state.generation)
  end
  if session.is_dropped then
    if state.generation == 0 then end_session('dropped', 1) end
    drop_traces(keys, session.member, state, plan.ledger_ttl_s)
  else
    redis.call('ZADD', keys.due, now + session.wait_ms, session.member)
    redis.call('EXPIRE', keys.session, plan.ledger_ttl_s)
  end
end
for _, session in ipairs(plan.sessions) do finish_session(session) end
-- If nothing is gathered, the rest of the counter belonged to expired conversations.
if redis.call('ZCARD', KEYS[8]) == 0 then redis.call('HDEL', KEYS[9], 'bytes') end

local batch_ids, waiting = write_batches(), {}
if #batch_ids > 0 then
  for model, bytes in pairs(pairs_of(redis.call('HGETALL', KEYS[3]))) do waiting[model] = tonumber(bytes) end
end
write_account(KEYS[4], KEYS[5])
if next(counts) then redis.call('EXPIRE', KEYS[4], plan.account_ttl_s) end
return cjson.encode({made = filled(batch_ids), ended = filled(ended), waiting = filled(waiting), shed = filled(shed)})

-- @script forget_session
-- @include sessions
-- Erases traces of a conversation, and the whole conversation if none is left.
--
-- KEYS[1] session:<id> · KEYS[2] sessions:due · KEYS[3] sessions · KEYS[4] account:<day> · KEYS[5] account:all
-- ARGV[1] session id · ARGV[2..] numbers of traces, each with its publication
-- Returns how many were erased.
local refused = guard({session_writes(KEYS[2], KEYS[3], KEYS[1])})
  or guard({{KEYS[4], 'hash', 'HINCRBY'}, {KEYS[5], 'hash', 'HINCRBY'}}) or guard_session(KEYS[3], KEYS[1])
  or guard_account(KEYS[4], KEYS[5], {'session:removed'})
if refused then return refused end
local state = session_state(KEYS[1])
local erased, bytes = 0, 0
for index = 2, #ARGV, 2 do
  local field = 't' .. ARGV[index]
  local text = redis.call('HGET', KEYS[1], field)
  if text and text:match('^%S+') == ARGV[index + 1] then
    redis.call('HDEL', KEYS[1], field, 'i' .. ARGV[index + 1])
    erased, bytes = erased + 1, bytes + #text
  end
end
if erased == 0 then return 0 end
redis.call('HINCRBY', KEYS[1], 'bytes', -bytes)
redis.call('HINCRBY', KEYS[3], 'bytes', -bytes)
if bytes == state.bytes then
  if state.generation == 0 then count('session:removed', 1) end
  redis.call('DEL', KEYS[1])
  redis.call('ZREM', KEYS[2], ARGV[1])
end
write_account(KEYS[4], KEYS[5])
return erased
