-- @script choose
-- @include batch_writer streams accounting sessions
-- Applies the plan of one read: writes the batches, counts all entries and acknowledges them, in one step. An entry takes
-- effect only if its XACK answers 1: a repeated call, or an entry that another worker has processed, changes nothing.
--
-- KEYS[1] traces           stream, group plan.group; no TTL
-- KEYS[2] to KEYS[7], see batch_writer.lua; the TTL of account:<day> is plan.account_ttl_s
-- KEYS[8] feedback:due     sorted set, feedback as JSON -> time of its pass in ms; TTL plan.ledger_ttl_s
-- KEYS[9] groups           hash, see streams.lua; no TTL
-- KEYS[10] producers       sorted set, producer -> time of its last batch in ms; no TTL
-- KEYS[11] sessions:due · KEYS[12] sessions, see sessions.lua
-- KEYS[13..]               session:<id>, see sessions.lua · batch:<id> string, no TTL in the end · ready:<judge model> sorted set, no TTL
--                          same:<hash of trace id> string, marks of what of a trace was chosen, 8 characters each; TTL of a day
--                          producer:<id> hash, TTL set by the producer, else plan.account_ttl_s; what is added here:
--                            reported, dropped, dropped:<reason>  the largest totals of its reports
--                            accounted, sent:accounted, lost:accounted, trimmed:accounted  its part of the account
--                          named by their index in the plan
-- ARGV[1] the plan, as msgpack; ARGV[2..] traces of conversations, named by their index in the plan
local arrivals = {}

-- Everything that could fail is checked before the first acknowledgement.
local PRODUCER_COUNTERS = {'sent', 'lost', 'reported', 'accounted', 'sent:accounted', 'lost:accounted', 'trimmed',
  'trimmed:accounted', 'dropped'}

local function expected_counts()
  local names = {'read', 'arrived', 'published', 'sent', 'lost_by_redis', 'trimmed', 'bare', 'cut_off', 'feedback', 'feedback:overflow',
    'chosen', 'sampled', 'duplicate', 'dropped', 'session:gathered', 'session:opened'}
  local function expect(...) names[#names + 1] = table.concat({...}) end
  for _, tally in ipairs(plan.tallies) do
    expect(tally.outcome)
    if tally.reason then expect(tally.outcome, ':', tally.reason) end
    for model in pairs(tally.shed) do expect('shed:', model) end
  end
  for outcome in pairs(plan.feedback) do expect('feedback:', outcome) end
  for _, trace in ipairs(plan.traces) do
    for model in pairs(trace.shed or {}) do expect('shed:', model) end
  end
  for _, report in ipairs(plan.reports) do
    for reason in pairs(report.dropped) do expect('dropped:', reason) end
  end
  return names
end

local function guard_producers()
  for _, producer in ipairs(plan.producers) do
    local refused = guard_counters(KEYS[producer], PRODUCER_COUNTERS)
    if refused then return refused end
  end
  for _, report in ipairs(plan.reports) do
    local names = {}
    for reason in pairs(report.dropped) do names[#names + 1] = 'dropped:' .. reason end
    local refused = guard_counters(KEYS[report.producer], names)
    if refused then return refused end
  end
end

local writes = {
  {KEYS[1], 'stream', unpack(OF_STREAM)}, {KEYS[8], 'zset', 'ZCARD', 'ZADD', 'EXPIRE'}, {KEYS[9], 'hash', 'HMGET', 'HSET'},
  {KEYS[10], 'zset', 'ZADD'},
}
for index, producer in ipairs(plan.producers) do
  -- The Redis user has the same rights on all of them.
  writes[#writes + 1] = index > 1 and {KEYS[producer], 'hash'}
    or {KEYS[producer], 'hash', 'HGET', 'HMGET', 'HSET', 'HINCRBY', 'TTL', 'EXPIRE', 'EXISTS'}
end
local sessions, told = {}, nil
for _, trace in ipairs(plan.traces) do
  sessions[#sessions + 1] = trace.session
  told = told or trace.told
end
if told then writes[#writes + 1] = {KEYS[told], false, 'SET'} end
if sessions[1] then
  for _, write in ipairs({session_writes(KEYS[11], KEYS[12], KEYS[sessions[1].key])}) do writes[#writes + 1] = write end
end
local refused = guard_plan(writes) or guard_account(KEYS[4], KEYS[5], expected_counts()) or guard_producers()
for _, session in ipairs(sessions) do refused = refused or guard_session(KEYS[12], KEYS[session.key]) end
if refused then return refused end
for _, trace in ipairs(plan.traces) do look_up(trace.evaluations) end
refused = guard_batches()
if refused then return refused end

local acknowledge, note = acknowledging(KEYS[1], plan.group, KEYS[9], 'traces:' .. plan.group, plan.first)

local function count_arrivals(producer, amount)
  count('read', amount)
  count('arrived', amount)
  arrivals[producer] = (arrivals[producer] or 0) + amount
end

-- Evaluations that were not chosen because their judge model is away, for the account and the answer.
local shed = {}
local function shed_all(shed_by_model, entries)
  for model, amount in pairs(shed_by_model) do
    shed[model] = (shed[model] or 0) + amount * entries
    count('shed:' .. model, amount * entries)
  end
end

-- Entries that end here: unsampled, without a rule, shed, invalid.
local tallied = {}
for index, tally in ipairs(plan.tallies) do
  local amount = acknowledge(tally.ids)
  tallied[index] = amount
  if amount > 0 then
    count(tally.outcome, amount)
    if tally.reason then count(tally.outcome .. ':' .. tally.reason, amount) end
    shed_all(tally.shed, amount)
    count_arrivals(tally.producer, amount)
  end
end

-- Entries that were trimmed after they were read count as cut off.
count('cut_off', acknowledge(plan.gone))

-- Feedback is read, but is no trace. It ends here, or is collected for the next pass over the stream (choose_late_feedback).
for outcome, ids in pairs(plan.feedback) do
  local amount = acknowledge(ids)
  count('read', amount)
  count('feedback', amount)
  finish_feedback(outcome, amount)
end
if #plan.pending_feedback > 0 then
  local room = plan.max_pending - redis.call('ZCARD', KEYS[8])
  for _, entry in ipairs(plan.pending_feedback) do
    if acknowledge({entry.id}) == 1 then
      count('read', 1)
      count('feedback', 1)
      if room > 0 then
        redis.call('ZADD', KEYS[8], now + plan.feedback_wait_ms, entry.member)
        room = room - 1
      else
        finish_feedback('overflow', 1)
      end
    end
  end
  redis.call('EXPIRE', KEYS[8], plan.ledger_ttl_s)
end

-- Adds a trace to its conversation; true if it was not there.
local function gather_trace(session)
  session.text = ARGV[session.text]
  return gather({due = KEYS[11], all = KEYS[12], session = KEYS[session.key]}, session, now, plan.sessions)
end

-- Leaves out what was chosen of the same answer before, as another telemetry of one call told it; true if that is all.
local TOLD_S, MARK, MAX_MARKS = 86400, 8, 64
local function leave_out_told(trace)
  local key, marks, known, fresh = KEYS[trace.told], trace.marks, {}, {}
  local given = marks:sub(-MAX_MARKS)
  -- One command, unless the trace had another answer. It fails on a key of another type, which then knows nothing.
  local former = redis.pcall('SET', key, given, 'EX', TOLD_S, 'GET')
  if type(former) ~= 'string' then return false end
  for first = 1, #former, MARK do known[former:sub(first, first + MARK - 1)] = true end
  for index = 1, #marks / MARK do
    local mark, evaluation = marks:sub((index - 1) * MARK + 1, index * MARK), trace.evaluations[index]
    if not known[mark] then
      fresh[#fresh + 1] = mark
    elseif evaluation and evaluation.state == '' then
      evaluation.state = 'told'
    end
  end
  if former ~= given then redis.call('SET', key, (former .. table.concat(fresh)):sub(-MAX_MARKS), 'EX', TOLD_S) end
  return #fresh == 0
end

-- Chosen traces: every evaluation that was not chosen before goes into its batch.
local outcomes = {}
for index, trace in ipairs(plan.traces) do
  if acknowledge({trace.id}) == 1 then
    local is_told = trace.told and leave_out_told(trace)
    local is_new = choose(trace.evaluations) > 0
    -- These are two statements, because `or` would not gather a trace of which something was chosen.
    if trace.session and not is_told and gather_trace(trace.session) then is_new = true end
    outcomes[index] = is_new and 'sampled' or 'duplicate'
    count(outcomes[index], 1)
    if trace.shed then shed_all(trace.shed, 1) end
    count_arrivals(trace.producer, 1)
  else
    outcomes[index] = ''
  end
end

local batch_ids = write_batches()
local waiting = {}
if #batch_ids > 0 then
  local fields = redis.call('HGETALL', KEYS[3])
  for index = 1, #fields, 2 do waiting[fields[index]] = tonumber(fields[index + 1]) end
end

-- Producers report totals since their start. The largest of each counts; the account grows by the difference.
local dropped = {}
for index, report in ipairs(plan.reports) do
  local key = KEYS[report.producer]
  if acknowledge({report.id}) == 1 then
    count('read', 1)
    arrivals[report.producer] = arrivals[report.producer] or 0
    if report.published > tonumber(redis.call('HGET', key, 'reported') or 0) then
      redis.call('HSET', key, 'reported', report.published)
    end
    -- Any client may send a report, so it must not make a key that never expires.
    if redis.call('TTL', key) == -1 then redis.call('EXPIRE', key, plan.account_ttl_s) end
    redis.call('ZADD', KEYS[10], 'NX', now, report.name)
    for reason, total in pairs(report.dropped) do
      local last_total = tonumber(redis.call('HGET', key, 'dropped:' .. reason) or 0)
      if total > last_total then
        redis.call('HSET', key, 'dropped:' .. reason, total)
        redis.call('HINCRBY', key, 'dropped', total - last_total)
        count('dropped', total - last_total)
        count('dropped:' .. reason, total - last_total)
        dropped[#dropped + 1] = {index, reason, total - last_total}
      end
    end
  end
end

-- Index 0 stands for all entries without a producer; the caller knows their services.
local published = {}
for producer, amount in pairs(arrivals) do
  local key = producer > 0 and KEYS[producer] or nil
  if key and redis.call('EXISTS', key) == 1 then
    local amounts, state = unaccounted(key)
    for name, amount in pairs(amounts) do count(name, amount) end
    if amounts.published > 0 then published[tostring(producer)] = amounts.published end
    redis.call('HSET', key, 'accounted', state.accounted, 'sent:accounted', state['sent:accounted'],
      'lost:accounted', state['lost:accounted'], 'trimmed:accounted', state['trimmed:accounted'])
  else
    count('published', amount)
    count('bare', amount)
    if producer > 0 and amount > 0 then published[tostring(producer)] = amount end
  end
end

note(plan.last)
write_account(KEYS[4], KEYS[5])
redis.call('EXPIRE', KEYS[4], plan.account_ttl_s)

return cjson.encode({
  tallied = filled(tallied), outcomes = filled(outcomes), made = filled(batch_ids), published = filled(published),
  dropped = filled(dropped), feedback = filled(feedback), shed = filled(shed), waiting = filled(waiting),
  lost_by_redis = counts['lost_by_redis'],
})
