-- Take what ingest has read into the books: chosen work as batches, the rest as counts, all acknowledged, in one step.
-- An entry takes effect only if its XACK answers 1: a call that is repeated, or an entry that another worker has
-- claimed, changes nothing.
--
-- KEYS[1] traces           stream, group ARGV.group; no TTL
-- KEYS[2] leases           sorted set, batch id -> due time in ms; no TTL
-- KEYS[3] waiting          hash, judge model -> bytes of unfinished batches; no TTL
-- KEYS[4] account:<day>    hash of counts; TTL ARGV.account_ttl_s
-- KEYS[5] account:all      hash of counts; no TTL
-- KEYS[6] feedback:due     sorted set, feedback as JSON -> time of its pass in ms; TTL ARGV.chosen_ttl_s
-- KEYS[7..]                batch:<id> string, no TTL · chosen:<id> string, TTL ARGV.chosen_ttl_s
--                          ready:<judge model> sorted set, no TTL
--                          producer:<id> hash, TTL set by the producer, else ARGV.account_ttl_s; what is added here:
--                            reported, dropped, dropped:<reason>  the largest totals of its reports
--                            accounted, sent:accounted, trimmed:accounted  what the books hold of it
--                          named by their index in the plan
-- ARGV[1] the plan, as msgpack; ARGV[2..] payloads of traces, named by their index in the plan
-- Before it stand shared/counts.lua, batches.lua and choosing.lua: the counts, `plan`, `now`, the batches.
local arrivals = {}

-- First what a full Redis refuses: after the first acknowledgement it would let all of this pass, far above its limit.
redis.call('HINCRBY', KEYS[5], 'read', 0)

local function acknowledge(ids)
  local total = 0
  for first = 1, #ids, 1000 do
    total = total + redis.call('XACK', KEYS[1], plan.group, unpack(ids, first, math.min(first + 999, #ids)))
  end
  return total
end

local function arrive(producer, amount)
  count('read', amount)
  count('arrived', amount)
  arrivals[producer] = (arrivals[producer] or 0) + amount
end

-- Evaluations that were not chosen because their judge model is dead: in the books, and by judge model in the answer.
local shed = {}
local function shed_all(of_models, entries)
  for model, each in pairs(of_models) do
    shed[model] = (shed[model] or 0) + each * entries
    count('shed:' .. model, each * entries)
  end
end

-- Entries that end here: unsampled, without a rule, shed, invalid.
local tallied = {}
for place, tally in ipairs(plan.tallies) do
  local amount = acknowledge(tally.ids)
  tallied[place] = amount
  if amount > 0 then
    count(tally.outcome, amount)
    if tally.reason then count(tally.outcome .. ':' .. tally.reason, amount) end
    shed_all(tally.shed, amount)
    arrive(tally.producer, amount)
  end
end

-- What was trimmed away under its reader counts as cut off.
count('cut_off', acknowledge(plan.gone))

-- Feedback is read, but is no trace. It ends here, or is gathered for the next pass over the stream (pull.lua).
for outcome, ids in pairs(plan.feedback) do
  local amount = acknowledge(ids)
  count('read', amount)
  count('feedback', amount)
  finish_feedback(outcome, amount)
end
if #plan.gathered > 0 then
  local room = plan.max_gathered - redis.call('ZCARD', KEYS[6])
  for _, one in ipairs(plan.gathered) do
    if acknowledge({one.id}) == 1 then
      count('read', 1)
      count('feedback', 1)
      if room > 0 then
        redis.call('ZADD', KEYS[6], now + plan.feedback_wait_ms, one.member)
        room = room - 1
      else
        finish_feedback('overflow', 1)
      end
    end
  end
  redis.call('EXPIRE', KEYS[6], plan.chosen_ttl_s)
end

-- Chosen traces: every evaluation that was not chosen before goes into its batch.
local outcomes = {}
for place, trace in ipairs(plan.traces) do
  if acknowledge({trace.id}) == 1 then
    outcomes[place] = choose(trace.payload, trace.evaluations) > 0 and 'sampled' or 'duplicate'
    count(outcomes[place], 1)
    shed_all(trace.shed, 1)
    arrive(trace.producer, 1)
  else
    outcomes[place] = ''
  end
end

local made = write_batches()
local waiting = {}
if #made > 0 then
  local all = redis.call('HGETALL', KEYS[3])
  for place = 1, #all, 2 do waiting[all[place]] = tonumber(all[place + 1]) end
end

-- Producers report totals since their start; the largest of each counts, and what it adds to the books is the
-- difference to what the books already hold of it.
local dropped = {}
for place, report in ipairs(plan.reports) do
  local key = KEYS[report.producer]
  if acknowledge({report.id}) == 1 then
    count('read', 1)
    arrivals[report.producer] = arrivals[report.producer] or 0
    if report.published > tonumber(redis.call('HGET', key, 'reported') or 0) then
      redis.call('HSET', key, 'reported', report.published)
    end
    -- A report alone, whoever wrote it, makes no key that stays for ever.
    if redis.call('TTL', key) == -1 then redis.call('EXPIRE', key, plan.account_ttl_s) end
    for reason, total in pairs(report.dropped) do
      local known = tonumber(redis.call('HGET', key, 'dropped:' .. reason) or 0)
      if total > known then
        redis.call('HSET', key, 'dropped:' .. reason, total)
        redis.call('HINCRBY', key, 'dropped', total - known)
        count('dropped', total - known)
        count('dropped:' .. reason, total - known)
        dropped[#dropped + 1] = {place, reason, total - known}
      end
    end
  end
end

-- Index 0 stands for all entries without a producer: of whose services they are, the caller knows.
local published = {}
for producer, amount in pairs(arrivals) do
  local key = producer > 0 and KEYS[producer] or nil
  if key and redis.call('EXISTS', key) == 1 then
    local known = redis.call('HMGET', key, 'sent', 'reported', 'accounted', 'sent:accounted', 'trimmed',
      'trimmed:accounted', 'dropped')
    for place = 1, 7 do known[place] = tonumber(known[place] or 0) end
    -- What was sent since the last report is not in it, what was dropped before it is.
    local total = math.max(known[1] + known[7], known[2])
    if total > known[3] then
      count('published', total - known[3])
      published[tostring(producer)] = total - known[3]
    end
    count('sent', known[1] - known[4])
    count('trimmed', known[5] - known[6])
    redis.call('HSET', key, 'accounted', math.max(total, known[3]), 'sent:accounted', known[1],
      'trimmed:accounted', known[5])
  else
    count('published', amount)
    count('bare', amount)
    if producer > 0 and amount > 0 then published[tostring(producer)] = amount end
  end
end

write_books(KEYS[4], KEYS[5])
redis.call('EXPIRE', KEYS[4], plan.account_ttl_s)

return cjson.encode({
  tallied = filled(tallied), outcomes = filled(outcomes), made = filled(made), published = filled(published),
  dropped = filled(dropped), feedback = filled(feedback), shed = filled(shed), waiting = filled(waiting),
})
