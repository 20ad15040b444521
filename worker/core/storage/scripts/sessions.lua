-- @include guard accounting
-- Conversations that judges of sessions gather. Keys of these scripts, besides those of the included files:
--
-- session:<id>     hash; TTL of the ledger, renewed with each trace and each judging:
--                    count                 traces gathered so far
--                    judged, generation    `count` when it was last chosen, and how often it was
--                    first, bytes          number of the oldest trace that is kept, bytes of all that are
--                    t<number>             a trace: its publication, a blank, and its part as JSON, see worker/features/sessions/
--                    i<publication>        the number of a trace that is kept
-- sessions:due     sorted set, session id -> when it is judged, or its traces are dropped, in ms; no TTL
-- sessions         hash; bytes: of the traces of all conversations; no TTL

local SESSION_COUNTERS = {'count', 'judged', 'generation', 'first', 'bytes'}

-- Returns the writes that guard() checks before conversations change; the Redis user has the same rights on all of them.
local function session_writes(due, all, session)
  return {due, 'zset', 'ZADD', 'ZREM'}, {all, 'hash', 'HINCRBY'},
    {session, 'hash', 'HSET', 'HDEL', 'HGET', 'HMGET', 'HEXISTS', 'HINCRBY', 'DEL', 'EXPIRE'}
end

-- Returns an error if a conversation cannot be changed, else nil.
local function guard_session(all, session)
  return guard({{session, 'hash'}}) or guard_counters(all, {'bytes'}) or guard_counters(session, SESSION_COUNTERS)
end

local function session_state(session)
  local values, state = redis.call('HMGET', session, unpack(SESSION_COUNTERS)), {}
  for index, name in ipairs(SESSION_COUNTERS) do state[name] = tonumber(values[index] or 0) end
  return state
end

-- When a conversation is due: judged after a pause, or at once where it has grown by `max`; one that has not grown by half
-- since it was judged is dropped after `keep_ms`.
local function session_due(state, now, limits)
  if state.count * 2 < state.judged * 3 then return now + limits.keep_ms end
  return state.count - state.judged >= limits.max and now or now + limits.idle_ms
end

-- Adds a trace to its conversation unless it is there, and returns whether it was added. Of a long conversation only the
-- newest traces are kept.
--
-- keys     names of due, all and session
-- trace    member (the session id), publication and text
-- limits   max, max_bytes, idle_ms, keep_ms, ttl_s
local function gather(keys, trace, now, limits)
  if redis.call('HEXISTS', keys.session, 'i' .. trace.publication) == 1 then return false end
  local state = session_state(keys.session)
  local before, text = state.bytes, trace.publication .. ' ' .. trace.text
  state.count, state.first = state.count + 1, math.max(1, state.first)
  state.bytes = state.bytes + #text
  redis.call('HSET', keys.session, 'i' .. trace.publication, state.count, 't' .. state.count, text)
  while state.first < state.count
    and (state.count - state.first >= limits.max or state.bytes > limits.max_bytes) do
    local old = redis.call('HGET', keys.session, 't' .. state.first)
    if old then
      redis.call('HDEL', keys.session, 't' .. state.first, 'i' .. old:match('^%S+'))
      state.bytes = state.bytes - #old
    end
    state.first = state.first + 1
  end
  redis.call('HSET', keys.session, 'count', state.count, 'first', state.first, 'bytes', state.bytes)
  redis.call('EXPIRE', keys.session, limits.ttl_s)
  redis.call('HINCRBY', keys.all, 'bytes', state.bytes - before)
  redis.call('ZADD', keys.due, session_due(state, now, limits), trace.member)
  count('session:gathered', 1)
  if state.count == 1 then count('session:opened', 1) end
  return true
end

-- Removes all traces of a conversation; how often it was judged stays known until the TTL ends.
local function drop_traces(keys, member, state, ttl_s)
  redis.call('HINCRBY', keys.all, 'bytes', -state.bytes)
  redis.call('DEL', keys.session)
  redis.call('HSET', keys.session, 'count', state.count, 'judged', state.judged, 'generation', state.generation,
    'first', state.count + 1, 'bytes', 0)
  redis.call('EXPIRE', keys.session, ttl_s)
  redis.call('ZREM', keys.due, member)
end
